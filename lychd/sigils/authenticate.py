"""Who a token or a session belongs to, asked of the database in one or two statements without the ORM.

The composition supplies the `Lookup`: one pool, no thread hop, no Django connection. Permissions are those of
Django's own tables (a person's and their groups'); rights that other authentication backends give are not
seen here. Nothing is cached: what was revoked a moment ago is refused now.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.db.models.functions import Now
from django.utils.crypto import constant_time_compare

from lychd.sigils import rights, tokens
from lychd.sigils.models import Sigil, User
from runs.authority import Caller, Scope, Surface
from runs.errors import Forbidden

log = structlog.get_logger()

DEFAULT_TENANT = "default"
_SESSION_KEY = re.compile(r"[a-z0-9]{8,40}", re.ASCII)
# Sigils whose last use this process is writing down at the moment: a burst of requests writes it once.
_touching: set[uuid.UUID] = set()


class Lookup(Protocol):
    """What is needed of the pool that reads: one row, or none."""

    async def fetch_one(self, sql: str, params: dict[str, Any]) -> Sequence[Any] | None:
        """The first row of the statement; arrays come as lists, ids as UUID."""
        ...


_PERMISSIONS = """
    ARRAY(
        SELECT ct.app_label || '.' || p.codename
          FROM auth_permission p
          JOIN django_content_type ct ON ct.id = p.content_type_id
         WHERE ct.app_label || '.' || p.codename = ANY (%(permissions)s::text[])
           AND (EXISTS (SELECT 1 FROM sigils_user_user_permissions up
                         WHERE up.user_id = u.id AND up.permission_id = p.id)
                OR EXISTS (SELECT 1 FROM sigils_user_groups ug
                             JOIN auth_group_permissions gp ON gp.group_id = ug.group_id
                            WHERE ug.user_id = u.id AND gp.permission_id = p.id))
    )"""

_SIGIL = f"""
SELECT s.id, s.tenant, s.name,
       ARRAY(SELECT jsonb_array_elements_text(s.scopes)),
       ARRAY(SELECT jsonb_array_elements_text(s.sources)),
       u.id, u.is_superuser, {_PERMISSIONS},
       s.last_used_at IS NULL OR s.last_used_at < now() - interval '1 hour'
  FROM sigils_sigil s
  JOIN sigils_user u ON u.id = s.owner_id
 WHERE s.revoked_at IS NULL
   AND u.is_active
   AND EXISTS (SELECT 1 FROM sigils_membership m WHERE m.user_id = u.id AND m.tenant = s.tenant)
"""  # noqa: S608 only constants are put together

BY_TOKEN = _SIGIL + "   AND s.token_hash = %(hash)s\n   AND (s.expires_at IS NULL OR s.expires_at > now())"
BY_ID = _SIGIL + "   AND s.id = %(sigil)s::uuid"

SESSION = "SELECT session_data FROM django_session WHERE session_key = %(key)s AND expire_date > now()"

PERSON = f"""
SELECT u.username, u.password, u.is_superuser, {_PERMISSIONS},
       ARRAY(SELECT m.tenant FROM sigils_membership m
              WHERE m.user_id = u.id
              ORDER BY m.tenant <> 'default', m.created_at, m.id)
  FROM sigils_user u
 WHERE u.id = %(user)s::uuid
   AND u.is_active
