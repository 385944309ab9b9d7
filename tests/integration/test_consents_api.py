"""Consents over REST against a whole Vessel: list, look, decide; who may; every refusal as the interface has it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter

from consents.decisions import Vote
from consents.decisions import decide as verdict_of
from consents.schemas import Consent, ConsentPage, OneConsent
from runs.authority import Scope
from runs.ledger.ledger import Ledger, ScriptFactory
from runs.ledger.outcomes import Won
from runs.ledger.resume import Resume, resume
from runs.patterns.verdict import shown_digest
from runs.relays.delivery import DeliveryRelay
from runs.relays.waits import WaitRelay
from tests.support import vessel as vessels
from tests.support.asking import KIND, a_voter, effects
from tests.support.vessel import Door, closed, heard, running_vessel
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.vessel_fixtures"]


@pytest.fixture
async def door(vessel_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    gate, _ = effects()
    plain = vessels.patterns
    monkeypatch.setattr(vessels, "patterns", lambda stage: (*plain(stage), gate))
    async with running_vessel(vessel_url, monkeypatch) as opened:
        yield opened


async def asked(door: Door, client: httpx2.AsyncClient, **wish: Any) -> dict[str, Any]:
    """A Run that waits; its Consent."""
    run = (await client.post("/runs", json={"pattern": "gate", "input": wish})).json()

    async def waiting() -> Any:
        return await door.status(run["id"]) == "awaiting_consent"

    await eventually(waiting)
    (found,) = (await client.get("/consents", params={"run": run["id"], "status": "pending"})).json()["items"]
    return found


async def ended(door: Door, run: str, status: str = "done") -> Any:
    async def there() -> bool:
        return await door.status(run) == status

    await eventually(there)
    return await door.eyes.one("select output from runs_run where id = %s::uuid", run)


async def decide(client: httpx2.AsyncClient, consent: str, verdict: str = "grant", **body: Any) -> httpx2.Response:
    return await client.post(f"/consents/{consent}/decision", json={"verdict": verdict, **body})


def problem(response: httpx2.Response, status: int, code: str) -> Any:
    told = response.json()
    assert (response.status_code, told["code"]) == (status, code), told
    assert response.headers["content-type"] == "application/problem+json"
    return told


async def test_a_consent_is_listed_and_shown_with_everything_that_its_digest_covers(door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client, title="Move 12 files", body="All of them.", facts={"n": 12}, risk="high")
        TypeAdapter(Consent).validate_python(found)
        assert found["digest"] == shown_digest(
            title="Move 12 files", body="All of them.", facts={"n": 12}, risk="high", effect={"target": "a"}
        )
        assert (found["status"], found["node"], found["effect"]) == ("pending", "ask", {"target": "a"})
        assert (found["decided_by"], found["decided_at"], found["expires_at"]) == (None, None, None)
        one = await client.get(f"/consents/{found['id']}")
        TypeAdapter(OneConsent).validate_python(one.json())
        assert one.json() == {**found, "you": {"may_decide": True, "why_not": None}}
        again = await client.get(f"/consents/{found['id']}", headers={"If-None-Match": one.headers["etag"]})
        assert again.status_code == 304


@pytest.mark.contract("WAIT-9", "BYD-8")
async def test_a_grant_brings_the_run_to_its_end_and_its_receipt_is_kept(door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client)
        response = await decide(client, found["id"], comment="as agreed", digest=found["digest"])
        granted = response.json()
        assert response.status_code == 200
        assert (granted["status"], granted["decided_by"]) == ("granted", "owner of tester")
        assert (granted["surface"], granted["comment"]) == ("rest", "as agreed")
        output = await ended(door, found["run"])
        assert output["did"] == ["a"]
        assert output["receipts"][0]["digest"] == found["digest"]
        vote = await door.eyes.one("select name, granted, comment, surface, digest from consents_consentvote")
        assert vote == ("owner of tester", True, "as agreed", "rest", found["digest"])
        repeated = await decide(client, found["id"], comment="once more")
        assert (repeated.status_code, repeated.json()["comment"]) == (200, "as agreed")
        told = problem(await decide(client, found["id"], "deny"), 409, "already_settled")
        assert told["consent"]["status"] == "granted"
        steps = (await client.get(f"/runs/{found['run']}/steps", params={"limit": 500})).json()["items"]
        assert [step["data"]["status"] for step in steps if step["kind"] == "consent"] == ["pending", "granted"]


@pytest.mark.contract("BYD-8")
async def test_a_decision_over_rest_is_in_the_admins_log_once_and_a_log_that_fails_undoes_nothing(door: Door) -> None:
    entries = "select object_id, object_repr, change_message from django_admin_log"
    async with door.client() as client:
        found = await asked(door, client)
        for _ in range(2):
            assert (await decide(client, found["id"], comment="as agreed")).status_code == 200
        (entry,) = await door.eyes.rows(entries)
        assert entry[:2] == (found["id"], found["title"])
        told = json.loads(entry[2])
        assert (told["verdict"], told["status"], told["comment"]) == ("grant", "granted", "as agreed")
        await door.eyes.rows("alter table django_admin_log rename to away")
        other = await asked(door, client)
        assert (await decide(client, other["id"], "deny")).status_code == 200
        await ended(door, other["run"])
        await door.eyes.rows("alter table away rename to django_admin_log")
        assert len(await door.eyes.rows(entries)) == 1


async def test_an_answer_to_another_question_is_refused(door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client)
        told = problem(await decide(client, found["id"], digest="0" * 64), 409, "question_changed")
        assert told["consent"]["status"] == "pending"
        assert (await client.get(f"/consents/{found['id']}")).json()["status"] == "pending"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"verdict": "maybe"}, 422, "invalid"),
        ({}, 422, "invalid"),
        ({"verdict": "grant", "extra": 1}, 422, "invalid"),
        ({"verdict": "grant", "comment": "x" * 10_001}, 422, "too_large"),
        ({"verdict": "grant", "comment": "x" * 1_048_576}, 422, "too_large"),
        ({"verdict": "grant", "comment": "nul \0"}, 422, "invalid"),
        ({"verdict": "grant", "comment": "half \ud800"}, 422, "invalid"),
        ({"verdict": "grant", "digest": "abc"}, 422, "invalid"),
    ],
)
async def test_a_decision_that_is_not_valid_is_refused_and_nothing_is_written(
    door: Door, body: dict[str, Any], status: int, code: str
) -> None:
    async with door.client() as client:
        found = await asked(door, client)
        sent = {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}
        problem(await client.post(f"/consents/{found['id']}/decision", **sent), status, code)
        assert (await client.get(f"/consents/{found['id']}")).json()["status"] == "pending"
        assert await door.eyes.one("select count(*) from consents_consentvote") == 0


@pytest.mark.contract("BYD-7")
async def test_scopes_permissions_groups_and_self_approval_are_asked_of_the_person(door: Door) -> None:
    reader = await door.sigil("reader", scopes=("consents:read", "runs:read"))
    decider = await door.sigil("decider", scopes=("consents:read", "consents:decide"))
    foreign = await door.sigil("foreign", tenant="lab")
    async with door.client() as own, door.client(reader) as reading, door.client(decider) as deciding:
        found = await asked(door, own, self_approval=False)
        told = problem(await decide(reading, found["id"]), 403, "forbidden")
        assert told["scope"] == "consents:decide"
        you = (await reading.get(f"/consents/{found['id']}")).json()["you"]
        assert (you["may_decide"], "consents:decide" in you["why_not"]) == (False, True)
        told = problem(await decide(own, found["id"]), 403, "forbidden")
        assert "other than the person" in told["detail"]
        assert not (await own.get(f"/consents/{found['id']}")).json()["you"]["may_decide"]
        async with door.client(foreign) as elsewhere:
            problem(await decide(elsewhere, found["id"]), 404, "not_found")
            problem(await elsewhere.get(f"/consents/{found['id']}"), 404, "not_found")
            assert (await elsewhere.get("/consents")).json() == {"items": [], "next": None}
        assert (await decide(deciding, found["id"])).status_code == 200

        needy = await asked(door, own, permission="consents.sign_off", group="lawyers")
        # A superuser has every permission; a person without is told what is missing.
        await door.eyes.rows("update sigils_user set is_superuser = false where username = 'owner of decider'")
        problem(await decide(deciding, needy["id"]), 403, "forbidden")
        await door.eyes.rows(
            "insert into sigils_user_user_permissions (user_id, permission_id) select u.id, p.id from sigils_user u,"
            " auth_permission p where u.username = 'owner of decider'"
            " and p.codename in ('decide_consent', 'view_consent')"
        )
        told = problem(await decide(deciding, needy["id"]), 403, "forbidden")
        assert "consents.sign_off" in told["detail"]
        await door.eyes.rows(
            "with added as (insert into auth_permission (name, codename, content_type_id) select 's', 'sign_off',"
            " id from django_content_type where app_label = 'consents' and model = 'consent' returning id)"
            " insert into sigils_user_user_permissions (user_id, permission_id) select u.id, added.id"
            " from sigils_user u, added where u.username = 'owner of decider'"
        )
        told = problem(await decide(deciding, needy["id"]), 403, "forbidden")
        assert "lawyers" in told["detail"]
        await door.eyes.rows(
            "with made as (insert into auth_group (name) values ('lawyers') returning id)"
            " insert into sigils_user_groups (user_id, group_id) select u.id, made.id from sigils_user u, made"
            " where u.username = 'owner of decider'"
        )
        assert (await decide(deciding, needy["id"])).json()["status"] == "granted"


@pytest.mark.contract("BYD-7")
async def test_a_quorum_needs_different_people_and_one_no_decides(door: Door) -> None:
    second = await door.sigil("second")
    async with door.client() as one, door.client(second) as two:
        found = await asked(door, one, quorum=2)
        first = (await decide(one, found["id"])).json()
        assert (first["status"], first["grants"], first["decided_by"]) == ("pending", 1, None)
        again = (await decide(one, found["id"])).json()
        assert (again["status"], again["grants"]) == ("pending", 1)
        problem(await decide(one, found["id"], "deny"), 409, "already_voted")
        settled = (await decide(two, found["id"])).json()
        assert (settled["status"], settled["grants"], settled["decided_by"]) == ("granted", 2, "owner of second")
        assert (await ended(door, found["run"]))["did"] == ["a"]

        refused = await asked(door, one, quorum=2)
        await decide(one, refused["id"])
        assert (await decide(two, refused["id"], "deny")).json()["status"] == "denied"
        assert (await ended(door, refused["run"]))["did"] == []


async def test_what_is_over_is_expired_at_once_and_cannot_be_decided(door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client, expires_in=3600)
        # The relay is kept away, so that it is the reader and the decider who notice.
        door.vessel.publish_gate.close("test", "the relay is kept away")
        await door.eyes.rows("update consents_consent set expires_at = now() - interval '1 ms'")
        shown = (await client.get(f"/consents/{found['id']}")).json()
        assert (shown["status"], shown["decided_by"]) == ("expired", "clock")
        assert (await client.get("/consents", params={"status": "pending"})).json()["items"] == []
        told = problem(await decide(client, found["id"]), 409, "already_settled")
        assert told["consent"]["status"] == "expired"
        stored = await door.eyes.one("select status, decided_by, surface, comment from consents_consent")
        assert stored == ("expired", "clock", "relay", "")
        door.vessel.publish_gate.open("test")
        assert (await ended(door, found["run"]))["verdicts"] == ["expired"]


async def test_lists_are_paged_newest_first_and_filtered(door: Door) -> None:
    async with door.client() as client:
        made = [(await asked(door, client, title=f"number {n}"))["id"] for n in range(5)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            given = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/consents", params=given)).json()
            TypeAdapter(ConsentPage).validate_python(page)
            seen += [one["id"] for one in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == made[::-1]
        await decide(client, made[0], "deny")
        denied = (await client.get("/consents", params={"status": "denied"})).json()["items"]
        assert [one["id"] for one in denied] == [made[0]]
        problem(await client.get("/consents", params={"status": "maybe"}), 422, "invalid")
        problem(await client.get("/consents", params={"cursor": "nonsense"}), 400, "bad_cursor")
        problem(await client.get(f"/consents/{uuid.uuid4()}"), 404, "not_found")
        problem(await decide(client, str(uuid.uuid4())), 404, "not_found")


async def test_two_who_decide_at_once_are_both_told_who_won(door: Door) -> None:
    second = await door.sigil("second")
    async with door.client() as one, door.client(second) as two:
        found = await asked(door, one)
        answers = await asyncio.gather(decide(one, found["id"], "grant"), decide(two, found["id"], "deny"))
        assert sorted(response.status_code for response in answers) == [200, 409]
        winner, loser = sorted(answers, key=lambda response: response.status_code)
        assert loser.json()["consent"]["status"] == winner.json()["status"]
        assert winner.json()["decided_by"] in loser.json()["detail"]
        assert await door.eyes.one("select count(*) from consents_consentvote") == 1


async def test_the_description_of_the_api_has_the_consents(door: Door) -> None:
    async with door.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    for path, method, codes in [
        ("/api/v1/consents", "get", {"200", "401", "403", "422"}),
        ("/api/v1/consents/{consent_id}", "get", {"200", "304", "404"}),
        ("/api/v1/consents/{consent_id}/decision", "post", {"200", "403", "404", "409", "422", "503"}),
    ]:
        assert codes <= set(paths[path][method]["responses"])


async def test_the_feed_tells_what_waits_and_what_was_answered(door: Door) -> None:
    async with door.client() as client:
        first = await asked(door, client, title="first")
        large = await asked(door, client, title="large", body="x" * 20_000)
        socket = door.socket("/ws/consents/")
        assert (await socket.connect())[0]
        resync = await heard(socket)
        waiting = {one["id"]: one for one in resync["snapshot"]["consents"]}
        assert (resync["type"], set(waiting)) == ("resync", {first["id"], large["id"]})
        assert waiting[first["id"]] == {**first, "shortened": False}
        assert (waiting[large["id"]]["shortened"], waiting[large["id"]]["body"]) == (True, None)
        await decide(client, first["id"])
        told = await heard(socket)
        assert (told["type"], told["id"], told["status"]) == ("consent", first["id"], "granted")
        later = await asked(door, client, title="later")
        news = await heard(socket)
        assert (news["id"], news["status"]) == (later["id"], "pending")
        await socket.disconnect()

        back = door.socket(f"/ws/consents/?cursor={told['cursor']}")
        assert (await back.connect())[0]
        missed = {}
        while later["id"] not in missed:
            one = await heard(back)
            assert one["type"] == "consent"
            missed[one["id"]] = one["status"]
        await back.disconnect()


async def test_the_feed_is_for_those_who_may_read_consents_of_their_tenant(door: Door) -> None:
    async with door.client() as client:
        await asked(door, client)
    runner = await door.sigil("runner", scopes=(Scope.RUNS_READ.value,))
    socket = door.socket("/ws/consents/", token=runner)
    await socket.connect()
    assert (await closed(socket))[0] == 4403
    foreign = door.socket("/ws/consents/", token=await door.sigil("foreign", tenant="lab"))
    await foreign.connect()
    assert (await heard(foreign))["snapshot"]["consents"] == []
    await foreign.disconnect()


async def test_a_follower_who_comes_late_is_told_what_the_run_waits_for(door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client)
        door.vessel.bus.discard(uuid.UUID(found["run"]))
        socket = door.socket(f"/ws/runs/{found['run']}/")
        assert (await socket.connect())[0]
        resync = await heard(socket)
        assert [one["id"] for one in resync["snapshot"]["consents"]] == [found["id"]]
        await socket.disconnect()


@pytest.fixture
def no_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nets are away: what gets through took the road."""

    async def nothing(_: Any) -> bool:
        return False

    monkeypatch.setattr(WaitRelay, "tick", nothing)
    monkeypatch.setattr(DeliveryRelay, "tick", nothing)


