"""The composition root as a Django app: checks, commands and the shipped Patterns."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class LychdConfig(AppConfig):
    name = "lychd"
    verbose_name = "LychD"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from lychd.checks import check_limits, check_production, check_routes

        checks.register(check_routes)
        checks.register(check_limits)
        checks.register(check_production, deploy=True)
