"""JSON at the edge: bodies read by the one law of payloads, answers written in UTF-8 and never with NaN."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import BaseRenderer
from ninja.responses import NinjaJSONEncoder

from lychd.web.refusals import BodyTooLarge, UnsupportedMediaType
from runs import payloads

_UTF8 = frozenset({"", "utf-8", "utf8"})


class _Encoder(NinjaJSONEncoder):
    def default(self, o: Any) -> Any:
        # Django's encoder cuts times to milliseconds; a time that is also part of a cursor must stay whole.
        if isinstance(o, datetime):
            return o.isoformat().replace("+00:00", "Z")
        if isinstance(o, timedelta):
            return o.total_seconds()
        if isinstance(o, set | frozenset):
            return sorted(o)
        return super().default(o)


def dumps(value: Any) -> bytes:
    """JSON text in UTF-8; half a surrogate pair becomes its JSON escape.

    Raises:
        ValueError: the value holds NaN or Infinity.
        TypeError: a part has no JSON form.
    """
    text = json.dumps(value, cls=_Encoder, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def pointer(path: Sequence[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a path."""
    return payloads.pointer(path)


class JsonParser(Parser):
    """Reads request bodies: JSON only, in UTF-8, within the bounds of `runs.payloads`."""

    def parse_body(self, request: HttpRequest) -> Any:
        """The value of the body.

        Raises:
            UnsupportedMediaType: the body is not declared as JSON in UTF-8.
            Malformed, Invalid, TooLarge: as `runs.payloads.parse`.
        """
        charset = (request.content_params or {}).get("charset", "").lower()
        if request.content_type != "application/json" or charset not in _UTF8:
            raise UnsupportedMediaType
        if len(request.body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge
        return payloads.parse(request.body, settings.DATA_UPLOAD_MAX_MEMORY_SIZE, "request body")


class JsonRenderer(BaseRenderer):
    """Writes answers."""

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:  # noqa: ARG002 ninja's signature
        """The body of the answer; see `dumps`."""
        return dumps(data)
