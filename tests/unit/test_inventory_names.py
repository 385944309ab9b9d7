"""File names as text: any bytes can be shown, stored and told apart; kinds come from names alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lychd.patterns.kinds import family_of, kind_of
from lychd.patterns.names import shown


@given(st.binary(max_size=1000))
def test_any_name_is_text_that_can_be_stored_printed_and_is_short(name: bytes) -> None:
    text = shown(name)
    assert len(json.dumps(text, ensure_ascii=False).encode()) - 2 <= 400
    assert text.isprintable()


@given(st.lists(st.binary(max_size=60), max_size=20, unique=True))
def test_names_that_are_not_shortened_are_told_apart(names: list[bytes]) -> None:
    assert len({shown(name) for name in names}) == len(names)


def test_a_long_path_keeps_its_beginning_and_its_end() -> None:
    text = shown(b"begin/" + b"x" * 1000 + b"/end.txt", 50)
    assert text.startswith("begin/")
    assert text.endswith("/end.txt")
    assert "…" in text
    assert len(json.dumps(text, ensure_ascii=False).encode()) - 2 <= 50


@pytest.mark.parametrize(
    ("name", "kind", "family"),
    [
        (b"a.txt", "txt", "text"),
        (b"PHOTO.JPG", "jpg", "image"),
        (b"archive.tar.gz", "gz", "application"),
        (b"Makefile", "", "other"),
        (b".gitignore", "", "other"),
        (b"..x", "", "other"),
        (b"ends.", "", "other"),
        (b"a.not an extension", "", "other"),
        (b"a.toolongforanextension", "", "other"),
        (b"a.caf\xc3\xa9", "", "other"),
        (b"a.nobodyknows", "nobodyknows", "other"),
    ],
)
def test_a_kind_is_an_extension_that_looks_like_one(name: bytes, kind: str, family: str) -> None:
    assert (kind_of(name), family_of(kind)) == (kind, family)
