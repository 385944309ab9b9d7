"""The async client against real sockets: what it sends, and how it bears cuts, refusals and nonsense."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lychd.client import (
    BadAddress,
    Client,
    ConnectionLost,
    End,
    Event,
    Gap,
    Lost,
    Message,
    NotLychd,
    OutcomeUnknown,
    Problem,
    Unreachable,
)
from runs.errors import Refused
from tests.support.scripted import RUN, Answer, Hold, Script, a_problem, a_resync, a_run, an_event, scripted, step

END = {"type": "end", "status": "done"}


async def everything(script: Script, **how: Any) -> list[Message]:
    """All messages of one follower of the script's Run."""
    with scripted(script) as url:
        async with Client(url, "secret") as client, asyncio.timeout(30):
            return [message async for message in client.follow(RUN, **how)]


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages if isinstance(message, Event)]


def kinds(messages: list[Message]) -> list[str]:
    return [type(message).__name__ for message in messages]


async def test_a_submission_is_sent_as_the_interface_has_it_and_a_replay_is_told() -> None:
    script = Script()
    script.answer("POST", "/runs", Answer(201, a_run("queued")))
    with scripted(script) as url:
        async with Client(url, "secret") as client:
            first = await client.submit("tidy", {"a": "\ud800"}, priority=7, session=RUN, source="cli", key="k-1")
            script.answer("POST", "/runs", Answer(200, a_run("done")))
            second = await client.submit("tidy")
    assert (first.replayed, first.run["id"], second.replayed) == (False, RUN, True)
    asked, bare = script.paths("/runs")
    assert asked.body == {"pattern": "tidy", "input": {"a": "\ud800"}, "priority": 7, "session": RUN, "source": "cli"}
    assert bare.body == {"pattern": "tidy", "input": {}}
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["idempotency-key"] == "k-1"
    assert "idempotency-key" not in bare.headers


async def test_a_lost_answer_of_a_submission_is_unknown_and_a_lost_answer_of_a_question_is_not() -> None:
    script = Script()
    script.answer("POST", "/runs", Answer(cut=True))
    script.answer("GET", "/patterns", Answer(cut=True))
    with scripted(script) as url:
        async with Client(url, "secret") as client:
            with pytest.raises(OutcomeUnknown, match="may have been done"):
                await client.submit("tidy")
            with pytest.raises(Unreachable) as caught:
                await client.patterns()
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_nobody_at_the_address_is_one_sentence() -> None:
    with scripted(Script()) as url:
        pass
    async with Client(url, "secret") as client:
        with pytest.raises(Unreachable, match=f"Nobody answers at {url}"):
            await client.run(RUN)


async def test_problem_details_reach_the_caller_whole() -> None:
    script = Script()
    errors = [{"pointer": "/input/root", "detail": "Field required", "code": "missing"}]
    script.answer("POST", "/runs", a_problem(422, "invalid", "The input is not valid.", errors=errors))
    with scripted(script) as url:
        async with Client(url, "secret") as client:
            with pytest.raises(Problem) as caught:
                await client.submit("tidy")
    error = caught.value
    assert (error.status, error.code, error.errors, error.facts["status"]) == (422, "invalid", errors, 422)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, raw=b"<html>hello</html>", kind="text/html"),
        Answer(404, raw=b"<html>not found</html>", kind="text/html"),
        Answer(200, ["a list"]),
        Answer(200, {"no": "items"}),
        Answer(200, raw=b"[" * 100_000),
        Answer(302, raw=b"", headers={"Location": "http://127.0.0.1:1/elsewhere"}),
    ],
)
async def test_whatever_is_no_vessel_is_told_apart_and_a_redirect_is_not_followed(answer: Answer) -> None:
    script = Script()
    script.answer("GET", "/patterns", answer)
    with scripted(script) as url:
        async with Client(url, "secret") as client:
            with pytest.raises(NotLychd):
                await client.patterns()
    assert len(script.asked) == 1


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://h", "http://", "http://h:0", "http://h:99999", "http://u:p@h/"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(BadAddress, match="not the address of a Vessel"):
        Client(url, "secret")


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ü"])
def test_a_token_that_no_header_can_hold_is_refused(token: str) -> None:
    with pytest.raises(BadAddress, match="token"):
        Client("http://127.0.0.1:8000", token)


async def test_an_id_that_is_none_never_leaves_the_machine() -> None:
    async with Client("http://127.0.0.1:1", "secret") as client:
        with pytest.raises(Refused, match="not the id of a Run"):
            await client.run("../../admin")


