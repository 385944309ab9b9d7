"""The admin site under its own name; pages are declared in the apps' admin modules. Its front page says what waits."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest
from django.template.response import TemplateResponse

MOST_NAMED = 10


class LychdAdminSite(AdminSite):
    """The stock admin, strict CSP and all, titled for operators."""

    site_header = "LychD"
    site_title = "LychD"
    index_title = "Operations"

    def index(self, request: HttpRequest, extra_context: Any = None) -> TemplateResponse:
        """The front page: which Vessel holds the database, and what needs a person."""
        return super().index(request, {**(extra_context or {}), **_standing(request)})


def _standing(request: HttpRequest) -> dict[str, Any]:
    # The site is made while apps are still loading; models exist only by the time somebody asks for a page.
    from consents.admin.values import bare
    from consents.models import Consent, ConsentStatus
    from runs.admin import tenancy
    from runs.admin.filters import quarantined, uncontained
    from runs.models import VesselSlot

    user: Any = request.user
    found: dict[str, Any] = {
        "needs": None,
        "stuck": None,
        "questions": None,
        "vessel": None,
        "sees_vessel": user.has_perm("runs.view_boot"),
    }
    if found["sees_vessel"]:
        found["vessel"] = VesselSlot.objects.select_related("boot").defer("boot__report").first()
    if user.has_perm("runs.view_run"):
        tenants = tenancy.visible(request)
        runs = quarantined(tenants).only("id", "pattern_key", "tenant", "quarantine_reason")
        found["needs"] = list(runs[: MOST_NAMED + 1])
        stuck = uncontained(tenants).only("id", "pattern_key", "tenant", "status", "containment_error")
        found["stuck"] = list(stuck[:MOST_NAMED])
    if user.has_perm("consents.decide_consent"):
        # Along an index that begins with the tenant, a few of each.
        waiting: list[Consent] = []
        for tenant in tenancy.choices(request):
            pending = Consent.objects.filter(tenant=tenant, status=ConsentStatus.PENDING.value)
            newest = pending.only("id", "title", "risk", "requested_at").order_by("-requested_at", "-id")
            waiting += newest[: MOST_NAMED + 1 - len(waiting)]
            if len(waiting) > MOST_NAMED:
                break
        for consent in waiting:
            consent.title = bare(consent.title)
        found["questions"] = waiting
    return found


class LychdAdminConfig(AdminConfig):
    default_site = "lychd.admin_site.LychdAdminSite"
