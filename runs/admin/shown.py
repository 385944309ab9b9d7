"""How values look on the admin's pages: states, times, payloads, links. Escapes everything; reads no other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import CharField, F, Func, IntegerField, TextField, Value
from django.db.models.expressions import Case, Combinable, When
from django.db.models.functions import Cast, Left
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from runs.states import WORDS, RunStatus

FOLD = 64 * 1024
# Indentation can multiply the size of deeply nested JSON, so large values are shown as they are stored.
INDENTED = 256 * 1024
MOST_SHOWN = 2 * 1024 * 1024
NOTHING = SafeString("-")

SIGNS: dict[RunStatus, str] = {
    RunStatus.QUEUED: "○",
    RunStatus.RUNNING: "▶",
    RunStatus.AWAITING_HARDWARE: "◇",
    RunStatus.AWAITING_CONSENT: "?",
    RunStatus.AWAITING_DELEGATE: "◇",
    RunStatus.AWAITING_SERVICE: "◇",
    RunStatus.AWAITING_TIMER: "◷",
    RunStatus.AWAITING_SIGNAL: "◇",
    RunStatus.CANCELLING: "◌",
    RunStatus.DONE: "✓",
    RunStatus.FAILED: "✕",
    RunStatus.CANCELLED: "⊘",
}


def status(value: str, *, quarantined: bool = False, uncontained: bool = False) -> SafeString:
    """A Run's status by sign, word and colour; what else must be known beside it."""
    known = RunStatus(value)
    kind = "waiting" if known.value.startswith("awaiting") else known.value
    shown = format_html(
        '<span class="lychd-state lychd-{}"><span aria-hidden="true">{}</span> {}</span>',
        kind,
        SIGNS[known],
        WORDS[known],
    )
    if uncontained:
        told = "not stopped yet" if known is RunStatus.CANCELLING else "failing, containment uncertain"
        shown = _beside(shown, "⚠", told)
    return _beside(shown, "⚑", "quarantined") if quarantined else shown


def _beside(shown: SafeString, sign: str, told: str) -> SafeString:
    mark = '{} <span class="lychd-state lychd-quarantined"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(mark, shown, sign, told)


def moment(value: datetime | None) -> SafeString:
    """A time as a distance from now, exact when pointed at."""
    if value is None:
        return NOTHING
    now = timezone.now()
    ago = f"in {_span(now, value)}" if value > now else f"{_span(value, now)} ago"
    shown = "just now" if abs((now - value).total_seconds()) < 60 else ago
    exact = value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), exact, shown)


def _span(start: datetime, end: datetime) -> str:
    """The largest unit alone."""
    return timesince(start, end).partition(",")[0]


def exact_moment(value: datetime | None) -> SafeString:
    """A time in full, with its distance."""
    if value is None:
        return NOTHING
    return format_html(
        "{} ({})", value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC"), moment(value)
    )


def link(kind: str, pk: Any, text: str | None = None) -> SafeString:
    """A link to the page of one row of this app; a dash for nothing."""
    if pk is None:
        return NOTHING
    return format_html('<a href="{}">{}</a>', reverse(f"admin:runs_{kind}_change", args=[pk]), text or pk)


def block(text: str | None) -> SafeString:
    """Text of several lines, kept as it is."""
    return NOTHING if text is None else format_html('<pre class="lychd-block">{}</pre>', text)


def size(count: int) -> str:
    """Bytes in words."""
    if count < 1024:
        return f"{count} bytes" if count != 1 else "1 byte"
    return f"{count / 1024:.1f} kB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"


def payload_columns(names: Iterable[str], *, may_see: bool) -> dict[str, Combinable]:
    """Annotations that read payloads as the database holds them: size and digest, and the text where it may be seen.

    Numbers keep every digit, since no parser of ours touches them. What may not be seen never leaves the database.
    """
    columns: dict[str, Combinable] = {}
    for name in names:
        stored = Cast(F(name), TextField())
        octets = Func(stored, Value("UTF8"), function="convert_to")
        columns[f"{name}_size"] = Func(stored, function="octet_length", output_field=IntegerField())
        columns[f"{name}_digest"] = Func(
            Func(octets, function="sha256"), Value("hex"), function="encode", output_field=CharField()
        )
        if may_see:
            pretty = Func(F(name), function="jsonb_pretty", output_field=TextField())
            whole: Any = Case(
                When(**{f"{name}_size__lte": INDENTED}, then=pretty), default=stored, output_field=TextField()
            )
            columns[f"{name}_text"] = Left(whole, MOST_SHOWN)
    return columns


def payload(name: str, label: str | None = None) -> Callable[[Any, Any], SafeString]:
    """A column of an admin that shows what `payload_columns` read of the field."""

    @admin.display(description=label or name.replace("_", " "))
    def shown(_admin: Any, row: Any) -> SafeString:
        octets, digest = getattr(row, f"{name}_size"), getattr(row, f"{name}_digest")
        if octets is None:
            return NOTHING
        facts = f"{size(octets)}, SHA-256 {digest[:16]}…"
        text = getattr(row, f"{name}_text", None)
        if text is None:
            return format_html('<span class="quiet">{}; seeing it needs the right to see payloads</span>', facts)
        if len(text) == MOST_SHOWN:
            text += "\n…"
            facts += "; cut here, whole over the API"
        if octets <= FOLD:
            return format_html('<pre class="lychd-block">{}</pre><span class="quiet">{}</span>', text, facts)
        return format_html(
            '<details class="lychd-fold"><summary>{}</summary><pre class="lychd-block">{}</pre></details>', facts, text
        )

    return shown
