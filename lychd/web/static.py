"""Static files over ASGI: WhiteNoise knows the files and their headers, this module only sends them.

WhiteNoise's own middleware hands Django a synchronous file iterator, which under ASGI costs threads and a warning
for each file. Here a file is read in one piece outside the loop. Files are found in the apps at start.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from whitenoise.middleware import WhiteNoiseMiddleware

from lychd.web.request_ids import Receive, Scope, Send

_DROPPED = frozenset({"access-control-allow-origin"})  # our files are for our pages


class _Files(WhiteNoiseMiddleware):
    """The known files; a folder of collected files need not exist."""

    def add_files(self, root: Any, prefix: str | None = None) -> None:
        if Path(root).is_dir():
            super().add_files(root, prefix=prefix)


class StaticFiles:
    """An application that answers for static files and leaves everything else alone."""

    def __init__(self) -> None:
        self._known: Any = _Files(_nobody)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> bool:  # noqa: ARG002 ASGI's signature
        """Answer when the path is a static file.

        Returns:
            Whether it was; if not, nothing has been sent or received.
        """
        path = scope["path"]
        if not path.startswith(self._known.static_prefix):
            return False
        found = (
            await asyncio.to_thread(self._known.find_file, path)
            if self._known.autorefresh
            else self._known.files.get(path)
        )
        if found is None:
            return False
        status, headers, body = await asyncio.to_thread(_read, found, scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return True


def _read(file: Any, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    asked = {
        "HTTP_" + name.decode("latin-1").upper().replace("-", "_"): value.decode("latin-1")
        for name, value in scope.get("headers", ())
    }
    response = file.get_response(scope["method"], asked)
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers
        if name.lower() not in _DROPPED
    ]
    headers.append((b"x-content-type-options", b"nosniff"))
    if response.file is None:
        return int(response.status), headers, b""
    with response.file as opened:
        return int(response.status), headers, opened.read()


def _nobody(request: Any) -> Any:
    raise AssertionError(request)
