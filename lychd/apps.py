"""The composition root as a Django app: checks, commands and the shipped Patterns."""

from __future__ import annotations

from django.apps import AppConfig


class LychdConfig(AppConfig):
    name = "lychd"
    verbose_name = "LychD"
    default_auto_field = "django.db.models.BigAutoField"
