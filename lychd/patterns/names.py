"""File names as text that can be stored and read: a name is bytes, may hold line ends, and may be no Unicode at all."""

from __future__ import annotations

import json
import os

# Of one path as JSON. A report shows about 1,200 paths at most and must stay below 1 MiB with all of them this long.
SHOWN_BYTES = 400
_CUT = "…"


def shown(path: bytes, most: int = SHOWN_BYTES) -> str:
    """A path for people: bytes that are no UTF-8 as `\\xNN`, what cannot be printed by its escape, cut in the middle.

    A backslash of the name itself is doubled, so that two names never look the same unless they were cut.

    Args:
        path: as the system has it.
        most: bytes of the result as JSON text.
    """
    pieces = [_piece(character) for character in os.fsdecode(path)]
    if sum(map(_size, pieces)) <= most:
        return "".join(pieces)
    half = (most - _size(_CUT)) // 2
    return "".join(_upto(pieces, half)) + _CUT + "".join(reversed(_upto(pieces[::-1], half)))


def _upto(pieces: list[str], most: int) -> list[str]:
    left = most
    for count, piece in enumerate(pieces):
        left -= _size(piece)
        if left < 0:
            return pieces[:count]
    return pieces


def _piece(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def _size(piece: str) -> int:
    return (
        len(piece) if piece.isalnum() and piece.isascii() else len(json.dumps(piece, ensure_ascii=False).encode()) - 2
    )
