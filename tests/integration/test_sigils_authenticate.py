"""What a token and a session open, against the real tables."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group, Permission
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from lychd.sigils import authenticate, tokens
from lychd.sigils.models import Membership, Sigil, User
from runs.authority import Scope, Surface
from runs.errors import Forbidden
from tests.support.lookup import a_lookup

pytestmark = pytest.mark.django_db(transaction=True)

READ, SUBMIT, CANCEL = "runs:read", "runs:submit", "runs:cancel"


def a_person(
    name: str = "anna", *permissions: str, superuser: bool = False, tenants: tuple[str, ...] = ("default",)
) -> User:
    user = User.objects.create_user(name, password="correct horse battery", is_superuser=superuser)
    for each in permissions:
        app, codename = each.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    for tenant in tenants:
        Membership.objects.create(user=user, tenant=tenant)
    return user


@pytest.fixture
def anna() -> User:
    return a_person("anna", "runs.view_run")


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


@database_sync_to_async
def change(**values: Any) -> None:
    Sigil.objects.update(**values)


@database_sync_to_async
def last_use() -> Any:
    return Sigil.objects.get().last_used_at


async def by_token(token: str, **kwargs: Any) -> Any:
    async with a_lookup() as lookup:
        return await authenticate.by_token(token, Surface.REST, lookup, **kwargs)


async def by_session(key: str, **kwargs: Any) -> Any:
    async with a_lookup() as lookup:
        return await authenticate.by_session(key, Surface.REST, lookup, **kwargs)


@pytest.fixture
def annas(anna: User) -> tuple[Sigil, str]:
    return tokens.create("bot", anna, [READ, SUBMIT], sources=["ci"])


async def test_a_token_opens_with_one_statement_and_only_what_its_owner_may(
    annas: tuple[Sigil, str], anna: User
) -> None:
    async with a_lookup() as lookup:
        caller = await authenticate.by_token(annas[1], Surface.REST, lookup)
    assert lookup.statements == 1
    assert caller is not None
    assert (caller.tenant, caller.name, caller.surface) == ("default", "bot", Surface.REST)
    assert caller.scopes == {READ}
    assert (caller.sigil_id, caller.user_id, caller.sources) == (annas[0].pk, anna.pk, frozenset({"ci"}))


@pytest.fixture
def through_a_group() -> str:
    user = a_person("ben")
    group = Group.objects.create(name="Submitters")
    group.permissions.add(Permission.objects.get(content_type__app_label="runs", codename="submit_run"))
    user.groups.add(group)
    return tokens.create("bot", user, [READ, SUBMIT])[1]


async def test_rights_that_come_through_a_group_count(through_a_group: str) -> None:
    assert (await by_token(through_a_group)).scopes == {SUBMIT}


@pytest.fixture
def of_a_superuser() -> str:
    return tokens.create("root", a_person("root", superuser=True), [scope.value for scope in Scope])[1]


async def test_a_superuser_has_every_scope_even_of_apps_that_declare_no_permission_yet(of_a_superuser: str) -> None:
    assert (await by_token(of_a_superuser)).scopes == {scope.value for scope in Scope}


@pytest.fixture
def of_every_permission() -> str:
    user = a_person("eve")
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="runs"))
    return tokens.create("eve", user, [scope.value for scope in Scope])[1]


async def test_a_scope_whose_permission_nobody_can_have_stays_shut(of_every_permission: str) -> None:
    assert (await by_token(of_every_permission)).scopes == {READ, SUBMIT, CANCEL}


@pytest.fixture(params=["revoked", "expired", "inactive", "not a member", "deleted"])
def closed(request: pytest.FixtureRequest, annas: tuple[Sigil, str], anna: User) -> str:
    sigil, token = annas
    match request.param:
        case "revoked":
            tokens.revoke(sigil)
        case "expired":
            Sigil.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        case "inactive":
            User.objects.update(is_active=False)
        case "not a member":
            Membership.objects.update(tenant="elsewhere")
        case _:
            anna.delete()
    return token


async def test_a_token_that_was_closed_in_any_way_opens_nothing(closed: str) -> None:
    assert await by_token(closed) is None


@pytest.mark.parametrize(
    "text",
    ["", "lychd_", "lychd_" + "a" * 42, "lychd_" + "a" * 44, "x" * 49, "lychd_" + "ä" * 43, "lychd_\0" + "a" * 42],
)
async def test_what_has_not_the_form_of_a_token_asks_the_database_nothing(text: str) -> None:
    async with a_lookup() as lookup:
        assert await authenticate.by_token(text, Surface.REST, lookup) is None
    assert lookup.statements == 0


async def test_an_unknown_token_opens_nothing() -> None:
    assert await by_token(tokens.mint()) is None


async def test_a_sigil_acts_only_in_its_own_tenant(annas: tuple[Sigil, str]) -> None:
    assert (await by_token(annas[1], tenant="default")).tenant == "default"
    with pytest.raises(Forbidden):
        await by_token(annas[1], tenant="elsewhere")


@pytest.fixture
def used_long_ago(annas: tuple[Sigil, str]) -> tuple[Sigil, str]:
    Sigil.objects.update(last_used_at=timezone.now() - timedelta(hours=2))
    return annas


async def test_the_last_use_is_written_at_most_once_an_hour(used_long_ago: tuple[Sigil, str]) -> None:
    _, token = used_long_ago
    await by_token(token)
    first = await last_use()
    await by_token(token)
    assert first is not None
    assert timezone.now() - first < timedelta(minutes=1)
    assert await last_use() == first


@pytest.mark.contract("CLM-15")
async def test_recorded_authority_ends_with_the_revocation_of_the_sigil(annas: tuple[Sigil, str], anna: User) -> None:
    sigil, _ = annas
    async with a_lookup() as lookup:
        assert await authenticate.scopes_now(sigil.pk, lookup) == {READ}
        assert await authenticate.still_valid(sigil.pk, lookup, Scope.RUNS_READ)
        assert not await authenticate.still_valid(sigil.pk, lookup, Scope.RUNS_SUBMIT)
        await change(expires_at=timezone.now() - timedelta(days=1))
        assert await authenticate.still_valid(sigil.pk, lookup, Scope.RUNS_READ)
        await change(revoked_at=timezone.now())
        assert not await authenticate.still_valid(sigil.pk, lookup, Scope.RUNS_READ)
        assert await authenticate.scopes_now(uuid.uuid4(), lookup) == frozenset()


@pytest.fixture
def logged_in(anna: User) -> str:
    return session_of(anna)


async def test_a_session_has_every_scope_that_its_person_may(logged_in: str, anna: User) -> None:
    caller = await by_session(logged_in)
    assert (caller.name, caller.tenant, caller.user_id, caller.sigil_id) == ("anna", "default", anna.pk, None)
    assert caller.scopes == {READ}


@pytest.fixture(params=["password changed", "inactive", "expired", "logged out", "forged", "other backend"])
def ended(request: pytest.FixtureRequest, logged_in: str, anna: User) -> str:
    match request.param:
        case "password changed":
            anna.set_password("something else entirely")
            anna.save()
        case "inactive":
            User.objects.update(is_active=False)
        case "expired":
            Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
        case "logged out":
            Session.objects.all().delete()
        case "forged":
            Session.objects.update(session_data="eyJfYXV0aF91c2VyX2lkIjoiMSJ9:not-signed")
        case _:
            store = SessionStore(logged_in)
            store["_auth_user_backend"] = "somewhere.Else"
            store.save()
    return logged_in


async def test_a_session_that_has_ended_in_any_way_opens_nothing(ended: str) -> None:
    assert await by_session(ended) is None


@pytest.mark.parametrize("key", ["", "short", "A" * 32, "a" * 41, "a" * 16 + "\0" + "a" * 15, "ä" * 32])
async def test_what_has_not_the_form_of_a_session_key_asks_the_database_nothing(key: str) -> None:
    async with a_lookup() as lookup:
        assert await authenticate.by_session(key, Surface.REST, lookup) is None
    assert lookup.statements == 0


@pytest.fixture
def travels() -> str:
    return session_of(a_person("tom", tenants=("alpha", "default", "omega")))


async def test_a_person_in_several_tenants_chooses_one_and_has_default_otherwise(travels: str) -> None:
    assert (await by_session(travels)).tenant == "default"
    assert (await by_session(travels, tenant="omega")).tenant == "omega"
    with pytest.raises(Forbidden):
        await by_session(travels, tenant="foreign")


@pytest.fixture
def joined_one() -> str:
    return session_of(a_person("uma", tenants=("omega", "alpha")))


async def test_without_default_it_is_the_tenant_that_was_joined_first(joined_one: str) -> None:
    assert (await by_session(joined_one)).tenant == "omega"


@pytest.fixture
def belongs_nowhere() -> str:
    return session_of(a_person("vic", superuser=True, tenants=()))


async def test_a_person_without_a_tenant_is_refused_even_as_superuser(belongs_nowhere: str) -> None:
    with pytest.raises(Forbidden):
        await by_session(belongs_nowhere)
