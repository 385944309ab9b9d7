"""Benchmarks: figures and their ratios, all in one run on one database. An installable app for its own Patterns."""