"""  # noqa: S608 only constants are put together


async def by_token(token: str, surface: Surface, lookup: Lookup, *, tenant: str | None = None) -> Caller | None:
    """The caller behind a bearer token, with effective scopes (ruling 29).

    Args:
        token: as presented; its form is checked before anything is asked.
        surface: the door, by the server's word (ruling 20).
        tenant: the tenant that the request named, if it named one.

    Returns:
        None when the token is unknown, revoked or expired, its owner inactive or no member of the tenant.

    Raises:
        Forbidden: the request names a tenant that is not the Sigil's.

    Cancellation leaves nothing behind.
    """
    if not tokens.is_token(token):
        return None
    row = await lookup.fetch_one(
        BY_TOKEN, {"hash": tokens.fingerprint(token), "permissions": list(rights.EVERY_PERMISSION)}
    )
    if row is None:
        return None
    sigil_id, own_tenant, name, scopes, sources, owner_id, superuser, permissions, stale = row
    if tenant is not None and tenant != own_tenant:
        raise Forbidden(f"The Sigil {name} does not act in the tenant {tenant[:100]}.")
    if stale:
        await _touch(sigil_id)
    return Caller(
        tenant=own_tenant,
        name=name,
        scopes=rights.effective(scopes, superuser=superuser, permissions=permissions),
        surface=surface,
        sigil_id=sigil_id,
        user_id=owner_id,
        sources=frozenset(sources),
    )


async def by_session(session_key: str, surface: Surface, lookup: Lookup, *, tenant: str | None = None) -> Caller | None:
    """The person behind a session of Django's database backend, with every scope that their permissions give.

    Args:
        session_key: the cookie's value.
        surface: the door, by the server's word (ruling 20).
        tenant: one of the person's tenants; without it `default`, else the one they joined first.

    Returns:
        None when the session is unknown, expired or forged, older than the password, or the person inactive.

    Raises:
        Forbidden: the person is no member of the named tenant, or of any.

    Cancellation leaves nothing behind.
    """
    if not _SESSION_KEY.fullmatch(session_key):
        return None
    row = await lookup.fetch_one(SESSION, {"key": session_key})
    if row is None:
        return None
    data = SessionStore().decode(row[0])
    user_id = _user_id(data)
    if user_id is None:
        return None
    person = await lookup.fetch_one(PERSON, {"user": user_id, "permissions": list(rights.EVERY_PERMISSION)})
    if person is None:
        return None
    username, password, superuser, permissions, tenants = person
    if not _is_current(data, User(id=user_id, password=password)):
        return None
    if not tenants:
        raise Forbidden(f"{username} is not a member of any tenant.")
    if tenant is not None and tenant not in tenants:
        raise Forbidden(f"{username} is not a member of the tenant {tenant[:100]}.")
    return Caller(
        tenant=tenants[0] if tenant is None else tenant,
        name=username,
        scopes=rights.held(superuser=superuser, permissions=permissions),
        surface=surface,
        user_id=user_id,
    )


async def scopes_now(sigil_id: uuid.UUID, lookup: Lookup) -> frozenset[str]:
    """The effective scopes of a Sigil at this moment, for work that was admitted earlier (ruling 29, CLM-15).

    Empty when it is revoked or gone, its owner inactive or no member any more. Expiry is not asked here: it shuts
    the door to new requests, while work that came in before goes on; revoking is how one ends that too.
    """
    row = await lookup.fetch_one(BY_ID, {"sigil": sigil_id, "permissions": list(rights.EVERY_PERMISSION)})
    if row is None:
        return frozenset()
    return rights.effective(row[3], superuser=row[6], permissions=row[7])


async def still_valid(sigil_id: uuid.UUID, lookup: Lookup, scope: Scope = Scope.RUNS_SUBMIT) -> bool:
    """Whether recorded authority still covers `scope`; if not, the claim fails with `authority_revoked`."""
    return scope in await scopes_now(sigil_id, lookup)


def _user_id(data: Mapping[str, Any]) -> uuid.UUID | None:
    """The person that the session names; None for an anonymous one or a backend that is not trusted any more."""
    if data.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return None
    try:
        return uuid.UUID(str(data.get(SESSION_KEY)))
    except ValueError:
        return None


def _is_current(data: Mapping[str, Any], user: User) -> bool:
    """Whether the session was opened with the present password, under the present key or a retired one."""
    kept = str(data.get(HASH_SESSION_KEY, ""))
    retired: list[str] = list(user.get_session_auth_fallback_hash())  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    current = [user.get_session_auth_hash(), *retired]
    return any(constant_time_compare(kept, one) for one in current)


async def _touch(sigil_id: uuid.UUID) -> None:
    """Write down that a Sigil was used; that it could not be written never refuses the request."""
    if sigil_id in _touching:
        return
    _touching.add(sigil_id)
    try:
        await sync_to_async(_write_use, thread_sensitive=False)(sigil_id)
    except DatabaseError as error:
        log.warning("sigils.use_not_recorded", sigil=str(sigil_id), error=str(error))
    finally:
        _touching.discard(sigil_id)


def _write_use(sigil_id: uuid.UUID) -> None:
    close_old_connections()
    try:
        Sigil.objects.filter(pk=sigil_id).update(last_used_at=Now())
    finally:
        close_old_connections()
