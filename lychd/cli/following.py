"""Following a Run at the terminal: shows what is told, and turns the end of the Run into an exit code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from lychd.cli.answering import at_terminal
from lychd.cli.command import Exit
from lychd.cli.connection import Connection
from lychd.cli.output import Output, status_style
from lychd.cli.texts import block
from lychd.cli.views import view_for
from lychd.cli.wording import word
from lychd.client import Client, End, Event, Lost, Message, Resync
from runs.states import RunStatus

type Json = dict[str, Any]

PATIENCE_SECONDS = 300.0
CODES = {
    RunStatus.DONE: Exit.OK,
    RunStatus.FAILED: Exit.FAILED,
    RunStatus.CANCELLED: Exit.CANCELLED,
    RunStatus.AWAITING_CONSENT: Exit.WAITING,
}


async def follow(
    client: Client,
    connection: Connection,
    out: Output,
    run: Json,
    *,
    wait: bool = True,
    cursor: str | None = None,
    patience: float = PATIENCE_SECONDS,
    since: Callable[[Event], bool] | None = None,
) -> int:
    """Show a Run until it ends; what it asks can be answered where a person sits at the terminal.

    Args:
        run: as it was when following began.
        wait: go on while it waits for a consent; else stop there.
        cursor: of the last event that was seen.
        patience: seconds without a word from the server before it gives up.
        since: events before the first for which this holds are not shown.

    Returns:
        0 done, 1 failed, 2 cancelled, 3 waiting for a consent that nobody waits for.

    Cancellation: the terminal is left as it was; the Run goes on.
    """
    view = view_for(out)
    answering = at_terminal(client, connection, out) if wait else None
    _begin(out, run)
    status: str | None = None
    shown = since is None
    try:
        async with aclosing(client.follow(run["id"], cursor=cursor, patience=patience)) as messages:
            async for message in messages:
                shown = shown or (since is not None and isinstance(message, Event) and since(message))
                if shown or isinstance(message, Lost | End):
                    view.show(message)
                if answering is not None:
                    await answering.hear(message)
                if isinstance(message, Lost):
                    await client.move(connection.where_now())
                elif isinstance(message, End):
                    status = message.status
                elif not wait and _asks(message):
                    # An old question may have been answered since: what counts is how the Run stands now.
                    now = await client.run(run["id"])
                    if now["status"] == RunStatus.AWAITING_CONSENT:
                        status = now["status"]
                        break
    finally:
        if answering is not None:
            await answering.close()
        view.close()
    final = await client.run(run["id"])
    _end(out, final, str(status))
    return int(CODES.get(RunStatus(str(status)), Exit.REFUSED)) if status in RunStatus else int(Exit.REFUSED)


def _asks(message: Message) -> bool:
    match message:
        case Event(kind="consent"):
            return True
        case Event(kind="status", data=data):
            return data.get("status") == RunStatus.AWAITING_CONSENT
        case Resync(snapshot=snapshot):
            return (snapshot.get("run") or {}).get("status") == RunStatus.AWAITING_CONSENT
        case _:
            return False


def _begin(out: Output, run: Json) -> None:
    if out.as_json:
        out.record({"type": "run", "run": run})
        return
    pattern = run["pattern"]
    out.line(("Run ", "bold"), (run["id"], "bold"), f" of {pattern['key']} {pattern['revision']}")


def _end(out: Output, run: Json, status: str) -> None:
    if out.as_json:
        out.record({"type": "run", "run": run})
        return
    if status == RunStatus.AWAITING_CONSENT:
        out.line((word(status), status_style(status)))
    if run.get("output") is not None:
        out.text(block(run["output"]))
