"""The admin's pages of people and Sigils, under the strict content policy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from lychd.sigils import tokens
from lychd.sigils.models import Membership, Sigil, User

pytestmark = pytest.mark.django_db

LIST = "/admin/sigils/sigil/"


@pytest.fixture(autouse=True)
def static_files_are_served_before_django(settings: Any) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "whitenoise" not in name]


@pytest.fixture
def root() -> User:
    user = User.objects.create_superuser("root", password="x")
    Membership.objects.create(user=user, tenant="default")
    return user


@pytest.fixture
def client(root: User) -> Client:
    client = Client()
    client.force_login(root)
    return client


@pytest.fixture
def bot(root: User) -> tuple[Sigil, str]:
    return tokens.create("bot", root, ["runs:read"])


def staff(*permissions: str, tenant: str = "default") -> Client:
    user = User.objects.create_user("staff", is_staff=True)
    Membership.objects.create(user=user, tenant=tenant)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="sigils", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def pages(bot: Sigil) -> list[str]:
    return [
        LIST,
        f"{LIST}?state=usable",
        f"{LIST}?q=bo",
        f"{LIST}{bot.pk}/change/",
        "/admin/sigils/user/",
        "/admin/sigils/user/add/",
        reverse("admin:sigils_user_change", args=[bot.owner_id]),
        "/",
        "/admin/",
    ]


def test_no_page_shows_a_hash_or_needs_an_inline_script(client: Client, bot: tuple[Sigil, str]) -> None:
    for page in pages(bot[0]):
        response = client.get(page)
        text = response.content.decode()
        assert response.status_code == 200, page
        assert bot[0].token_hash not in text
        assert bot[0].token_hash[:16] not in text
        policy = response.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        for tag in re.findall(r"<(?:script|style)\b[^>]*>", text):
            assert "src=" in tag or "nonce=" in tag or 'type="application/json"' in tag, (page, tag)
        assert not re.search(r"\son[a-z]+=", text), page


def test_the_page_of_a_sigil_says_what_is_in_effect(client: Client, bot: tuple[Sigil, str]) -> None:
    assert "runs:read" in client.get(f"{LIST}{bot[0].pk}/change/").content.decode()
    Membership.objects.all().delete()
    assert "not a member of default" in client.get(f"{LIST}{bot[0].pk}/change/").content.decode()


def test_sigils_are_neither_made_changed_nor_deleted_here(client: Client, bot: tuple[Sigil, str]) -> None:
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{bot[0].pk}/change/", {"name": "other"}).status_code == 403
    assert client.post(f"{LIST}{bot[0].pk}/delete/", {"post": "yes"}).status_code == 403
    assert "lychd sigil create" in client.get(LIST).content.decode()


def revoke(client: Client, sigil: Sigil, **more: Any) -> Any:
    return client.post(LIST, {"action": "revoke", "_selected_action": [str(sigil.pk)], **more}, follow=True)


def test_revoking_asks_once_and_is_written_down(client: Client, bot: tuple[Sigil, str]) -> None:
    asked = revoke(client, bot[0])
    assert "cannot be undone" in asked.content.decode()
    assert Sigil.objects.get().revoked_at is None
    done = revoke(client, bot[0], post="yes")
    assert "Revoked: bot (default)." in done.content.decode()
    assert Sigil.objects.get().revoked_at is not None
    assert LogEntry.objects.get().get_change_message() == "Revoked."
    assert "revoked before" in revoke(client, bot[0], post="yes").content.decode()
    assert LogEntry.objects.count() == 1


def test_looking_does_not_include_revoking(bot: tuple[Sigil, str]) -> None:
    client = staff("view_sigil")
    assert client.get(LIST).status_code == 200
    revoke(client, bot[0], post="yes")
    assert Sigil.objects.get().revoked_at is None


def test_staff_of_another_tenant_neither_see_nor_revoke(bot: tuple[Sigil, str]) -> None:
    client = staff("view_sigil", "change_sigil", tenant="other")
    assert "bot" not in client.get(LIST).content.decode().split("<tbody>")[-1].split("</tbody>")[0].replace(
        "robots", ""
    )
    assert client.get(f"{LIST}{bot[0].pk}/change/").status_code == 302
    revoke(client, bot[0], post="yes")
    assert Sigil.objects.get().revoked_at is None


def test_a_person_gets_tenants_on_their_own_page(client: Client, root: User) -> None:
    page = client.get(reverse("admin:sigils_user_change", args=[root.pk]))
    assert 'name="memberships-0-tenant"' in page.content.decode()


def test_the_icon_is_found_where_browsers_look_for_it(client: Client) -> None:
    assert client.get("/favicon.ico").headers["Location"] == "/static/lychd/favicon.svg"
