"""A verdict from a surface without a broker: recorded in one transaction, the Run brought back in another (ruling 5).

The second transaction leaves a word for the Vessel, which publishes the hop at once (ruling 30). Where no Vessel
hears it, the relays of the next one do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from consents.decisions import Decided, Vote, Voter, authorise, check_comment, decide, plain
from consents.models import Consent, ConsentStatus
from consents.wait import ConsentWait
from runs.errors import Conflict, Forbidden, LychdError, Unknown, first_line
from runs.ledger.pipeline import each_alone
from runs.ledger.resume import Resume, at_once, resume
from runs.ledger.runner import run_script

log = structlog.get_logger(__name__)

KIND = ConsentWait()
CHUNK = 500


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


def decide_each(voter: Voter, wanted: Sequence[tuple[Consent, Vote]]) -> list[Result]:
    """Record votes, each in a transaction of its own, so that none undoes another (ruling 5).

    The common case goes down a pipeline, since a round trip for each step of hundreds would take a page's patience;
    whatever that does not settle is decided one by one, and told why not.

    Args:
        voter: with the tenants of these Consents in which they may act.
        wanted: the Consents in the order in which they are to be decided, and the votes.

    Returns:
        A result for each, in the order given. After an unknown outcome the rest is not tried.

    Raises:
        TooLarge, Invalid: the comment cannot be kept; nothing was written.
    """
    for comment in {vote.comment for _, vote in wanted}:
        check_comment(comment)
    settled: dict[Any, Decided] = {}
    allowed = [(consent, vote) for consent, vote in wanted if _may(voter, consent)]
    for start in range(0, len(allowed), CHUNK):
        settled |= _settle(voter, allowed[start : start + CHUNK])
    results: list[Result] = []
    lost = False
    for consent, vote in wanted:
        done = settled.get(consent.pk)
        if done is not None:
            results.append(Result(vote, decided=done))
        elif lost:
            results.append(Result(vote, error=NotTried()))
        else:
            results.append(_one(voter, vote))
            lost = isinstance(results[-1].error, Unknown)
    return results


def _settle(voter: Voter, chunk: Sequence[tuple[Consent, Vote]]) -> dict[Any, Decided]:
    """The common case for a few: verdicts first, then the Runs that they bring back."""
    settled: dict[Any, Decided] = {}
    answers = each_alone(plain(voter, vote) for _, vote in chunk)
    for (consent, vote), rows in zip(chunk, answers, strict=True):
        if rows:
            status = ConsentStatus.GRANTED if vote.grant else ConsentStatus.DENIED
            grants, quorum = int(vote.grant), consent.quorum
            settled[consent.pk] = Decided(consent.pk, rows[0][0], status, changed=True, grants=grants, quorum=quorum)
            log.info("consent.voted", consent=str(consent.pk), by=voter.name, grant=vote.grant, status=status)
    returns = list(settled.values())
    for decided, rows in zip(returns, each_alone(at_once(_resume(one)) for one in returns), strict=True):
        if rows is None:
            _bring_back(decided)
    return settled


def _one(voter: Voter, vote: Vote) -> Result:
    try:
        return Result(vote, decided=decide_now(voter, vote))
    except LychdError as error:
        return Result(vote, error=error)


def _may(voter: Voter, consent: Consent) -> bool:
    try:
        authorise(
            voter,
            consent.permission,
            consent.group,
            self_approval=consent.self_approval,
            asked_by=consent.asked_by,
        )
    except Forbidden:
        return False
    return True


def _resume(decided: Decided) -> Resume:
    return Resume(decided.run_id, KIND.status, KIND.name, decided.consent_id, KIND.resume_proof)


def _bring_back(decided: Decided) -> None:
    try:
        run_script(resume(_resume(decided)))
    except (DatabaseError, InterfaceError, Unknown) as error:
        log.warning("consent.not_resumed", run=str(decided.run_id), error=first_line(error))
