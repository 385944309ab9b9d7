"""What a person is told after a decision: recorded, repeated, too late, refused, or not known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from consents.admin import look
from consents.admin.review import receipt, standing
from consents.decisions import COMMENT_LIMIT, AlreadySettled, AlreadyVoted, Decided, QuestionChanged, Vote
from consents.models import Consent, ConsentStatus
from runs.errors import Forbidden, LychdError, TooLarge, Unknown


@dataclass(frozen=True, slots=True)
class Notice:
    """Why nothing was recorded, and the status of the answer that says so."""

    status: int
    heading: str
    text: str
    late: bool = False

    @classmethod
    def no_verdict(cls) -> Notice:
        """The form named neither of the two buttons."""
        return cls(400, "Nothing was decided", "The form said neither grant nor deny. Use one of the two buttons.")

    @classmethod
    def of(cls, error: LychdError, vote: Vote) -> Notice:
        """What an error of `decide` means for the person at the form."""
        yours = "Your yes was not recorded." if vote.grant else "Your no was not recorded."
        match error:
            case AlreadySettled():
                return cls(error.status, "You were too late", yours, late=True)
            case QuestionChanged():
                text = f"{yours} What you were shown is not what is asked; read it again below before you decide."
                return cls(error.status, "The question is another one now", text)
            case AlreadyVoted():
                text = f"{yours} You have answered the other way before, and nobody votes twice."
                return cls(error.status, "You have voted already", text)
            case Forbidden():
                return cls(error.status, "You may not decide this one", f"{yours} {error.detail}")
            case TooLarge():
                text = (
                    f"{yours} It has {len(vote.comment):,} characters, and at most {COMMENT_LIMIT:,} are kept. "
                    f"The field below holds the first {COMMENT_LIMIT:,} of them."
                )
                return cls(error.status, "The comment is too long", text)
            case _:
                return cls(error.status, error.title, f"{yours} {error.detail}")

    def about(self, consent: Any) -> Notice:
        """With what happened instead, as the Consent stands by now."""
        if not self.late:
            return self
        if consent.status == ConsentStatus.PENDING:
            return replace(self, text=f"{self.text} Its time was over; without an answer the answer is no.")
        return replace(self, text=f"{_first(consent)} That stands. {self.text}")


def told(decided: Decided, vote: Vote) -> str:
    """What a recorded decision, or a repeated one, brought about."""
    verdict = "granted" if vote.grant else "denied"
    if decided.status == ConsentStatus.PENDING:
        missing = decided.quorum - decided.grants
        so_far = f"{decided.grants} of {decided.quorum} have said yes, so the Run waits for {missing} more."
        return f"Your yes is recorded. {so_far}" if decided.changed else f"You have said yes before. {so_far}"
    if not decided.changed:
        return f"It had been {verdict} before, so there was nothing left to decide."
    return f"You {verdict} this, and the Run goes on."


def unanswered(request: HttpRequest, error: Unknown, address: str) -> HttpResponse:
    """A page that needs no database: nobody can tell whether the verdict was recorded."""
    context = {"error": error.detail, "address": address}
    return render(request, "admin/consents/consent/unanswered.html", context, status=error.status)


def _first(consent: Consent) -> str:
    """Who was faster, and by how much."""
    at = consent.decided_at
    if at is None or standing(consent) not in {ConsentStatus.GRANTED, ConsentStatus.DENIED}:
        return receipt(consent)
    return f"{consent.decided_by} {consent.status} it {look.since(at)} before you, at {at:%Y-%m-%d %H:%M:%S} UTC."
