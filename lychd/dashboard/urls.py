"""The addresses of the dashboard, under the namespace `dashboard`."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from lychd.dashboard import home, inbox, patterns, run_acts, run_page, runs_list, system

app_name = "dashboard"

urlpatterns = [
    path("", home.home, name="home"),
    path("runs/", runs_list.runs, name="runs"),
    path("runs/<uuid:run_id>/", run_page.run, name="run"),
    path("runs/<uuid:run_id>/cancel/", run_acts.cancel, name="run_cancel"),
    path("consents/", inbox.consents, name="consents"),
    path("consents/<uuid:consent_id>/", inbox.consent, name="consent"),
    path("consents/<uuid:consent_id>/decide/", inbox.decide, name="consent_decide"),
    path("patterns/", patterns.patterns, name="patterns"),
    path("patterns/<str:key>/", patterns.pattern, name="pattern"),
    path("system/", system.system, name="system"),
    path(
        "login/",
        LoginView.as_view(template_name="lychd/dashboard/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(), name="logout"),
]
