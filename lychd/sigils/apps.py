"""Declares the app `sigils`: people, their memberships, and the tokens that act for them."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.core import checks
from django.db.models.signals import post_migrate


class SigilsConfig(AppConfig):
    name = "lychd.sigils"
    label = "sigils"
    verbose_name = "People and Sigils"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and what follows a migration."""
        from lychd.sigils.checks import check_session_engine
        from lychd.sigils.groups import make_standard_groups

        checks.register(check_session_engine)
        # The signal comes once for each app with models, when its permissions are made; the last has seen them all.
        last = [app for app in apps.get_app_configs() if app.models_module is not None][-1]
        post_migrate.connect(make_standard_groups, sender=last, dispatch_uid="sigils.standard_groups")
