"""Makes text from outside harmless to print: no control characters, no escape sequences, nothing endless.

What a Run says reaches a person's terminal; none of it may move the cursor, change colours, or write into the
clipboard. Control characters become visible escapes; direction marks, which can disguise a text, too.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime
from typing import Any

LINE = 400
BLOCK = 20_000
# Categories: control, format (but for joiners that scripts need), surrogate, private use, unassigned line breaks.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_NEEDED = frozenset("\u200c\u200d")


def harmless(text: str, most: int = LINE, *, keep: str = "") -> str:
    """The text with everything invisible or active written out, cut to `most` characters.

    Args:
        most: characters of the original that are shown; the number of the others is told.
        keep: control characters that stay, such as the line break.
    """
    shown = "".join(_visible(mark, keep) for mark in text[:most])
    left = len(text) - most
    return shown if left <= 0 else f"{shown}… ({left:,} more characters)"


def one_line(value: Any, most: int = LINE) -> str:
    """Any JSON value as harmless text on one line; text as it is, everything else as compact JSON."""
    if isinstance(value, str):
        return harmless(value, most)
    return harmless(json.dumps(value, ensure_ascii=False, default=str), most)


def block(value: Any, most: int = BLOCK) -> str:
    """Any JSON value as harmless, indented JSON."""
    return harmless(json.dumps(value, ensure_ascii=False, indent=2, default=str), most, keep="\n")


def block_of_text(text: str, most: int = BLOCK) -> str:
    """Text of several lines, harmless."""
    return harmless("\n".join(text.splitlines()), most, keep="\n")


def sentence(text: str) -> str:
    """The text with exactly one mark at its end."""
    bare = text.strip().rstrip(".")
    return bare if bare.endswith(("?", "!", "…")) else f"{bare}."


def clock(at: datetime) -> str:
    """The local time of day."""
    return at.astimezone().strftime("%H:%M:%S")


def moment(value: Any) -> str:
    """A time of the interface as local date and time; `-` when there is none."""
    if not isinstance(value, str):
        return "-"
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return harmless(value, 40)


def _visible(mark: str, keep: str) -> str:
    if mark in keep or mark in _NEEDED:
        return mark
    if mark == "\n":
        return "⏎"
    if mark == "\t":
        return " "
    if unicodedata.category(mark) not in _HIDDEN:
        return mark
    code = ord(mark)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
