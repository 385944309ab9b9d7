"""JSON and text of a question as a person reads it: tables and lists, whole, exact and escaped.

What cannot be seen must not mislead: characters that reorder, hide or imitate are named instead of printed. Numbers
keep every digit of the database's text. Nothing is left out; what is long is folded.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from runs.admin.shown import size as shown_size

# Above so many parts a table is no help to anybody; the value is then shown as JSON text.
MOST_PARTS = 5_000
DEEPEST = 6
SHOWN_ITEMS = 20
LONG_TEXT = 2_000
WIDEST_TABLE = 8
MOST_INDENTED = 12
MOST_COMPARED = 400

_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
_NEEDED = frozenset("\n\t\u200c\u200d")  # the joiners spell words in several scripts


class Number(str):
    """A number by its digits as they are stored."""

    __slots__ = ()


def parse(text: str) -> Any:
    """JSON text whose numbers stay as they are written."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def plain(text: str) -> SafeString:
    """Text, escaped; a character that cannot be seen is named."""
    if text.isprintable() and not any(unicodedata.category(char) in _UNSEEN for char in text):
        return escape(text)
    parts: list[str] = [escape(char) if _seen(char) else _named(char) for char in text.replace("\r\n", "\n")]
    return mark_safe("".join(parts))  # noqa: S308 each part is escaped


def bare(text: str) -> str:
    """The same for places that take text alone, as a page's title."""
    return "".join(char if _seen(char) else f"[U+{ord(char):04X}]" for char in text)


def _seen(char: str) -> bool:
    return char in _NEEDED or unicodedata.category(char) not in _UNSEEN


def _named(char: str) -> SafeString:
    name = unicodedata.name(char, "a control character")
    return format_html('<span class="consent-odd" title="{}">U+{}</span>', name.lower(), f"{ord(char):04X}")


def block(text: str) -> SafeString:
    """Text of several lines."""
    return format_html('<div class="consent-text" dir="auto">{}</div>', plain(text))


def shown(value: Any) -> SafeString:
    """A parsed value as HTML."""
    if _is_large(value):
        return format_html('<pre class="lychd-block">{}</pre>', plain(_as_json(value)))
    return _value(value, 0)


def _value(value: Any, depth: int) -> SafeString:
    if isinstance(value, Number):
        return format_html('<span class="consent-number">{}</span>', plain(value))
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return format_html('<code class="consent-word">{}</code>', json.dumps(value))
    if not value:
        return mark_safe(f'<span class="quiet">{"empty list" if isinstance(value, list) else "nothing"}</span>')  # noqa: S308 constants
    if depth >= DEEPEST:
        return format_html('<pre class="lychd-block">{}</pre>', plain(_as_json(value)))
    if isinstance(value, dict):
        return _table(cast("dict[str, Any]", value), depth)
    return _list(cast("list[Any]", value), depth)


def _text(value: str) -> SafeString:
    if not value:
        return mark_safe('<span class="quiet">empty text</span>')
    if len(value) > LONG_TEXT:
        return format_html(
            '<details class="lychd-fold"><summary>{} characters: {}…</summary>{}</details>',
            f"{len(value):,}",
            plain(value[:80].replace("\n", " ")),
            block(value),
        )
    if "\n" in value:
        return block(value)
    # Paths break at their slashes first.
    return format_html("<bdi>{}</bdi>", mark_safe("/<wbr>".join(map(plain, value.split("/")))))  # noqa: S308 escaped


def _table(value: dict[str, Any], depth: int) -> SafeString:
    before, after = value.get("before"), value.get("after")
    if set(value) == {"before", "after"} and isinstance(before, str) and isinstance(after, str):
        return _change(before, after)
    rows = format_html_join("", "{}", ((_row(key, item, depth),) for key, item in value.items()))
    columns = '<colgroup><col class="consent-key"><col></colgroup>'
    return format_html(f'<table class="consent-facts">{columns}<tbody>{{}}</tbody></table>', rows)


def _row(key: str, item: Any, depth: int) -> SafeString:
    """A value beside its key; one that is a table itself below it, with all the room there is."""
    name, value = plain(key), _value(item, depth + 1)
    if isinstance(item, (dict, list)) and item:
        return format_html(
            '<tr class="consent-deep"><th scope="colgroup" colspan="2"><bdi>{}</bdi></th></tr>'
            '<tr><td colspan="2">{}</td></tr>',
            name,
            value,
        )
    return format_html('<tr><th scope="row"><bdi>{}</bdi></th><td>{}{}</td></tr>', name, value, _as_size(key, item))


