"""The page of one Run: how it stands in words, its graph with the way taken, what happened, what went in and came out.

Only looks; each part is drawn by the server and brought up to date by asking for the page again.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from consents.admin import look
from consents.models import Consent
from lychd.cli.wording import progress, told
from lychd.client import Event
from lychd.dashboard import drawing
from lychd.dashboard.context import frame, not_found, page
from lychd.dashboard.runs_list import visible
from runs.admin import shown, words
from runs.errors import PatternError
from runs.models import Checkpoint, Run, Step
from runs.patterns import Manifest
from runs.states import TERMINAL

STEPS, CONSENTS = 200, 50
# Events in which the author of a Pattern says what he likes.
_SAID = frozenset({"log", "fragment", "progress"})
# A payload that is longer is not laid out for reading; the REST API has all of it.
MOST_SHOWN = 256 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One stored event in words. `level` is that of a log line."""

    seq: int
    at: Any
    node: str
    kind: str
    words: str
    level: str


@dataclass(frozen=True, slots=True)
class Visit:
    """One activation of a node on the way that was taken; `state` is how it ended, or that it goes on."""

    node: str
    state: str
    took: str


@dataclass(frozen=True, slots=True)
class Payload:
    """A JSON value laid out for reading; `text` None where the person may not see it or it is too long."""

    name: str
    text: str | None
    why: str = ""


@require_safe
@page("runs", "runs.view_run")
def run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """One Run."""
    user: Any = request.user
    found = visible(request).filter(pk=run_id).defer("intent").first()
    if found is None:
        return not_found(request, "runs", "There is no such Run.", "It may belong to another tenant, or be pruned.")
    sees = user.has_perm("runs.view_payload")
    before = _number(request.GET.get("before"))
    steps = _steps(run_id, before)
    context = frame(
        request,
        "runs",
        f"{found.pattern_key} …{str(found.pk)[-8:]}",
        run=found,
        state=shown.status(
            found.status, quarantined=found.quarantined_at is not None, uncontained=bool(found.containment_error)
        ),
        story=words.story(found),
        quarantine=words.quarantine(found),
        unsettled=words.unsettled(found),
        open=found.status not in TERMINAL,
        visits=_way(run_id),
        drawing=_drawing(found),
        manifest=found.manifest,
        lines=[_line(step, sees=sees) for step in steps],
        earlier=steps[0].seq if len(steps) == STEPS and steps[0].seq > 0 else None,
        partial=before is not None,
        payloads=_payloads(found, sees=sees),
        consents=[
            (one, look.status(one.status, brief=True))
            for one in Consent.objects.filter(run_id=run_id).only("id", "title", "status").order_by("-visit")[:CONSENTS]
        ],
        sees_consents=user.has_perm("consents.view_consent") or user.has_perm("consents.decide_consent"),
        may_cancel=user.has_perm("runs.cancel_run") and found.status not in TERMINAL,
    )
    context["tenant"] = found.tenant
    return render(request, "lychd/dashboard/run.html", context)


def _steps(run_id: uuid.UUID, before: int | None) -> list[Step]:
    """The newest events, or those before a number, in order."""
    found = Step.objects.filter(run_id=run_id)
    if before is not None:
        found = found.filter(seq__lt=before)
    return list(found.order_by("-seq")[:STEPS])[::-1]


def _line(step: Step, *, sees: bool) -> Line:
    data: dict[str, Any] = step.data
    if step.kind in _SAID and not sees:
        text = "Only for those who may see payloads."
    elif step.kind == "progress":
        text = progress(data)
    else:
        event = Event(str(step.run_id), step.seq, "", step.kind, step.node, data, step.at, {})  # pyright: ignore[reportAttributeAccessIssue] - the column of the key
        text = told(event)[0]
    return Line(step.seq, shown.exact_moment(step.at), step.node or "", step.kind, text, str(data.get("level", "")))


def _way(run_id: uuid.UUID) -> list[Visit]:
    """The nodes in the order in which they were entered."""
    visits: dict[int, Visit] = {}
    for step in Step.objects.filter(run_id=run_id, kind="node").order_by("seq")[:1000]:
        visit, phase = step.data.get("visit"), step.data.get("phase")
        if isinstance(visit, int) and step.node:
            took = f"{step.data['ms']:g} ms" if isinstance(step.data.get("ms"), int | float) else ""
            visits[visit] = Visit(step.node, {"entered": "active", "left": "left"}.get(str(phase), "failed"), took)
    return [visits[number] for number in sorted(visits)]


def _drawing(found: Run) -> Any:
    try:
        return drawing.draw(Manifest.from_json(found.manifest))
    except PatternError:
        return None


def _payloads(found: Run, *, sees: bool) -> list[Payload]:
    values: list[tuple[str, Any]] = [("Input", found.input)]
    if found.output is not None:
        values.append(("Output", found.output))
    if found.status not in TERMINAL:
        checkpoint = Checkpoint.objects.filter(run_id=found.pk).first()
        if checkpoint is not None:
            values.append(("State", [one.get("state") for one in checkpoint.snapshots][:1]))
    if not sees:
        return [Payload(name, None, "Only for those who may see payloads.") for name, _ in values]
    return [_laid_out(name, value) for name, value in values]


def _laid_out(name: str, value: Any) -> Payload:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) > MOST_SHOWN:
        return Payload(name, None, f"It has {shown.size(len(text.encode()))}; the REST API has all of it.")
    return Payload(name, text)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
