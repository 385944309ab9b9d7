"""Decisions in Django's admin log. The receipt is the truth; an entry that fails never undoes a verdict (ruling 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError
from django.http import HttpRequest

from consents.decisions import Decided, Vote, said
from consents.models import Consent
from runs.errors import first_line

log = structlog.get_logger(__name__)


def note(request: HttpRequest, decisions: Iterable[tuple[Consent, Vote, Decided]]) -> None:
    """One entry for each decision of this person, all in one statement."""
    user: Any = request.user
    kind = ContentType.objects.get_for_model(Consent)
    entries = [
        LogEntry(
            user_id=user.pk,
            content_type_id=kind.pk,
            object_id=str(consent.pk),
            object_repr=consent.title[:200],
            action_flag=CHANGE,
            change_message=said(vote, decided),
        )
        for consent, vote, decided in decisions
    ]
    try:
        LogEntry.objects.bulk_create(entries)
    except DatabaseError as error:
        log.warning("consent.not_in_admin_log", count=len(entries), error=first_line(error))
