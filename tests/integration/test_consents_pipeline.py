"""The statements that many decisions share a pipeline for say the same as the scripts for one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection, transaction

from consents.decisions import PLAIN, Vote, Voter, plain
from consents.models import Consent, ConsentVote
from consents.wait import ConsentWait
from lychd.sigils.models import User
from runs.ledger.pipeline import each_alone
from runs.ledger.resume import Resume, at_once
from runs.ledger.script import Statement
from runs.models import Run, RunDelivery
from tests.support.admin_consents import a_consent
from tests.support.admin_runs import a_run
from tests.support.asking import a_voter

pytestmark = pytest.mark.django_db(transaction=True)

KIND = ConsentWait()
DIGEST = "d" * 64


def a_person(name: str = "anna", **changes: Any) -> Voter:
    return a_voter(name, user_id=User.objects.create_user(name).pk, **changes)


def returned(consent_id: uuid.UUID, run: Any = None) -> list[Any]:
    """Try to bring the Run back; the hop, or nothing."""
    run_id = run or Run.objects.get(consents=consent_id).pk
    (rows,) = each_alone([at_once(Resume(run_id, KIND.status, KIND.name, consent_id, KIND.resume_proof))])
    assert rows is not None
    return rows


@pytest.mark.contract("WAIT-5", "WAIT-6", "WAIT-10", "WAIT-12")
def test_a_return_in_one_statement_is_proved_like_one_in_several() -> None:
    pending, answered, cancelled, past = a_consent(), a_consent(), a_consent(), a_consent(status="granted", by="anna")
    Consent.objects.filter(pk=answered).update(
        status="denied", decided_by="anna", decided_at="2026-01-01T00:00Z", surface="rest"
    )
    Consent.objects.filter(pk=cancelled).update(
        status="cancelled", decided_by="anna", decided_at="2026-01-01T00:00Z", surface="engine"
    )
    assert returned(pending) == []
    assert returned(cancelled) == []
    assert returned(past) == []
    other = Run.objects.get(consents=pending).pk
    assert returned(answered, other) == []
    Run.objects.filter(consents=answered).update(quarantined_at="2026-01-01T00:00Z", quarantine_reason="bad")
    assert returned(answered) == []
    Run.objects.filter(consents=answered).update(quarantined_at=None, quarantine_reason=None)
    assert returned(answered) == [(2,)]
    assert returned(answered) == []
    run = Run.objects.get(consents=answered)
    assert (run.status, run.enqueue_seq, run.wait_kind, run.wait_owner, run.wait_since) == (
        "queued",
        2,
        None,
        None,
        None,
    )
    hop = RunDelivery.objects.get()
    assert (hop.run_id, hop.enqueue_seq, hop.state, hop.resume) == (run.pk, 2, "pending", True)
    assert set(Run.objects.exclude(pk=run.pk).values_list("status", flat=True)) == {"awaiting_consent", "done"}


def test_a_vote_in_one_statement_settles_the_common_case_and_nothing_else() -> None:
    anna = a_person()
    common = a_consent()
    odd = {
        "another question": (a_consent(digest="e" * 64), anna, True),
        "settled": (a_consent(status="denied", by="bert"), anna, True),
        "over": (a_consent(expires_in=0), anna, True),
        "needs more people": (a_consent(quorum=2), anna, True),
        "of another tenant": (a_consent(tenant="other"), anna, True),
        "not there": (uuid.uuid4(), anna, True),
    }
    voted = a_consent(quorum=2)
    ConsentVote.objects.create(
        consent_id=voted, user_id=anna.user_id, name="anna", granted=True, surface="rest", digest=DIGEST
    )
    odd["voted the other way before"] = (voted, anna, False)
    one_no = a_consent(quorum=3)
    votes = [plain(who, Vote(pk, grant, "admin", "why", DIGEST)) for pk, who, grant in odd.values()]
    votes += [
        plain(anna, Vote(common, True, "admin", "why", DIGEST)),
        plain(anna, Vote(one_no, False, "admin", "", DIGEST)),
    ]
    answers = each_alone(votes)
    assert dict(zip(odd, answers, strict=False)) == {case: [] for case in odd}
    assert [bool(rows) for rows in answers[-2:]] == [True, True]
    row, vote = Consent.objects.get(pk=common), ConsentVote.objects.get(consent=common)
    assert (row.status, row.decided_by, row.surface, row.comment) == ("granted", "anna", "admin", "why")
    assert (vote.granted, vote.comment, vote.surface, vote.digest, vote.at) == (
        True,
        "why",
        "admin",
        DIGEST,
        row.decided_at,
    )
    assert Consent.objects.get(pk=one_no).status == "denied"
    assert ConsentVote.objects.count() == 3
    assert each_alone([plain(anna, Vote(common, True, "admin", "why", DIGEST))]) == [[]]


def test_a_locked_consent_holds_up_nobody() -> None:
    anna, locked, free = a_person(), a_consent(), a_consent()
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("select 1 from consents_consent where id = %s for no key update", [str(locked)])
        answers = each_alone([plain(anna, Vote(pk, True, "admin", "", DIGEST)) for pk in (locked, free)])
        assert [bool(rows) for rows in answers] == [False, True]
    finally:
        other.rollback()
        other.close()


def test_each_statement_stands_alone() -> None:
    first, second = a_run(), a_run()
    rename = "update runs_run set sigil_name = %(name)s::text where id = %(id)s::uuid returning sigil_name"
    statements = [
        Statement(rename, {"id": str(first), "name": "renamed"}),
        Statement("select 1 / %(zero)s::int", {"zero": 0}),
        Statement(rename, {"id": str(second), "name": "perhaps"}),
    ]
    answers = each_alone(statements)
    assert answers[:2] == [[("renamed",)], None]
    assert Run.objects.get(pk=first).sigil_name == "renamed"
    # The connection is whole afterwards.
    assert each_alone(statements[:1]) == [[("renamed",)]]
    assert Run.objects.count() == 2


def test_inside_a_transaction_nothing_is_sent() -> None:
    with transaction.atomic():
        assert each_alone([Statement(PLAIN, {}), Statement("select 1", {})]) == [None, None]
