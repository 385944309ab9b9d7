"""Answering what a Run asks, at the terminal where it is followed: one line is read, and nothing waits for it.

The question is looked at afresh before anybody is asked, and the digest of what was shown goes with the answer. While
nobody answers, following goes on; when somebody else does, the question is taken back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from lychd.cli.command import sentences
from lychd.cli.connection import Connection
from lychd.cli.output import Output
from lychd.cli.texts import sentence
from lychd.client import Client, Event, Message
from runs.errors import LychdError

type Json = dict[str, Any]
type ReadLine = Callable[[], Awaitable[str]]


class Answering:
    """Offers the questions of one Run to the person at the terminal.

    Args:
        read: gives the next line that is typed, without its end; empty at the end of the input.
    """

    def __init__(self, client: Client, connection: Connection, out: Output, read: ReadLine) -> None:
        self._client, self._connection, self._out, self._read = client, connection, out, read
        self._asked: asyncio.Task[None] | None = None
        self._sending = False

    async def hear(self, message: Message) -> None:
        """Look at a message: a new question is asked, an answered one is taken back."""
        if not isinstance(message, Event):
            return
        if message.kind == "consent" and message.data.get("status") == "pending":
            await self.close()
            question = str(message.data.get("id"))
            self._asked = asyncio.create_task(self._ask(question), name="question at the terminal")
        elif message.kind in {"consent", "done"} or message.data.get("status") in {"queued", "running"}:
            await self.close()

    async def close(self) -> None:
        """Take back the question that is open; an answer that is on its way is waited for: its fate is told."""
        if self._asked is None:
            return
        task, self._asked = self._asked, None
        if not self._sending:
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _ask(self, question: str) -> None:
        try:
            found = await self._client.consent(question)
            if found.get("status") != "pending":
                return
            you = found.get("you") or {}
            if not you.get("may_decide"):
                if you.get("why_not"):
                    self._say(f"You cannot answer this here: {you['why_not']}")
                return
            self._out.line(
                ("          Answer y (grant) or n (deny), with a comment if you like; Enter leaves it open: ", "bold")
            )
            while (answer := _verdict(await self._read())) is not None:
                if isinstance(answer, str):
                    self._say(answer)
                    continue
                grant, comment = answer
                self._sending = True
                decided = await self._client.decide(question, grant=grant, comment=comment, digest=found.get("digest"))
                if decided.get("status") == "pending":
                    self._say("Noted; more people have to say yes.")
                return
        except LychdError as error:
            for line in sentences(error, self._connection):
                self._out.trouble(line)
        finally:
            self._sending = False

    def _say(self, text: str) -> None:
        self._out.line((f"{'':8}  {sentence(text)}", "yellow"))


def _verdict(line: str) -> tuple[bool, str] | str | None:
    """The verdict and the comment in a line; what is wrong with it; None when the question stays open."""
    word, _, comment = line.strip().partition(" ")
    if not word:
        return None
    match word.lower().rstrip(",:;."):
        case "y" | "yes" | "grant":
            return True, comment.strip()
        case "n" | "no" | "deny":
            return False, comment.strip()
        case _:
            return "Answer y or n, or Enter to leave the question open"


def at_terminal(client: Client, connection: Connection, out: Output) -> Answering | None:
    """Somebody to ask, if a person sits at this terminal."""
    if not out.interactive or not sys.stdin.isatty():
        return None
    return Answering(client, connection, out, _typed)


async def _typed() -> str:
    """The next line that is typed at the terminal.

    Cancellation: at once; what was typed without Enter stays in the terminal.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def ready() -> None:
        if not line.done():
            # A terminal is readable when a whole line is there.
            line.set_result(sys.stdin.readline())

    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, ready)
    try:
        return await line
    finally:
        loop.remove_reader(descriptor)
