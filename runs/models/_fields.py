"""Small field helpers that the models share; no models here."""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.db.models.functions import Now


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """Django choices of a StrEnum, in its order."""
    return [(member.value, member.value.replace("_", " ")) for member in enum]


class Stamped(models.Model):
    """Rows that say, by the database's clock, when they were made and last changed."""

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True
