"""The admin site under its own name; pages are declared in the apps' admin modules."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig


class LychdAdminSite(AdminSite):
    """The stock admin, strict CSP and all, titled for operators."""

    site_header = "LychD"
    site_title = "LychD"
    index_title = "Operations"


class LychdAdminConfig(AdminConfig):
    default_site = "lychd.admin_site.LychdAdminSite"
