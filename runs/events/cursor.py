"""The place of a reader in a Run's live stream: opaque to clients, `"<epoch>-<seq>"` to us (ruling 33).

The epoch names one generation of a channel, so that a number from before a restart never passes for one from after it.
Knows nothing of channels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runs.errors import Refused

_FORM = re.compile(r"([0-9a-z]{1,16})-(-1|0|[1-9][0-9]{0,9})", re.ASCII)


class BadCursor(Refused):
    """This is not a cursor that was given out by the stream."""

    code, title, status = "bad_cursor", "Not a cursor", 400


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything up to and including `seq` of the generation `epoch` was seen; -1 means: nothing yet."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


def parse(text: str) -> Cursor:
    """Read a cursor as a client sent it.

    Raises:
        BadCursor: the text has not the form of a cursor. (A cursor of another generation is one; it leads to a resync.)
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadCursor
    return Cursor(found[1], int(found[2]))
