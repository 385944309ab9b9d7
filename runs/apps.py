"""Declares the app `runs`: the ledger, its edges and everything that carries a Run."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class RunsConfig(AppConfig):
    name = "runs"
    verbose_name = "Runs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from runs.checks import check_patterns

        checks.register(check_patterns)