async def test_a_client_that_is_moved_asks_at_the_new_address() -> None:
    old, new = Script(), Script(run=a_run("done"))
    with scripted(old) as first, scripted(new) as second:
        async with Client(first, "secret") as client:
            assert (await client.run(RUN))["status"] == "running"
            await client.move(second)
            assert (await client.run(RUN))["status"] == "done"
            assert client.url == second


async def test_a_run_is_followed_from_its_first_event_to_its_end() -> None:
    events = [an_event(0, "status"), an_event(1), an_event(2, "token", text="a"), an_event(3, "done", status="done")]
    script = Script(plays=[[*events, END]])
    messages = await everything(script)
    assert seqs(messages) == [0, 1, 2, 3]
    assert messages[-1] == End("done", END)
    assert script.paths(f"/runs/{RUN}/steps") == []


@pytest.mark.contract("BYD-12")
async def test_a_cut_connection_goes_on_from_the_last_cursor_and_tells_nothing_twice() -> None:
    first = [an_event(0), an_event(1), an_event(2, "token", text="x")]
    # A server that replays more than it was asked for does no harm either.
    second = [an_event(1), an_event(3), an_event(4, "done"), END]
    script = Script(plays=[first, [], second])
    messages = await everything(script)
    assert kinds(messages) == ["Event", "Event", "Event", "Lost", "Lost", "Event", "Event", "End"]
    assert seqs(messages) == [0, 1, 2, 3, 4]
    cursors = [asked.headers.get("last-event-id") for asked in script.paths(f"/runs/{RUN}/events")]
    assert cursors == [None, "e1-2", "e1-2"]
    pauses = [message.pause for message in messages if isinstance(message, Lost)]
    assert pauses == [0.1, 0.2]


@pytest.mark.contract("BYD-12", "EVT-3")
async def test_what_a_resync_left_out_comes_from_the_stored_steps_in_order_and_once() -> None:
    stored = [step(an_event(seq)) for seq in range(8)]
    play = [an_event(0), an_event(1), a_resync("e1-7", a_run()), an_event(8), an_event(9, "done"), END]
    messages = await everything(Script(plays=[play], steps=stored))
    assert seqs(messages) == list(range(10))
    assert kinds(messages).index("Resync") == 2


@pytest.mark.contract("BYD-12")
async def test_a_reader_who_comes_after_the_end_gets_every_step() -> None:
    stored = [step(an_event(seq)) for seq in range(7)] + [step(an_event(7, "done"))]
    messages = await everything(Script(plays=[[a_resync("e9-7", a_run("done")), END]], steps=stored))
    assert kinds(messages) == ["Resync", *["Event"] * 8, "End"]
    assert seqs(messages) == list(range(8))


@pytest.mark.contract("BYD-12")
async def test_a_gap_in_the_steps_is_named_where_it_lies() -> None:
    stored = [step(an_event(seq)) for seq in (0, 3, 4)] + [step(an_event(9)) | {"tokens": 2}]
    messages = await everything(Script(plays=[[a_resync("e9-9", a_run("done")), END]], steps=stored))
    told = [message for message in messages if isinstance(message, Event | Gap)]
    shown = [message.seq if isinstance(message, Event) else (message.first, message.last) for message in told]
    assert shown == [0, (1, 2), 3, 4, (5, 6), 9]


async def test_steps_that_are_stored_late_are_waited_for_before_what_follows_is_told() -> None:
    script = Script(steps=[step(an_event(0))])

    def write_late() -> None:
        asked = script.paths(f"/runs/{RUN}/steps")
        if len(asked) > 3:
            script.steps = [step(an_event(seq)) for seq in (0, 1, 2, 3, 5)]

    def answer(asked: Any) -> Answer:
        write_late()
        found = [one for one in script.steps if one["seq"] > int(asked.query["after_seq"])]
        return Answer(200, {"items": found, "gaps": [], "next_after": None})

    script.answer("GET", f"/runs/{RUN}/steps", answer)
    # A token after the resync must not hide that events 1 to 3 were never told.
    play = [a_resync("e1-3", a_run()), an_event(4, "token", text="t"), an_event(5), an_event(6, "done"), END]
    script.plays = [play]

    messages = await everything(script)
    assert [seq for seq in seqs(messages) if seq != 4] == [0, 1, 2, 3, 5, 6]
    assert not [message for message in messages if isinstance(message, Gap)]


