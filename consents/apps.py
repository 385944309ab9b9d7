"""Declares the app `consents` and the wait kind that it brings."""

from __future__ import annotations

from django.apps import AppConfig


class ConsentsConfig(AppConfig):
    name = "consents"
    verbose_name = "Consents"
    default_auto_field = "django.db.models.BigAutoField"
    wait_kind = "consents.wait.ConsentWait"
