"""Text from outside is harmless on a terminal, whatever it holds."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lychd.cli.texts import block, harmless, moment, one_line

# Moves, colours, window titles, clipboard writes, the eight-bit forms of all these, and marks that turn text around.
ACTIVE = [
    "\x1b[2J",
    "\x1b]52;c;cm0gLXJmIC8=\x07",
    "\x1b]0;title\x1b\\",
    "\x9b31m",
    "\x9d0;title\x9c",
    "\r\x08\x7f\x00",
    "\u202egnp.exe",
    "\u2066\u2069\ufeff\u200b\u00ad",
    "\u2028\u2029",
    "\ud800",
    "\U000e0041",
]


@pytest.mark.parametrize("text", ACTIVE)
def test_nothing_that_acts_on_a_terminal_comes_through(text: str) -> None:
    for shown in (harmless(text), one_line(text), one_line({text: [text]}), block({"a": text, text: 1})):
        assert not [
            mark for mark in shown if mark != "\n" and unicodedata.category(mark) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        ]
        shown.encode()


@given(st.text(alphabet=st.characters(), max_size=200))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    shown = harmless(text)
    assert "\n" not in shown
    assert "\x1b" not in shown
    shown.encode()


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    text = "naïve 日本語 🧪 می\u200cخواهم — “quoted”"  # noqa: RUF001 the point
    assert harmless(text) == text


def test_what_was_escaped_can_still_be_read() -> None:
    assert harmless("a\x1b[31mb\u202ec\nd\te") == "a\\x1b[31mb\\u202ec⏎d e"


def test_long_text_is_cut_and_says_how_much_is_left() -> None:
    assert harmless("x" * 1000, 10) == "xxxxxxxxxx… (990 more characters)"
    assert len(one_line({"a": "x" * 1_000_000})) < 500


def test_a_block_keeps_its_lines_and_nothing_else() -> None:
    assert block({"a": ["b\nc"]}) == '{\n  "a": [\n    "b\\nc"\n  ]\n}'


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (5, "-"), ("soon\x1b", "soon\\x1b")])
def test_a_time_that_is_none_does_no_harm(value: object, shown: str) -> None:
    assert moment(value) == shown
