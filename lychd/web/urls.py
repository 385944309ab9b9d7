"""The URLs of the site: start page, admin, health, metrics, API. Which stack answers them is said in `handlers`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from lychd.web import health, pages
from lychd.web.api import build_api

api = build_api()

urlpatterns = [
    path("favicon.ico", pages.favicon, name="favicon"),
    path("admin/", admin.site.urls),
    path("api/v1/", api.urls),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("", include("lychd.dashboard.urls")),
]