def _as_size(key: str, value: Any) -> SafeString:
    """A number of bytes in words, beside its digits."""
    known = key in {"bytes", "size"} or key.endswith(("_bytes", "_size"))
    if not known or not isinstance(value, Number) or not value.isdecimal() or len(value) > 15 or int(value) < 1024:
        return SafeString("")
    return format_html(' <span class="quiet">{}</span>', shown_size(int(value)))


def _list(items: list[Any], depth: int) -> SafeString:
    columns = _columns(items)
    if columns:
        head = format_html_join("", '<th scope="col"><bdi>{}</bdi></th>', ((plain(name),) for name in columns))
        return _folded(items, partial(_rows, columns=columns, head=head, depth=depth))
    return _folded(items, partial(_items, depth=depth))


def _folded(items: list[Any], drawn: Callable[[list[Any]], SafeString]) -> SafeString:
    first, rest = items[:SHOWN_ITEMS], items[SHOWN_ITEMS:]
    if not rest:
        return drawn(first)
    return format_html(
        '{}<details class="lychd-fold"><summary>and {} more</summary>{}</details>',
        drawn(first),
        f"{len(rest):,}",
        drawn(rest),
    )


def _rows(items: Iterable[Any], columns: list[str], head: SafeString, depth: int) -> SafeString:
    rows = format_html_join(
        "",
        "<tr>{}</tr>",
        (
            (format_html_join("", "<td>{}</td>", ((_value(item[name], depth + 1),) for name in columns)),)
            for item in items
        ),
    )
    return format_html(
        '<div class="lychd-scroll"><table class="consent-rows"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>",
        head,
        rows,
    )


def _items(items: Iterable[Any], depth: int) -> SafeString:
    return format_html(
        '<ul class="consent-items">{}</ul>',
        format_html_join("", "<li>{}</li>", ((_value(item, depth + 1),) for item in items)),
    )


def _columns(items: list[Any]) -> list[str] | None:
    """The keys of a list of objects that all have the same few keys and simple values; None for any other list."""
    if not all(isinstance(item, dict) for item in items):
        return None
    columns = list(items[0])
    if not 1 <= len(columns) <= WIDEST_TABLE:
        return None
    same = all(
        item.keys() == items[0].keys() and not any(isinstance(part, (dict, list)) for part in item.values())
        for item in items
    )
    return columns if same else None


def _change(before: str, after: str) -> SafeString:
    """What a text becomes, line by line; told by sign as well as by colour."""
    old, new = before.splitlines() or [""], after.splitlines() or [""]
    if len(old) + len(new) > MOST_COMPARED:
        return format_html(
            '<table class="consent-facts"><colgroup><col class="consent-key"><col></colgroup><tbody>'
            '<tr><th scope="row">before</th><td>{}</td></tr>'
            '<tr><th scope="row">after</th><td>{}</td></tr></tbody></table>',
            _text(before),
            _text(after),
        )
    lines = format_html_join("\n", '<span class="consent-{}">{} {}</span>', _compared(old, new))
    return format_html('<pre class="lychd-block consent-change">{}</pre>', lines)


def _compared(old: list[str], new: list[str]) -> Iterator[tuple[str, str, SafeString]]:
    words = {"+": "added", "-": "removed", " ": "kept"}
    for line in difflib.ndiff(old, new):
        if line[0] in words:
            yield words[line[0]], line[0], plain(line[2:])


def _is_large(value: Any) -> bool:
    parts, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting.extend(cast("dict[str, Any]", part).values())
        elif isinstance(part, list):
            waiting.extend(cast("list[Any]", part))
        parts += 1
        if parts > MOST_PARTS:
            return True
    return False


def _as_json(value: Any, indent: str = "") -> str:
    """Indented JSON in which numbers have their digits. Indentation stops growing, else deep values would swell."""
    deeper = indent + "  " if len(indent) < MOST_INDENTED else indent
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict) and value:
        pairs = cast("dict[str, Any]", value).items()
        inner = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_as_json(item, deeper)}" for key, item in pairs)
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        items = cast("list[Any]", value)
        return "[\n" + ",\n".join(f"{deeper}{_as_json(item, deeper)}" for item in items) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)
