"""Declares the benchmarks' Patterns; never installed by default."""

from __future__ import annotations

from django.apps import AppConfig


class BenchConfig(AppConfig):
    name = "bench"
