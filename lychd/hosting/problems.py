"""Refusals that the host answers itself, before any application sees the request (RFC 9457 problem details)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal; `body` is what goes over the wire."""

    status: HTTPStatus
    code: str
    detail: str

    @property
    def body(self) -> bytes:
        """The problem as `application/problem+json`."""
        problem = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
            "code": self.code,
        }
        return json.dumps(problem).encode()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that belong to the body."""
        return [(b"Content-Type", b"application/problem+json"), (b"Content-Length", b"%d" % len(self.body))]


def body_too_large(limit: int) -> Problem:
    """413: the request body is larger than the host takes."""
    detail = f"The request body is larger than {limit} bytes."
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail)


RESTARTING = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "restarting", "The server is restarting; try again soon.")
BAD_SUBPROTOCOL = Problem(HTTPStatus.BAD_REQUEST, "bad_request", "A WebSocket subprotocol is not ASCII.")
FAILED = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Something went wrong in the server.")
