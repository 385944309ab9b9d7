"""The first account and the local token, so that a fresh installation can be used at once from its own machine.

Runs at every start and changes nothing that is in order. It never opens again what somebody closed: an operator
Sigil that was revoked stays revoked. Who can read the data folder is the operator: the folder holds the database too.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import structlog
from django.db import connection, transaction

from lychd.sigils import tokens
from lychd.sigils.models import Membership, Sigil, User
from runs.authority import Scope
from runs.errors import NotFound, Refused

log = structlog.get_logger()

USERNAME = "operator"
SIGIL = "operator"
TENANT = "default"
TOKEN_FILE = "operator.token"  # noqa: S105 a file's name
SOURCES = ("cli",)
# Two starts at once must not both make the account; any constant does, if nobody else uses it.
_LOCK = 0x5161_6C73


class DataFolderRefused(Refused):
    """The data folder cannot be written."""

    code, title = "data_folder_refused", "Data folder not writable"


@dataclass(frozen=True, slots=True)
class OperatorAccount:
    """What `lychd up` tells.

    `password` is there only when the account was made by this very call; `token_path` is None when the local Sigil
    was revoked.
    """

    username: str
    password: str | None
    token_path: Path | None


def ensure_operator(data_dir: Path) -> OperatorAccount:
    """See to it that somebody can log in, and that commands on this machine have a token.

    Args:
        data_dir: folder of the token file, made when absent.

    Returns:
        The account that owns the local Sigil: `operator`, or the oldest superuser that stands in for it.

    Raises:
        DataFolderRefused: the token cannot be kept there.
    """
    path = data_dir / TOKEN_FILE
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        user, password = _ensure_user()
        Membership.objects.get_or_create(user=user, tenant=TENANT)
        token = _ensure_sigil(user, _kept(path))
    revoked = Sigil.objects.filter(tenant=TENANT, name=SIGIL, revoked_at__isnull=False).exists()
    if revoked:
        log.warning("sigils.operator_revoked", sigil=SIGIL)
        return OperatorAccount(user.username, password, None)
    if token is not None:
        _write(path, token)
    else:
        _narrow(path)
    return OperatorAccount(user.username, password, path)


def person(username: str | None) -> User:
    """In whose name a command of this machine acts: the named person, else `operator`, else the only superuser.

    Raises:
        NotFound: there is no such person, or nobody stands out.
    """
    if username is not None:
        named = User.objects.filter(username=username).first()
        if named is None:
            raise NotFound(f"There is no user {username}.")
        return named
    superusers = list(User.objects.filter(is_superuser=True, is_active=True).order_by("date_joined", "id")[:2])
    chosen = User.objects.filter(username=USERNAME).first() or (superusers[0] if len(superusers) == 1 else None)
    if chosen is None:
        raise NotFound("There is no operator account, and more or less than one superuser.")
    return chosen


def _ensure_user() -> tuple[User, str | None]:
    """The account, and its password if it was made just now."""
    superusers = User.objects.filter(is_superuser=True, is_active=True)
    found = superusers.filter(username=USERNAME).first() or superusers.order_by("date_joined", "id").first()
    if found is not None:
        return found, None
    name = USERNAME
    while User.objects.filter(username=name).exists():
        # Somebody who is no superuser, or no longer active, has the name; their rights are not ours to widen.
        name = f"{USERNAME}-{secrets.token_hex(3)}"
    password = secrets.token_urlsafe(18)
    user = User.objects.create_superuser(username=name, email="", password=password)
    log.info("sigils.operator_made", username=name)
    return user, password


def _ensure_sigil(owner: User, kept: str | None) -> str | None:
    """A token that must be written to the file; None when the one there is good, or the Sigil revoked."""
    sigil = Sigil.objects.filter(tenant=TENANT, name=SIGIL).select_related("owner").first()
    if sigil is None:
        return tokens.create(SIGIL, owner, [scope.value for scope in Scope], tenant=TENANT, sources=SOURCES)[1]
    if sigil.revoked_at is not None:
        return None
    if sigil.owner != owner and not (sigil.owner.is_active and sigil.owner.is_superuser):
        sigil.owner = owner
        sigil.save(update_fields=["owner"])
    if kept is not None and tokens.fingerprint(kept) == sigil.token_hash:
        return None
    return tokens.rotate(sigil)


def _kept(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, token: str) -> None:
    """Put the token in place whole or not at all, readable to its owner alone from the first moment on."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(token + "\n")
                file.flush()
                os.fsync(descriptor)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise DataFolderRefused(f"The token cannot be kept in {path}: {error.strerror}.") from error


def _narrow(path: Path) -> None:
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise DataFolderRefused(f"The token in {path} cannot be protected: {error.strerror}.") from error
