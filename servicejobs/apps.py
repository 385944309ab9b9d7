"""Declares the app `servicejobs`; its models and its wait kind come with their own capability."""

from __future__ import annotations

from django.apps import AppConfig


class ServiceJobsConfig(AppConfig):
    name = "servicejobs"
    verbose_name = "Service jobs"
    default_auto_field = "django.db.models.BigAutoField"
