"""How Sigils and standard groups come and go."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.core import checks
from django.test import override_settings
from django.utils import timezone

from lychd.sigils import tokens
from lychd.sigils.groups import STANDARD, make_standard_groups
from lychd.sigils.models import Membership, Sigil, User
from runs.errors import Forbidden, Invalid

pytestmark = pytest.mark.django_db


@pytest.fixture
def anna() -> User:
    user = User.objects.create_user("anna")
    Membership.objects.create(user=user, tenant="default")
    return user


def test_a_token_carries_256_bits_and_is_stored_only_as_its_hash(anna: User) -> None:
    sigil, token = tokens.create("bot", anna, ["runs:read"])
    assert re.fullmatch(r"lychd_[A-Za-z0-9_-]{43}", token)
    assert tokens.is_token(token)
    kept = Sigil.objects.values().get(pk=sigil.pk)
    assert kept["token_hash"] == hashlib.sha256(token.encode()).hexdigest()
    assert token not in repr(kept)
    assert len({tokens.mint() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "-x"},
        {"name": "with space"},
        {"name": "a" * 101},
        {"name": "nul\0"},
        {"scopes": []},
        {"scopes": ["runs:read", "runs:everything"]},
        {"sources": ["Upper"]},
        {"sources": ["x" * 21]},
        {"expires_at": timezone.now() - timedelta(seconds=1)},
        {"expires_at": (timezone.now() + timedelta(days=1)).replace(tzinfo=None)},
    ],
)
def test_bad_arguments_are_refused_and_make_nothing(anna: User, changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        tokens.create(**{"name": "bot", "owner": anna, "scopes": ["runs:read"], **changes})
    assert not Sigil.objects.exists()


def test_an_owner_must_be_active_and_a_member_of_the_tenant(anna: User) -> None:
    with pytest.raises(Forbidden):
        tokens.create("bot", anna, ["runs:read"], tenant="elsewhere")
    anna.is_active = False
    with pytest.raises(Forbidden):
        tokens.create("bot", anna, ["runs:read"])


def test_a_name_is_used_once_in_a_tenant_even_after_revocation(anna: User) -> None:
    Membership.objects.create(user=anna, tenant="other")
    sigil, _ = tokens.create("bot", anna, ["runs:read"])
    tokens.create("bot", anna, ["runs:read"], tenant="other")
    tokens.revoke(sigil)
    with pytest.raises(tokens.NameTaken):
        tokens.create("bot", anna, ["runs:read"])


def test_revoking_happens_once_and_says_whether_it_was_this_call(anna: User) -> None:
    sigil, _ = tokens.create("bot", anna, ["runs:read"])
    assert tokens.revoke(sigil)
    when = sigil.revoked_at
    assert not tokens.revoke(Sigil.objects.get(pk=sigil.pk))
    assert Sigil.objects.get(pk=sigil.pk).revoked_at == when


def test_rotating_shuts_the_old_token_out(anna: User) -> None:
    sigil, token = tokens.create("bot", anna, ["runs:read"])
    fresh = tokens.rotate(sigil)
    assert fresh != token
    assert Sigil.objects.get(pk=sigil.pk).token_hash == tokens.fingerprint(fresh)


def permissions_of(name: str) -> set[str]:
    return {
        f"{one.content_type.app_label}.{one.codename}"
        for one in Group.objects.get(name=name).permissions.select_related("content_type")
    }


def test_a_migrated_database_has_the_standard_groups_with_every_permission_that_exists() -> None:
    existing = {
        f"{one.content_type.app_label}.{one.codename}" for one in Permission.objects.select_related("content_type")
    }
    for name, wanted in STANDARD.items():
        assert permissions_of(name) == set(wanted) & existing
    assert {
        "runs.view_run",
        "runs.submit_run",
        "runs.cancel_run",
        "runs.rerun_run",
        "runs.view_payload",
    } <= permissions_of("Operators")


def again() -> None:
    make_standard_groups(None)  # pyright: ignore[reportArgumentType]


def test_a_later_migration_leaves_alone_what_an_administrator_changed() -> None:
    taken = Permission.objects.get(content_type__app_label="runs", codename="cancel_run")
    Group.objects.get(name="Operators").permissions.remove(taken)
    Group.objects.get(name="Auditors").delete()
    again()
    assert "runs.cancel_run" not in permissions_of("Operators")
    assert not Group.objects.filter(name="Auditors").exists()


def test_a_permission_that_a_later_version_brings_is_added_once() -> None:
    content_type = Permission.objects.get(content_type__app_label="runs", codename="view_run").content_type
    content_type.pk, content_type.app_label, content_type.model = None, "consents", "consent_of_the_future"
    content_type.save(force_insert=True)
    added = Permission.objects.create(content_type=content_type, codename="decide_consent", name="Can decide")
    if "consents.decide_consent" in permissions_of("Approvers"):
        pytest.skip("the permission exists by now")
    again()
    assert "consents.decide_consent" in permissions_of("Approvers")
    Group.objects.get(name="Approvers").permissions.remove(added)
    again()
    assert "consents.decide_consent" not in permissions_of("Approvers")


def test_sessions_that_the_api_cannot_read_are_an_error_at_start() -> None:
    with override_settings(SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies"):
        assert "lychd.E201" in [found.id for found in checks.run_checks()]
    assert "lychd.E201" not in [found.id for found in checks.run_checks()]
