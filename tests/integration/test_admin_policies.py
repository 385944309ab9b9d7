"""The operator's switch of standing policies: the one thing about them that files do not say."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from consents.models import StandingPolicy
from tests.support.admin_consents import a_user, logged_in

pytestmark = pytest.mark.django_db

LIST = "/admin/consents/standingpolicy/"
VIEW, CHANGE = "consents.view_standingpolicy", "consents.change_standingpolicy"


@pytest.fixture
def policy() -> StandingPolicy:
    return StandingPolicy.objects.create(slug="small", granted_by="ops", digest="d" * 64, uses=3)


def switched(client: Client, policy: StandingPolicy, action: str) -> Any:
    return client.post(LIST, {"action": action, "_selected_action": [str(policy.pk)]}, follow=True)


def test_an_operator_switches_a_policy_off_and_on_and_each_is_written_down_once(policy: StandingPolicy) -> None:
    client = logged_in(a_user("olga", VIEW, CHANGE))
    for action, enabled in (("switch_off", False), ("switch_off", False), ("switch_on", True)):
        assert switched(client, policy, action).status_code == 200
        policy.refresh_from_db()
        assert (policy.enabled, policy.uses) == (enabled, 3)
    entries = LogEntry.objects.filter(object_id=str(policy.pk)).order_by("pk")
    assert [entry.change_message for entry in entries] == ["Switched off.", "Switched on."]


def test_whoever_may_only_look_cannot_switch(policy: StandingPolicy) -> None:
    client = logged_in(a_user("vera", VIEW))
    assert "switch_off" not in client.get(LIST).content.decode()
    switched(client, policy, "switch_off")
    policy.refresh_from_db()
    assert policy.enabled
    assert not LogEntry.objects.exists()


def test_a_link_never_switches(policy: StandingPolicy) -> None:
    client = logged_in(a_user("olga", VIEW, CHANGE))
    client.get(LIST, {"action": "switch_off", "_selected_action": str(policy.pk)})
    assert Client(enforce_csrf_checks=True).post(LIST, {"action": "switch_off"}).status_code in {302, 403}
    policy.refresh_from_db()
    assert policy.enabled
