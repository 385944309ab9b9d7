"""A Django app that brings Patterns into a Vessel that runs as a process of its own (LYCHD_APPS)."""
