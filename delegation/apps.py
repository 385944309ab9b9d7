"""Declares the app `delegation`; its models and its wait kind come with their own capability."""

from __future__ import annotations

from django.apps import AppConfig


class DelegationConfig(AppConfig):
    name = "delegation"
    verbose_name = "Delegation"
    default_auto_field = "django.db.models.BigAutoField"
