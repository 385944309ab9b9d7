"""Declares the app `sigils`: people, their memberships, and the tokens that act for them."""

from __future__ import annotations

from django.apps import AppConfig


class SigilsConfig(AppConfig):
    name = "lychd.sigils"
    label = "sigils"
    verbose_name = "People and Sigils"
    default_auto_field = "django.db.models.BigAutoField"
