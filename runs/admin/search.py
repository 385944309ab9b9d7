"""What may be typed into the search field of a list: qualifiers that an index answers exactly, or a bare id.

There is no search for parts of words: over a million rows it would read them all.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model

_TERM = re.compile(r'(?P<word>[a-z]+):(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))|(?P<bare>\S+)')


class NotUnderstood(ValueError):
    """The text is not a search of this list; the message says why."""


def parse(text: str, model: type[Model], qualifiers: Mapping[str, str], bare: str) -> dict[str, Any]:
    """The columns and the values they must have.

    Args:
        text: as it was typed.
        model: whose columns are meant; their types judge the values.
        qualifiers: word before the colon → column.
        bare: the column that a UUID without a qualifier is looked up in.

    Raises:
        NotUnderstood: a word is no qualifier of this list, or a value cannot be one of its column.
    """
    wanted: dict[str, Any] = {}
    for term in _TERM.finditer(text):
        if term["bare"] is not None:
            column, value = bare, term["bare"]
            if not _is_uuid(value):
                raise NotUnderstood(f"“{_short(value)}” is neither an id nor one of {listed(qualifiers)}.")
        else:
            if term["word"] not in qualifiers:
                raise NotUnderstood(f"“{_short(term['word'])}:” is none of {listed(qualifiers)}.")
            column, value = qualifiers[term["word"]], term["quoted"] if term["plain"] is None else term["plain"]
        wanted[column] = _typed(model, column, value)
    return wanted


def listed(qualifiers: Mapping[str, str]) -> str:
    """The qualifiers as a sentence names them."""
    return ", ".join(f"{word}:" for word in qualifiers)


def _typed(model: type[Model], column: str, value: str) -> Any:
    field: Any = model._meta.get_field(column)  # noqa: SLF001 Django's own way
    target = field.target_field if field.is_relation else field
    try:
        found = target.to_python(value)
    except (ValidationError, ValueError, OverflowError) as error:
        raise NotUnderstood(f"“{_short(value)}” is no value of {field.verbose_name}.") from error
    if found is None or "\0" in value:
        raise NotUnderstood(f"“{_short(value)}” is no value of {field.verbose_name}.")
    return found


def _is_uuid(value: str) -> bool:
    try:
        uuid.UUID(value)
    except ValueError:
        return False
    return True


def _short(value: str) -> str:
    return value if len(value) <= 60 else value[:60] + "…"
