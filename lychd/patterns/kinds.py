"""Of which kind a file is, by its name alone: its extension, and the family of media types that it belongs to."""

from __future__ import annotations

import mimetypes
from functools import lru_cache

NO_KIND = ""
OTHER = "other"
_LONGEST = 16


def kind_of(name: bytes) -> str:
    """The extension in small letters without its dot; empty where there is none that looks like one."""
    stem, dot, extension = name.rpartition(b".")
    if not dot or not stem.strip(b".") or len(extension) > _LONGEST or not extension.isalnum():
        return NO_KIND
    return extension.decode("ascii").lower()


@lru_cache(maxsize=1024)
def family_of(kind: str) -> str:
    """`text`, `image`, `audio`, `video`, `font`, `application`, …, or `other` for what is not known."""
    if not kind:
        return OTHER
    media, packed = _media().guess_type(f"x.{kind}")
    if media is None:
        return "application" if packed else OTHER
    return media.partition("/")[0]


@lru_cache(maxsize=1)
def _media() -> mimetypes.MimeTypes:
    # The table of Python itself: what the machine adds to it would make reports differ from host to host.
    return mimetypes.MimeTypes()
