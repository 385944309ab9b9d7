"""What goes into a reclaim, what it asks, what it keeps, and its report; all of it bounded whatever the tree."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lychd.patterns.report import Trouble

# Moves that the question shows by name; the plan has all of them.
MOST_SHOWN = 20

type Ending = Literal["nothing_to_do", "moved", "put_back", "denied", "expired", "not_granted"]


class ReclaimInput(BaseModel):
    """Where to look for duplicates; or which quarantine to put back."""

    model_config = ConfigDict(extra="forbid")

    root: str = Field(
        ".",
        min_length=1,
        max_length=4096,
        description="folder on the Vessel's machine; relative to the first allowed folder",
    )
    smallest: int = Field(1, ge=1, le=2**62, description="bytes of the smallest file worth moving")
    restore: uuid.UUID | None = Field(None, description="id of an earlier Run of this Pattern: put its files back")
    answer_within: int | None = Field(
        None, ge=1, le=366 * 24 * 60, description="minutes after which no answer means no; default: it waits"
    )

    @model_validator(mode="after")
    def _is_one_of_both(self) -> ReclaimInput:
        if self.restore is not None and self.model_fields_set & {"root", "smallest"}:
            raise ValueError("restore puts files back where they were; it goes with neither root nor smallest")
        return self


class MoveEffect(BaseModel):
    """Exactly what is done on yes: the moves of the plan with this digest."""

    action: Literal["move_to_quarantine"] = "move_to_quarantine"
    folder: str
    quarantine: str
    plan: str
    files: int
    bytes: int


class PutBackEffect(BaseModel):
    """Exactly what is done on yes: the files of this quarantine return to where the plan has them from."""

    action: Literal["put_back"] = "put_back"
    folder: str
    quarantine: str
    plan: str


class Surveyed(BaseModel):
    """What the inventory found."""

    root: str
    files: int
    bytes: int
    groups: int
    extra_files: int
    unreadable: int
    changed: int
    several_names: int


class Proposed(BaseModel):
    """What is proposed, in numbers, and the largest of it by name."""

    files: int
    bytes: int
    groups: int
    plan: str
    largest: list[dict[str, Any]]


class ReclaimState(BaseModel):
    """Kept between the nodes: numbers and a short list, never the plan."""

    surveyed: Surveyed | None = None
    proposed: Proposed | None = None


class ReclaimReport(BaseModel):
    """The report.

    `moved` and `bytes` are what was brought into the quarantine, or back. On the file system of the quarantine the
    bytes are free once its folder is deleted. `left_alone` are files of the plan that were not touched, and why.
    `proposed` are the files that the question was about.
    """

    ending: Ending
    root: str
    quarantine: str | None = None
    proposed: int = 0
    proposed_bytes: int = 0
    moved: int = 0
    bytes: int = 0
    left_alone: list[Trouble] = []
    left_alone_total: int = 0
    surveyed: Surveyed | None = None
    decided_by: str | None = None
    comment: str = ""
