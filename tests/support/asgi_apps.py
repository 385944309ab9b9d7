"""A small ASGI application for the host's tests, and the process that serves it.

`python -m tests.support.asgi_apps '{"lifespan": "good", …}'` serves `Demo` until it is stopped. Standard output
carries one word a line for the tests to wait on; the log goes to standard error as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from lychd import logs, vessel

CHUNK = b"x" * 65536


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Demo:
    """What happens at start and stop is chosen by name; each path shows one property of the host."""

    def __init__(self, lifespan: str = "good", code: int = 0) -> None:
        self.lifespan = lifespan
        self.code = code
        self.sent = 0
        self.stalled = False
        self.gone = False
        self.heard = 0
        self.hear = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.live(scope, receive, send)
            return
        name = scope["path"].strip("/").split("/")[0]
        prefix = "http" if scope["type"] == "http" else "ws"
        await getattr(self, f"{prefix}_{name}")(scope, receive, send)

    # The lifespan

    async def live(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        state = scope["state"]
        state["loop"] = id(asyncio.get_running_loop())
        say("starting")
        try:
            await getattr(self, f"start_{self.lifespan}", self.start_good)(state)
        except ValueError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            say("closed what was open")
            return
        await send({"type": "lifespan.startup.complete"})
        if self.lifespan == "dies":
            await asyncio.sleep(0)
            raise RuntimeError("the guard fell over")
        await receive()
        say("stopping")
        stop = getattr(self, f"stop_{self.lifespan}", None)
        if stop:
            await stop(send)
        await send({"type": "lifespan.shutdown.complete"})

    async def start_good(self, state: dict[str, Any]) -> None:
        state["words"] = "from the lifespan"

    async def start_refuses(self, state: dict[str, Any]) -> None:
        raise ValueError("the database\nis not there")

    async def start_raises(self, state: dict[str, Any]) -> None:
        raise KeyError("no such thing")

    async def start_slow(self, state: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            say("closed what was open")

    async def start_loses(self, state: dict[str, Any]) -> None:
        threading.Thread(target=state["lychd.stop"], args=(self.code, "the guard was lost")).start()

    async def stop_hangs(self, send: Any) -> None:
        say("hanging")
        await asyncio.Event().wait()

    async def stop_fails(self, send: Any) -> None:
        await send({"type": "lifespan.shutdown.failed", "message": "a worker is still alive"})

    async def stop_leaves(self, send: Any) -> None:
        self.left = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

    async def stop_blocks(self, send: Any) -> None:
        self.left = asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

    # HTTP

    async def http_scope(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen = {
            "root_path": scope["root_path"],
            "headers": sorted(name.decode() for name, _ in scope["headers"]),
            "words": scope["state"]["words"],
            "loops": [scope["state"]["loop"], id(asyncio.get_running_loop())],
            "pid": os.getpid(),
            "mine": scope["state"].setdefault("mine", len(scope["state"])),
            "counts": [self.sent, self.stalled, self.gone, self.heard],
        }
        await answer(send, json.dumps(seen).encode())

    async def http_size(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        await answer(send, str(size).encode())

    async def http_slow(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        say("slow began")
        await scope["state"]["lychd.stopping"].wait()
        await answer(send, b"finished after the stop began")

    async def http_endless(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        say("endless began")
        await asyncio.Event().wait()

    async def http_raises(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        raise RuntimeError("on purpose")

    async def http_silent(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        return

    async def http_polite(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.pour(scope, lambda: send({"type": "http.response.body", "body": CHUNK, "more_body": True}))

    async def http_rude(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            self.sent += len(CHUNK)

    async def http_hear(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.hear.set()
        await answer(send, b"")

    async def http_stop(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        scope["state"]["lychd.stop"](self.code, "asked by a test")
        await answer(send, b"")

    async def http_hurry(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    # WebSocket

    async def ws_echo(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        say("socket open")
        await send({"type": "websocket.send", "text": json.dumps([scope["state"]["loop"], scope["root_path"]])})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        say("socket closed", message["code"])

    async def ws_pending(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        say("pending")
        await receive()

    async def ws_close(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        code = int(scope["path"].rsplit("/", 1)[1])
        await send({"type": "websocket.close", "code": code, "reason": "as asked"})

    async def ws_raises(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        raise RuntimeError("on purpose")

    async def ws_polite(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.pour(scope, lambda: send({"type": "websocket.send", "bytes": CHUNK}))

    async def ws_rude(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "bytes": CHUNK})
            self.sent += len(CHUNK)

    async def ws_deaf(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.hear.wait()
        while (await receive())["type"] == "websocket.receive":
            self.heard += 1

    async def pour(self, scope: dict[str, Any], once: Any) -> None:
        """Send as fast as the reader takes it, note when it takes nothing, end when it is gone."""
        writable = scope["extensions"]["lychd.writable"]["wait"]
        while True:
            waiting = asyncio.ensure_future(writable())
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            self.stalled = self.stalled or not done
            if not await waiting:
                break
            await once()
            self.sent += len(CHUNK)
        self.gone = True


async def answer(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def give_up_after(seconds: float) -> None:
    # Not before the host has installed its reactor.
    from lychd.hosting import request

    request.STALLED_AFTER = seconds


def ping_after(seconds: float) -> None:
    # As above: the server must not be imported before its reactor, and it has no setting for this.
    from twisted.internet import reactor

    clock: Any = reactor
    for call in clock.getDelayedCalls():
        server = getattr(call.func, "__self__", None)
        if hasattr(server, "ping_interval"):
            server.ping_interval = seconds


def main(options: dict[str, Any]) -> int:
    logs.configure("json", "debug")
    demo = Demo(options.pop("lifespan", "good"), options.pop("code", 0))
    if options.pop("bad_hook", False):
        options["on_listening"] = lambda url: 1 / 0
    if stalled_after := options.pop("stalled_after", None):
        options["on_listening"] = lambda url: (give_up_after(stalled_after), say("listening", url))
    if ping_interval := options.pop("ping_interval", None):
        options["on_listening"] = lambda url: (ping_after(ping_interval), say("listening", url))
    options = {
        "bind": "127.0.0.1:0",
        "startup_timeout": 20.0,
        "drain_seconds": 10.0,
        "shutdown_timeout": 10.0,
        "on_listening": lambda url: say("listening", url),
        "on_stopping": lambda: say("told to stop"),
        **options,
    }
    return vessel.run(demo, **options)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
