"""Lights the fuse as soon as Django is set up, before the Vessel has sent a statement."""

from __future__ import annotations

import os

from django.apps import AppConfig

from tests.crash.app.fuse import Fuse, burn


class CrashConfig(AppConfig):
    name = "tests.crash.app"
    label = "crash"

    def ready(self) -> None:
        """Count from here on, where the harness asked for it."""
        if "CRASH_LOG" in os.environ:
            burn(Fuse(int(os.environ["CRASH_AT"]), os.environ["CRASH_WHEN"], os.environ["CRASH_LOG"]))
