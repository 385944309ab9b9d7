"""Keyset pages: a cursor names the last row seen, so lists stay stable under inserts and are never counted.

Cursors are opaque to clients but not secret: a forged one shows nothing that a filter would not. Knows no framework
and asks no database.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from runs.errors import Refused

DEFAULT_LIMIT = 50
MOST = 200
_LONGEST = 200


class BadCursor(Refused):
    """The cursor is none that this list gave out."""

    code, title = "bad_cursor", "Bad cursor"


@dataclass(frozen=True, slots=True)
class Cursor:
    """The sort key of the last row of a page: its time (UTC, microseconds) and, among equal times, its id."""

    at: datetime
    id: uuid.UUID

    def encode(self) -> str:
        """The text for clients: base64url without padding."""
        text = json.dumps([self.at.astimezone(UTC).isoformat(), str(self.id)], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Page[Item]:
    """One page; `next` is the cursor of the next one, None on the last."""

    items: Sequence[Item]
    next: str | None


def decode(text: str) -> Cursor:
    """The cursor that `Cursor.encode` wrote.

    Raises:
        BadCursor: it is not exactly such a text.
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(text[:_LONGEST])
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        at, identity = json.loads(raw.decode("ascii"))
        cursor = Cursor(datetime.fromisoformat(at), uuid.UUID(identity))
        if cursor.at.tzinfo is None or cursor.encode() != text:
            raise ValueError(text)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
        raise BadCursor from error
    return cursor


def decode_optional(text: str | None) -> Cursor | None:
    """As `decode`; None and the empty text mean the first page."""
    return decode(text) if text else None


def page[Item](rows: Sequence[Item], limit: int, key: Callable[[Item], Cursor]) -> Page[Item]:
    """The page of rows that were asked with `limit + 1`: the row too many only says that there is a next page."""
    if len(rows) <= limit:
        return Page(rows, None)
    items = rows[:limit]
    return Page(items, key(items[-1]).encode())
