"""A verdict from a surface without a broker: recorded in one transaction, the Run brought back in another (ruling 5).

The second transaction leaves a word for the Vessel, which publishes the hop at once (ruling 30). Where no Vessel
hears it, the relays of the next one do the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from consents.decisions import Decided, Vote, Voter, decide
from consents.models import ConsentStatus
from consents.wait import ConsentWait
from runs.errors import Conflict, LychdError, Unknown, first_line
from runs.ledger.resume import Resume, resume
from runs.ledger.runner import run_script

log = structlog.get_logger(__name__)

KIND = ConsentWait()


class NotTried(LychdError):
    """The database stopped answering before this one; nothing was recorded."""

    code, title = "not_tried", "Not tried"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one vote: how the Consent stands, or why it was not recorded."""

    vote: Vote
    decided: Decided | None = None
    error: LychdError | None = None


def decide_now(voter: Voter, vote: Vote) -> Decided:
    """Record a vote; when the Consent is settled after it, bring its Run back.

    Not inside a transaction: a verdict must stand whatever becomes of the rest of the request.

    Returns:
        How the Consent stands. That the Run could not be brought back changes nothing: the relay does it.

    Raises:
        NotFound, Forbidden, TooLarge, Invalid: nothing was written.
        Conflict: it was settled otherwise, the question is another, or this person voted otherwise before.
        Unknown: the database did not answer; the verdict may stand.
    """
    try:
        outcome = run_script(decide(voter, vote))
    except (OperationalError, InterfaceError) as error:
        log.warning("consent.unknown", consent=str(vote.consent_id), by=voter.name, error=first_line(error))
        raise Unknown("The database did not answer; the verdict may or may not have been recorded.") from error
    if isinstance(outcome, Conflict):
        raise outcome
    if outcome.changed:
        log.info("consent.voted", consent=str(vote.consent_id), by=voter.name, grant=vote.grant, status=outcome.status)
    if outcome.status != ConsentStatus.PENDING:
        _bring_back(outcome)
    return outcome


def decide_each(voter: Voter, votes: Iterable[Vote]) -> list[Result]:
    """Record votes one by one, each in a transaction of its own, so that none undoes another (ruling 5).

    Returns:
        A result for each, in the order given. After an unknown outcome the rest is not tried.
    """
    results: list[Result] = []
    lost = False
    for vote in votes:
        if lost:
            results.append(Result(vote, error=NotTried()))
            continue
        try:
            results.append(Result(vote, decided=decide_now(voter, vote)))
        except LychdError as error:
            lost = isinstance(error, Unknown)
            results.append(Result(vote, error=error))
    return results


def _bring_back(decided: Decided) -> None:
    request = Resume(decided.run_id, KIND.status, KIND.name, decided.consent_id, KIND.resume_proof)
    try:
        run_script(resume(request))
    except (DatabaseError, InterfaceError, Unknown) as error:
        log.warning("consent.not_resumed", run=str(decided.run_id), error=first_line(error))
