"""One companion: steps, long turns, undo and judgement, alone and against others."""

import asyncio
import json
from typing import Any

import pytest

import holdfast
from holdfast.events import CompanionRefused, CompanionStepped, Event
from holdfast.state.companions.insight import Convergence
from tests.state.companions.writing import ALICE, Studio, Writer, drafted, round_of

pytestmark = pytest.mark.anyio


@pytest.mark.promise("companions.work")
async def test_draft_critique_revise_is_remembered_with_its_numbers(url: str) -> None:
    told: list[Event] = []
    async with holdfast.open_store(url) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions, on_event=told.append)
        session = await sessions.begin(ALICE)
        writer = await drafted(writers, session)
        for number, points in enumerate((["a", "b", "c"], ["a"], [])):
            await round_of(writer, number, points)
        found = await (await writers.for_session(await sessions.find(session.handle, ALICE))).insight()
        assert (found.phase, found.iteration, found.total_iterations) == ("revised", 3, 3)
        assert found.convergence.critiques == (3, 1, 0)
        assert found.convergence.falling
        assert found.convergence.reached
        assert found.convergence.similarity is not None
        labels = [entry.label async for entry in writer.log]
        assert labels == ["draft", "query", "message", "message", *(["critique", "revision"] * 3)]
        assert [entry.data for entry in await writer.log.last(2, label="revision")] == ["text 1", "text 2"]
        assert [message["role"] for message in await writer.history()] == ["user", "assistant"]
        assert "user: write about kelp\nassistant: text\n[critique]" in await writer.transcript()
        lines = [json.loads(line) async for line in writer.json_lines()]
        assert [line["label"] for line in lines] == labels
        stepped = [event for event in told if isinstance(event, CompanionStepped)]
        assert [event.phase for event in stepped] == ["drafted", *(["criticised", "revised"] * 3)]
        assert [event.iteration for event in stepped][-1] == 3
        assert sum(event.converged for event in stepped) == 1
        async with writer.step("draft") as turn:  # a new query begins to count anew
            turn.note("query", "moss")
        assert (await writer.insight()).iteration == 0
        assert (await writer.insight()).total_iterations == 3


@pytest.mark.promise("companions.phases")
async def test_a_forbidden_step_is_refused_and_leaves_it_unchanged() -> None:
    told: list[Event] = []
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, on_event=told.append)
    writer = await writers.for_session(await sessions.begin(ALICE))
    with pytest.raises(holdfast.errors.WrongPhase, match="in phase 'empty'") as refused:
        async with writer.step("revision", to="revised"):
            raise AssertionError("it must not begin")
    assert refused.value.phase == "empty"
    assert "next comes 'drafted'" in str(refused.value)
    with pytest.raises(holdfast.UsageError, match="no phase 'finished'"):
        async with writer.step("x", to="finished"):
            pass
    with pytest.raises(holdfast.errors.UnstorableValue):
        async with writer.step("draft", to="drafted") as turn:
            turn.record(object())  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="does not validate"):
        async with writer.step("draft", to="drafted") as turn:
            turn.state.points.append(7)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        async with writer.step("draft", to="drafted") as turn:
            turn.state.text = "half"
            raise RuntimeError("half-way")
    with pytest.raises(holdfast.UsageError, match="counts iterations"):
        await writer.note("revision", "x")
    await writer.read()
    assert (writer.phase, writer.rev, writer.state.text) == ("empty", 1, "")
    assert [event.phase for event in told if isinstance(event, CompanionRefused)] == ["empty"]
    await writer.note("thought", {"why": "kelp"})
    assert [entry.label for entry in await writer.log.last()] == ["thought"]


@pytest.mark.promise("companions.phases")
async def test_a_judgement_that_raises_refuses_the_step() -> None:
    class Judge(Writer):
        broken = False

        def converged(self, signs: Convergence) -> bool:
            if type(self).broken:
                raise ZeroDivisionError("of nothing")
            return len(signs.critiques) > 1

    sessions = holdfast.Sessions(Studio)
    judges = holdfast.Companions(Judge, sessions)
    judge = await judges.for_session(await sessions.begin(ALICE))
    assert not (await judge.insight()).convergence.reached
    Judge.broken = True
    with pytest.raises(holdfast.UsageError, match="ZeroDivisionError"):
        async with judge.step("draft", to="drafted"):
            pass
    Judge.broken = False
    await judge.read()
    assert (judge.phase, judge.rev) == ("empty", 1)


