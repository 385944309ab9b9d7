"""How risk, status and time of a Consent look: by sign and word; colour only helps."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince

from consents.admin.inbox import WORDS
from consents.models import Consent, ConsentStatus, Risk
from runs.admin import shown

RISK_SIGNS = {Risk.LOW: "○", Risk.MEDIUM: "◐", Risk.HIGH: "●", Risk.CRITICAL: "▲"}
STATUS_LOOKS = {
    ConsentStatus.PENDING: ("?", "waiting"),
    ConsentStatus.GRANTED: ("✓", "done"),
    ConsentStatus.DENIED: ("✕", "failed"),
    ConsentStatus.EXPIRED: ("◷", "cancelled"),
    ConsentStatus.CANCELLED: ("⊘", "cancelled"),
}


def risk(value: str) -> SafeString:
    """The risk in one word."""
    known = Risk(value)
    return format_html(
        '<span class="consent-risk consent-risk-{}"><span aria-hidden="true">{}</span> {}</span>',
        known.value,
        RISK_SIGNS[known],
        known.value,
    )


def status(value: str, *, brief: bool = False) -> SafeString:
    """The status in words, or in one."""
    known = ConsentStatus(value)
    sign, colour = STATUS_LOOKS[known]
    words = "waiting" if brief and known == ConsentStatus.PENDING else WORDS[known]
    return format_html(
        '<span class="lychd-state lychd-{}"><span aria-hidden="true">{}</span> {}</span>', colour, sign, words
    )


def expiry(consent: Consent) -> SafeString:
    """When the answer becomes no by itself; a dash for never, and where it has been answered."""
    if consent.expires_at is None or consent.status != ConsentStatus.PENDING:
        return shown.NOTHING
    return shown.moment(consent.expires_at)


def span(start: datetime, end: datetime) -> str:
    """The time between in words; below a minute in seconds."""
    seconds = max(0.0, (end - start).total_seconds())
    return f"{seconds:.1f} s" if seconds < 60 else timesince(start, end).replace("\xa0", " ")


def since(moment: datetime) -> str:
    """How long ago."""
    return span(moment, timezone.now())
