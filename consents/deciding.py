"""A verdict on the Vessel: recorded in one transaction, and then the Run brought back in another (ruling 5)."""

from __future__ import annotations

import psycopg
import structlog

from consents.decisions import Decided, Vote, Voter, decide, note
from consents.models import ConsentStatus
from consents.wait import ConsentWait
from runs.engine import Engine
from runs.errors import Conflict, LychdError, first_line
from runs.ledger.ledger import Ledger, ScriptFactory

log = structlog.get_logger(__name__)

KIND = ConsentWait()


async def decide_here(ledger: Ledger, engine: Engine, voter: Voter, vote: Vote) -> Decided:
    """Record a vote; when it settles the Consent, or it was settled so before, bring its Run back at once.

    Every decision is in Django's admin log as well.

    Returns:
        How the Consent stands. That the Run could not be brought back at once changes nothing: the relay does it.

    Raises:
        NotFound, Forbidden, TooLarge, Invalid: nothing was written.
        Conflict: it was settled otherwise, the question is another, or this person voted otherwise before.
        Unknown: the ledger did not answer; the verdict may stand.

    Cancellation: at once; a transaction that was begun goes on to its end.
    """
    outcome = await ledger.lasting(ScriptFactory[Decided | Conflict](decide, voter, vote))
    if isinstance(outcome, Conflict):
        raise outcome
    if outcome.changed:
        log.info("consent.voted", consent=str(vote.consent_id), by=voter.name, grant=vote.grant, status=outcome.status)
    if outcome.status != ConsentStatus.PENDING:
        try:
            await engine.resume(KIND, outcome.run_id, vote.consent_id)
        except (LychdError, psycopg.Error, OSError) as error:
            log.warning("consent.not_resumed", run=str(outcome.run_id), error=first_line(error))
    if outcome.changed:
        try:
            await ledger.script(ScriptFactory(note, voter, vote, outcome))
        except (LychdError, psycopg.Error) as error:
            log.warning("consent.not_in_admin_log", consent=str(vote.consent_id), error=first_line(error))
    return outcome
