"""Declares the app `consents`; its models and its wait kind come with their own capability."""

from __future__ import annotations

from django.apps import AppConfig


class ConsentsConfig(AppConfig):
    name = "consents"
    verbose_name = "Consents"
    default_auto_field = "django.db.models.BigAutoField"
