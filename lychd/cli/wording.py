"""What Runs and events say, in words: each on one line and harmless to print, whatever a Pattern put into it."""

from __future__ import annotations

from typing import Any

from lychd.cli.output import status_style
from lychd.cli.texts import harmless, one_line
from lychd.client import Event
from runs.states import WORDS, RunStatus

type Json = dict[str, Any]

CONTAINMENT_UNCERTAIN = "failing, containment uncertain"


def word(status: Any) -> str:
    """A status as people say it."""
    text = harmless(str(status), 40)
    return WORDS[RunStatus(text)] if text in RunStatus else text


def failure(error: Json) -> str:
    """An error of a Run on one line."""
    where = f" in {error['node']}" if error.get("node") else ""
    return one_line(f"{error.get('code')}{where}: {error.get('message')}", 2000)


def unsettled(run: Json) -> str | None:
    """What keeps a Run from its end although it is cancelling or failing, on one line; None when nothing does."""
    reason = run.get("containment")
    if not reason:
        return None
    what = "not everything is stopped yet" if run.get("status") == RunStatus.CANCELLING else CONTAINMENT_UNCERTAIN
    return one_line(f"{what}: {reason}", 2000)


def told(event: Event) -> tuple[str, str]:
    """What an event says, on one line, and its style."""
    data = event.data
    match event.kind:
        case "status":
            return _status(data), status_style(str(data.get("status")))
        case "node":
            return _node(data), "red" if data.get("phase") == "failed" else "dim"
        case "log":
            fields = data.get("fields") if isinstance(data.get("fields"), dict) else {}
            rest = "".join(f"  {one_line(name, 40)}={one_line(value)}" for name, value in (fields or {}).items())
            style = {"warning": "yellow", "error": "red", "debug": "dim"}.get(str(data.get("level")), "")
            return one_line(data.get("message"), 2000) + harmless(rest, 2000), style
        case "fragment":
            return f"{one_line(data.get('name'), 80)}: {one_line(data.get('refused') or data.get('data'))}", "cyan"
        case "consent":
            return consent(data)
        case "transition" if "step" in data:
            return _step(data), "dim"
        case "done":
            error = data.get("error")
            status = str(data.get("status"))
            return word(status) + (f": {failure(error)}" if isinstance(error, dict) else ""), status_style(status)
        case _:
            return f"{harmless(event.kind, 40)} {one_line(data)}", "magenta"


CONSENT_STYLES = {"pending": "magenta", "granted": "green", "denied": "red", "expired": "yellow", "cancelled": "yellow"}


def consent(found: Json) -> tuple[str, str]:
    """What a Consent asks, or how it was answered, on one line, and its style."""
    status = str(found.get("status"))
    title, style = one_line(found.get("title"), 200), CONSENT_STYLES.get(status, "magenta")
    if status == "pending":
        return f"asks: {title}", style
    said = f": {one_line(found['comment'])}" if found.get("comment") else ""
    return f"{title}: {harmless(status, 20)} by {one_line(found.get('decided_by'), 150)}{said}", style


def progress(data: Json) -> str:
    """How far something is, in words."""
    done, total = number(data.get("done")), number(data.get("total"))
    parts: list[str] = []
    if done is not None:
        parts.append(f"{_amount(done)} of {_amount(total)} ({done / total:.0%})" if total else _amount(done))
    if data.get("message"):
        parts.append(one_line(data["message"], 200))
    return "  ".join(parts)


def _amount(value: float) -> str:
    # Whole numbers in full: counts of files and bytes are soon beyond the six digits that a float shows.
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,g}"


def _status(data: Json) -> str:
    text = word(data.get("status"))
    if data.get("queue") is not None:
        text += f" on {one_line(data['queue'], 40)}, priority {one_line(data.get('priority'), 10)}"
    if data.get("resume"):
        text += ", resumed"
    if data.get("by"):
        text += f", asked for by {one_line(data['by'], 80)}"
    if reason := unsettled(data):
        text += f"; {reason}"
    return text + (f", hop {one_line(data['hop'], 10)}" if data.get("hop") else "")


def _node(data: Json) -> str:
    spent = f" ({_span(data['ms'])})" if number(data.get("ms")) is not None else ""
    match data.get("phase"):
        case "entered":
            return "entered"
        case "left":
            return f"→ {one_line(data.get('to'), 80)}{spent}"
        case "failed":
            return f"failed{spent}: {one_line(data.get('code'), 50)}: {one_line(data.get('message'), 2000)}"
        case _:
            return one_line(data)


def _step(data: Json) -> str:
    name = one_line(data["step"], 80)
    if data.get("phase") == "retry":
        attempt, after = one_line(data.get("attempt"), 10), one_line(data.get("next_in"), 20)
        return f"step {name}, attempt {attempt}: {one_line(data.get('error'))}; again in {after} s"
    spent = f" ({_span(data['ms'])})" if number(data.get("ms")) is not None else ""
    return f"step {name} {one_line(data.get('phase'), 40)}{spent}"


def _span(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