async def test_events_that_neither_stream_nor_steps_hold_are_named_when_nothing_proves_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lychd.client.follow.LAG_SECONDS", 0.05)
    play = [an_event(0), a_resync("e1-3", a_run()), an_event(4), an_event(5, "done"), END]
    messages = await everything(Script(plays=[play], steps=[step(an_event(0))]))
    assert Gap(1, 3) in messages
    assert seqs(messages) == [0, 4, 5]


async def test_numbers_that_a_restart_gives_out_again_are_told_as_new_events() -> None:
    # Tokens 2 to 4 were never stored, so the next boot's channel begins at 2 again.
    first = [an_event(0), an_event(1), *[an_event(seq, "token", text="t") for seq in (2, 3, 4)]]
    second = [a_resync("e2-1", a_run()), an_event(2, epoch="e2"), an_event(3, "done", epoch="e2"), END]
    script = Script(plays=[first, second], steps=[step(an_event(0)), step(an_event(1))])
    messages = await everything(script)
    assert [message.cursor for message in messages if isinstance(message, Event)][-2:] == ["e2-2", "e2-3"]
    assert seqs(messages) == [0, 1, 2, 3, 4, 2, 3]


async def test_with_a_cursor_only_what_came_later_is_told() -> None:
    script = Script(plays=[[an_event(6, "token", text="t"), an_event(7), END]], steps=[step(an_event(0))])
    messages = await everything(script, cursor="e1-5")
    assert seqs(messages) == [6, 7]
    assert script.paths(f"/runs/{RUN}/events")[0].headers["last-event-id"] == "e1-5"


async def test_a_server_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not() -> None:
    script = Script(plays=[[an_event(0, "done"), END]])
    path = f"/runs/{RUN}/events"
    answers = iter([a_problem(503, "not_admitting", "Starting."), Answer(502, raw=b"<html>", kind="text/html")])

    def answer(_: Any) -> Answer:
        try:
            return next(answers)
        finally:
            if len(script.paths(path)) == 2:
                del script.answers["GET", path]

    script.answer("GET", path, answer)
    messages = await everything(script)
    assert kinds(messages) == ["Lost", "Lost", "Event", "End"]

    script.answer("GET", path, a_problem(404, "not_found", "There is no such Run."))
    with pytest.raises(Problem, match="no such Run"):
        await everything(script)


async def test_following_gives_up_when_the_server_stays_away() -> None:
    with scripted(Script()) as url:
        pass
    async with Client(url, "secret") as client:
        with pytest.raises(ConnectionLost, match=r"did not come back in 0\.5 s"):
            [message async for message in client.follow(RUN, patience=0.5)]


@pytest.mark.parametrize(
    "nonsense",
    [b"data: not json\n\n", b"data: [1]\n\n", b'data: {"type":"event"}\n\n', b'data: {"type":"resync"}\n\n'],
)
async def test_nonsense_in_the_stream_ends_following_with_one_error(nonsense: bytes) -> None:
    with pytest.raises(NotLychd):
        await everything(Script(plays=[[nonsense]]))


async def test_a_stream_that_is_none_ends_following_at_once() -> None:
    script = Script()
    script.answer("GET", f"/runs/{RUN}/events", Answer(200, {}))
    with pytest.raises(NotLychd, match="event stream"):
        await everything(script)


async def test_messages_of_a_later_server_are_passed_over() -> None:
    messages = await everything(Script(plays=[[{"type": "weather", "sun": True}, an_event(0, "done"), END]]))
    assert kinds(messages) == ["Event", "End"]


async def test_leaving_closes_the_connection() -> None:
    script = Script(plays=[[an_event(0), Hold()]])
    with scripted(script) as url:
        async with Client(url, "secret") as client:
            messages = client.follow(RUN)
            assert isinstance(await anext(messages), Event)
            await messages.aclose()


@pytest.mark.contract("BYD-12")
async def test_a_resync_that_is_cut_while_it_is_backfilled_loses_nothing() -> None:
    script = Script(steps=[step(an_event(seq)) for seq in range(6)])
    path, refused = f"/runs/{RUN}/steps", iter([True])

    def once(_: Any) -> Answer:
        next(refused)
        del script.answers["GET", path]
        return Answer(cut=True)

    script.answer("GET", path, once)
    script.plays = [[a_resync("e1-5", a_run())], [an_event(6), an_event(7, "done"), END]]
    messages = await everything(script)
    assert kinds(messages)[:2] == ["Resync", "Lost"]
    assert seqs(messages) == list(range(8))
    assert isinstance(messages[-1], End)
