"""What the page of a Run says first: its story in sentences. Reads nothing but the row it is given."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.timesince import timesince

from runs.models import Run
from runs.states import PARKED, TERMINAL, WORDS, RunStatus

_ENDED = {
    RunStatus.DONE: "It was done",
    RunStatus.FAILED: "It failed",
    RunStatus.CANCELLED: "It was cancelled",
}


def story(run: Run) -> str:
    """Two or three sentences: what it is, how it stands, and what went wrong."""
    told = [_origin(run), _standing(run)]
    if run.status == RunStatus.FAILED:
        where = f"Node {run.error_node}" if run.error_node else "It"
        told.append(f"{where} ended with {run.error_code}: {_sentence(run.error_message)}")
    return " ".join(told)


def quarantine(run: Run) -> str | None:
    """Why nothing claims this Run; None when it is not in quarantine."""
    if run.quarantined_at is None:
        return None
    return f"In quarantine for {_since(run.quarantined_at)}, nothing claims it: {_sentence(run.quarantine_reason)}"


def unsettled(run: Run) -> str | None:
    """What keeps the Run from its end although it is cancelling or failing; None when nothing does."""
    if run.containment_error is None or run.status in TERMINAL:
        return None
    if run.status == RunStatus.CANCELLING:
        return f"Not everything that acts for it is stopped yet. It is tried again: {_sentence(run.containment_error)}"
    return (
        "It has failed on its worker, but it is not certain that nothing acts for it any more. "
        f"It becomes failed once it is: {_sentence(run.containment_error)}"
    )


def cancelling(run: Run) -> str:
    """What cancelling this Run does, as it stands."""
    status = RunStatus(run.status)
    if status in TERMINAL:
        return f"It is {WORDS[status]} already: nothing happens."
    if status is RunStatus.CANCELLING:
        return "It is being cancelled already: what could not be stopped yet is tried again now."
    if status in PARKED:
        return f"It is {WORDS[status]}: that is withdrawn, and no later answer brings the Run back."
    if status is RunStatus.QUEUED:
        return "It is queued: no worker takes it up any more."
    return "It is at work: its worker is told to stop. What it has done outside already stays done."


def _origin(run: Run) -> str:
    return (
        f"{run.sigil_name} asked for {run.pattern_key}, revision {run.pattern_revision}, "
        f"over {run.surface} {_since(run.created_at)} ago."
    )


def _standing(run: Run) -> str:
    status, hop = RunStatus(run.status), f"hop {run.enqueue_seq}"
    if status in TERMINAL:
        took = "" if run.finished_at is None else f" after {_between(run.created_at, run.finished_at)}"
        ended = "" if run.finished_at is None else f", {_since(run.finished_at)} ago"
        by = f" by {run.cancelled_by}" if status is RunStatus.CANCELLED and run.cancelled_by else ""
        return f"{_ENDED[status]}{by}{took}{ended}, on {hop}."
    if status in PARKED:
        owner: Any = run.wait_owner
        since = "" if run.wait_since is None else f" for {_since(run.wait_since)}"
        return f"It has been {WORDS[status]} {owner}{since}, on {hop}."
    if status is RunStatus.CANCELLING:
        since = "" if run.cancel_requested_at is None else f" for {_since(run.cancel_requested_at)}"
        return f"It has been cancelling{since}, asked for by {run.cancelled_by or 'nobody known'}, on {hop}."
    started = "" if run.started_at is None else f"; it started {_since(run.started_at)} ago"
    return f"It is {WORDS[status]}, on {hop} of the lane {run.queue_name} with priority {run.priority}{started}."


def _since(moment: datetime) -> str:
    return _between(moment, timezone.now())


def _between(start: datetime, end: datetime) -> str:
    """A span in words: two units at most, below a minute in seconds."""
    seconds = max(0.0, (end - start).total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else timesince(start, end).replace("\xa0", " ")


def _sentence(text: str | None) -> str:
    shown = (text or "no reason was recorded").strip()
    shown = shown if len(shown) <= 500 else shown[:500] + "…"
    return shown if shown.endswith((".", "!", "?", "…")) else f"{shown}."
