"""Pages of admin lists by key: never counted, never an offset, and never more rows looked at than a bound.

A list runs along an index, newest first. Conditions that the index answers cost nothing; under any other condition a
page looks at `SCAN` rows of the index at most and then offers to look further. So each page of each list costs about
the same, however many rows there are and however rare the wanted ones.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet

SCAN = 20_000
_LONGEST = 400


class BadPosition(ValueError):
    """The position is none that this list gave out."""


@dataclass(frozen=True, slots=True)
class Order:
    """An index: under equality on `equal`, rows come by `key`, all descending. The key is unique within `equal`."""

    equal: frozenset[str]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first, and the positions from which the neighbouring pages are asked; None where there is none.

    `cut` says that the page ended because enough rows were looked at, not because it was full.
    """

    rows: list[Any]
    older: str | None
    newer: str | None
    cut: bool = False


def encode(values: Sequence[Any]) -> str:
    """A position as text for an address."""
    text = json.dumps([value if isinstance(value, int) else _text(value) for value in values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode(model: type[Model], key: Sequence[str], text: str) -> tuple[Any, ...]:
    """The values of a position.

    Raises:
        BadPosition: it is not one of this key.
    """
    fields = model._meta  # noqa: SLF001 Django's own way
    try:
        if len(text) > _LONGEST:
            raise BadPosition(text[:_LONGEST])
        raw: Any = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        values = tuple(fields.get_field(name).to_python(value) for name, value in zip(key, raw, strict=True))
        if None in values:
            raise BadPosition(text)
    except (ValueError, TypeError, ValidationError, OverflowError, RecursionError, binascii.Error) as error:
        raise BadPosition(text[:_LONGEST]) from error
    return values


def fetch(
    rows: QuerySet[Any],
    order: Order,
    *,
    indexed: Mapping[str, Any],
    other: Q,
    size: int,
    scan: int,
    older: str | None = None,
    newer: str | None = None,
) -> Page:
    """One page.

    Args:
        rows: what the person may see at all, with the columns that the list shows.
        order: the index to walk.
        indexed: equality conditions that it answers.
        other: what else must hold; judged row by row.
        size: rows of a full page.
        scan: most rows to look at under `other`.
        older, newer: position after which, in that direction, the page begins; neither means the newest page.

    Raises:
        BadPosition: the position is not one of this list.
    """
    back = newer is not None and older is None
    at = newer if back else older
    page = _walk(rows, order, indexed, other, size, at, scan, back=back)
    if back and page.newer is None and len(page.rows) < size:
        return _walk(rows, order, indexed, other, size, None, scan, back=False)
    return page


def _walk(
    rows: QuerySet[Any],
    order: Order,
    indexed: Mapping[str, Any],
    other: Q,
    size: int,
    at: str | None,
    scan: int,
    *,
    back: bool,
) -> Page:
    model = rows.model
    sort = [name if back else f"-{name}" for name in order.key]
    within = Q(**indexed)
    if at is not None:
        within &= _beyond(order.key, decode(model, order.key, at), "gt" if back else "lt")
    edge = None
    if other:
        walked = model._default_manager.filter(within)  # noqa: SLF001 Django's own way
        index = walked.order_by(*sort).values_list(*order.key)
        edge = next(iter(index[scan - 1 : scan]), None)
        if edge is not None:
            within &= _beyond(order.key, edge, "lt" if back else "gt", inclusive=True)
    found = list(rows.filter(within, other).order_by(*sort)[: size + 1])
    full = len(found) > size
    found = found[:size]
    further = encode(_position(found[-1], order.key)) if full else None if edge is None else encode(edge)
    if back:
        found.reverse()
        return Page(found, encode(_position(found[-1], order.key)) if found else at, further, not full and bool(edge))
    newest = encode(_position(found[0], order.key)) if found else at
    return Page(found, further, newest if at is not None else None, not full and edge is not None)


def _position(row: Any, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in key)


def _beyond(key: Sequence[str], values: Sequence[Any], direction: str, *, inclusive: bool = False) -> Q:
    """Past the position. The first part alone bounds the walk along the index, the rest decides among equals."""
    exact = Q(**dict(zip(key, values, strict=True))) if inclusive else Q()
    for place, name in enumerate(key):
        equal = dict(zip(key[:place], values, strict=False))
        exact |= Q(**equal, **{f"{name}__{direction}": values[place]})
    return Q(**{f"{key[0]}__{direction}e": values[0]}) & exact


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