@pytest.mark.promise("companions.parallel")
async def test_parallel_steps_have_one_order_and_the_loser_is_told(url: str) -> None:
    async with holdfast.open_store(url) as one, holdfast.open_store(url) as other:
        places = [holdfast.Sessions(Studio, store) for store in (one, other)]
        kinds = [holdfast.Companions(Writer, place) for place in places]
        session = await places[0].begin(ALICE)
        await drafted(kinds[0], session)
        told: list[str] = []

        async def criticise(number: int) -> int:
            kind = kinds[number % 2]
            writer = await kind.for_session(await places[number % 2].find(session.handle, ALICE))
            try:
                async with writer.step("critique", to="criticised") as turn:
                    turn.record([str(number)])
                    await asyncio.sleep(0)
                return 1
            except (holdfast.errors.Conflict, holdfast.errors.WrongPhase) as error:
                told.append(str(error))
                return 0

        assert sum(await asyncio.gather(*(criticise(number) for number in range(10)))) == 1
        assert len(told) == 9
        assert all("phase 'criticised'" in said for said in told)
        writer = await kinds[0].for_session(session)
        assert len(await writer.log.last(20, label="critique")) == 1


@pytest.mark.promise("companions.parallel")
async def test_a_long_turn_whose_holder_dies_is_left_and_nothing_of_it_is_seen() -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions)
        session = await sessions.begin(ALICE)
        await drafted(writers, session)
        first, second = await writers.for_session(session), await writers.for_session(session)
        entered = asyncio.Event()

        async def hangs() -> None:
            async with first.lease("critique", to="criticised", ttl=30) as turn:
                turn.record(["never"])
                entered.set()
                await asyncio.Event().wait()

        holder = asyncio.ensure_future(hangs())
        await entered.wait()
        for other in (second.step("critique", to="criticised"), second.lease("critique", to="criticised")):
            with pytest.raises(holdfast.errors.Busy):
                async with other:
                    pass
        clock.advance(31)  # as if its process were gone: nobody renewed it
        async with second.lease("critique", to="criticised") as turn:
            turn.record(["mine"])
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        await first.read()
        assert first.phase == "criticised"
        assert [entry.data for entry in await first.log.last(9, label="critique")] == [["mine"]]


@pytest.mark.promise("companions.parallel")
async def test_during_a_long_turn_nobody_else_writes_and_an_undo_loses_nothing() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)
    session = await sessions.begin(ALICE)
    writer = await drafted(writers, session)
    other = await writers.for_session(session)
    third, early = await writers.for_session(session), other.step("critique", to="criticised")
    await early.__aenter__()  # begun before the turn
    async with writer.lease("critique", to="criticised") as turn:
        turn.record(["mine"])
        await writer.note("thought", "goes with the turn")
        for write in (third.undo(), third.note("x"), early.__aexit__(None, None, None)):
            with pytest.raises(holdfast.errors.Busy, match="in phase 'drafted'"):
                await write
    assert [entry.label for entry in await writer.log.last(2)] == ["critique", "thought"]

    store = await sessions.open()
    plain = await sessions.begin(ALICE, Studio(topic="a"))
    await plain.update(lambda state: setattr(state, "topic", "b"))
    log = store.log
    again = await sessions.find(plain.handle, ALICE)

    async def meanwhile(*args: Any, **kwargs: Any) -> Any:
        store.log = log  # type: ignore[method-assign]
        await again.update(lambda state: setattr(state, "topic", "c"))
        await plain.read()
        return await log(*args, **kwargs)

    store.log = meanwhile  # type: ignore[method-assign]
    with pytest.raises(holdfast.errors.Conflict):
        await plain.undo()
    assert (await plain.read()).topic == "c"


@pytest.mark.promise("companions.genealogy")
async def test_an_undo_takes_back_one_step_and_only_a_real_one_counts() -> None:
    told: list[Any] = []
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions, on_event=told.append)
    writer = await drafted(writers, await sessions.begin(ALICE))
    async with writer.step("critique") as turn:
        turn.record(["a", "b"])  # a step that only records
    await writer.note("undo", "is what an author may call a note")
    assert (await writer.insight()).convergence.critiques == (2,)
    await writer.undo()
    assert (writer.phase, writer.state.text) == ("drafted", "text")
    assert (await writer.insight()).convergence.critiques == ()
    assert told[-1].step == "undo"
