"""How Sigils come and go: minted with a token that is shown once, rotated, revoked. Only its SHA-256 is kept.

A token is 256 random bits, so one fast hash is enough and no guess is worth trying. Looking a token up means
looking its hash up in an index: what such a search takes tells at most about hashes, never about tokens, so no
constant-time comparison is needed. Synchronous, for the admin and for commands; asks nobody for permission.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from lychd.sigils.models import Membership, Sigil, User
from runs.authority import Scope
from runs.errors import Conflict, Forbidden, Invalid

PREFIX = "lychd_"  # secret scanners look for it
_TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,19}", re.ASCII)


class NameTaken(Conflict):
    """A Sigil of this name exists in the tenant, perhaps revoked; names are not used twice."""

    code, title = "name_taken", "Name taken"


def mint() -> str:
    """A new token: the prefix and 43 URL-safe characters that carry 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Whether the text has the form of a token; says nothing about whether it opens anything."""
    return _TOKEN.fullmatch(text) is not None


def fingerprint(token: str) -> str:
    """The SHA-256 of a token in hex: what is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def create(
    name: str,
    owner: User,
    scopes: Iterable[str],
    tenant: str = "default",
    sources: Iterable[str] = (),
    expires_at: datetime | None = None,
) -> tuple[Sigil, str]:
    """Make a Sigil and its token.

    Args:
        name: letters, digits, dot, dash and underscore; unique in the tenant for ever.
        owner: the person whose rights bound the Sigil's; must be active and a member of the tenant.
        scopes: at least one of `runs.authority.Scope`; may be wider than the owner's rights, which cut them at use.
        tenant: the only tenant that the Sigil sees.
        sources: values of `source` that its submissions may name; none means only the surface's default.
        expires_at: aware time in the future, or None for no end.

    Returns:
        The Sigil and the token, which exists nowhere else.

    Raises:
        Invalid: an argument is not as described.
        Forbidden: the owner is inactive or no member of the tenant.
        NameTaken: the tenant has a Sigil of this name.
    """
    kept_scopes, kept_sources = checked_scopes(scopes), _checked_sources(sources)
    if not _NAME.fullmatch(name):
        raise Invalid("A Sigil's name is 1 to 100 letters, digits, dots, dashes or underscores.")
    if expires_at is not None and (timezone.is_naive(expires_at) or expires_at <= timezone.now()):
        raise Invalid("The end of a Sigil's validity must lie in the future and name its time zone.")
    if not owner.is_active:
        raise Forbidden(f"{owner.username} is not active and cannot own a Sigil.")
    if not Membership.objects.filter(user=owner, tenant=tenant).exists():
        raise Forbidden(f"{owner.username} is not a member of the tenant {tenant}.")
    token = mint()
    sigil = Sigil(
        name=name,
        owner=owner,
        tenant=tenant,
        scopes=kept_scopes,
        sources=kept_sources,
        expires_at=expires_at,
        token_hash=fingerprint(token),
    )
    try:
        with transaction.atomic():
            sigil.save(force_insert=True)
    except IntegrityError as error:
        raise NameTaken(f"The tenant {tenant} has a Sigil {name} already; names are not used twice.") from error
    return sigil, token


def rotate(sigil: Sigil) -> str:
    """Give a Sigil a new token; the old one opens nothing from here on."""
    token = mint()
    sigil.token_hash = fingerprint(token)
    sigil.save(update_fields=["token_hash"])
    return token


def revoke(sigil: Sigil) -> bool:
    """End a Sigil for ever.

    Returns:
        Whether it was this call that ended it.
    """
    changed = Sigil.objects.filter(pk=sigil.pk, revoked_at__isnull=True).update(revoked_at=Now())
    sigil.refresh_from_db(fields=["revoked_at"])
    return changed == 1


def checked_scopes(scopes: Iterable[str]) -> list[str]:
    """The scopes sorted and without repetition.

    Raises:
        Invalid: none is given, or one is not a scope.
    """
    found = sorted({str(scope) for scope in scopes})
    known = [scope.value for scope in Scope]
    unknown = [scope for scope in found if scope not in known]
    if unknown:
        raise Invalid(f"There is no scope {unknown[0]!r}; the scopes are {', '.join(known)}.")
    if not found:
        raise Invalid(f"A Sigil needs at least one scope of {', '.join(known)}.")
    return found


def _checked_sources(sources: Iterable[str]) -> list[str]:
    found = sorted(set(sources))
    for source in found:
        if not _SOURCE.fullmatch(source):
            raise Invalid(f"{source!r} is no source: 1 to 20 lower-case letters, digits, dashes or underscores.")
    return found
