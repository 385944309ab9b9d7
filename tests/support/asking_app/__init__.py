"""A Django app that brings the Pattern `gate` into a Vessel that runs as a process of its own (LYCHD_APPS)."""