@pytest.mark.contract("BYD-9")
async def test_a_verdict_over_rest_needs_no_relay_to_bring_the_run_back(no_relays: None, door: Door) -> None:
    async with door.client() as client:
        found = await asked(door, client)
        await decide(client, found["id"])
        assert (await ended(door, found["run"]))["did"] == ["a"]


@pytest.mark.contract("BYD-9")
async def test_a_verdict_on_a_surface_without_a_broker_is_heard_at_once(no_relays: None, door: Door) -> None:
    """The admin's road: verdict, then the return with a word for the Vessel, each in a transaction of its own."""
    async with door.client() as client:
        found = await asked(door, client)
    consent_id, run_id = uuid.UUID(found["id"]), uuid.UUID(found["run"])
    user = await door.eyes.one("select id from sigils_user where username = 'owner of tester'")
    surface = Ledger(door.vessel.conninfo)
    try:
        vote = Vote(consent_id, True, "admin")
        await surface.script(ScriptFactory[Any](verdict_of, a_voter("anna", user_id=user), vote))
        request = Resume(run_id, KIND.status, KIND.name, consent_id, KIND.resume_proof)
        assert isinstance(await surface.script(ScriptFactory[Any](resume, request)), Won)
    finally:
        await surface.close()
    assert (await ended(door, found["run"]))["did"] == ["a"]
