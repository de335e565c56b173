"""Companions in tools under `writes` and `step`: their steps are part of the call, and stand or fall with it."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.state import Step
from holdfast.state.storage.entries import KIND
from tests.deadlines import patience
from tests.state.companions.writing import Draft, Studio, Writer
from tests.state.frameworks.test_taking import Server, both_frameworks

pytestmark = pytest.mark.anyio


@both_frameworks
@pytest.mark.promise("companions.call")
async def test_a_tool_is_one_step_and_what_it_returns_is_recorded(framework: str) -> None:
    sessions = holdfast.Sessions(Studio)
    told: list[Any] = []
    writers = holdfast.Companions(Writer, sessions, on_event=told.append)
    shop = Server(framework)
    sessions.install(shop.server)

    @shop.tool
    @sessions.writes
    @writers.step("draft", to="drafted")
    async def write(text: str, studio: Studio, draft: Draft) -> str:
        studio.topic = "kelp"
        draft.text = text
        return text

    @shop.tool
    @writers.step("critique", to="criticised")
    @writers.requires("drafted", "revised")
    async def critique(writer: Writer, step: Step[Draft]) -> list[str]:
        step.note("seen", writer.state.text)
        return ["too short"]

    async with shop.running() as call:
        assert set((await shop.schema("write"))["properties"]) == {"text", "studio_id"}
        begun = await sessions.begin()
        failed, said = await call("critique", studio_id=begun.handle)
        assert failed
        assert "'critique' leads to 'criticised'" in said or "needs 'drafted'" in said
        assert await call("write", text="Once", studio_id=begun.handle) == (False, "Once")
        assert (await call("critique", studio_id=begun.handle))[0] is False
        writer = await writers.for_session(begun)
        assert (writer.phase, writer.state.text) == ("criticised", "Once")
        assert [(entry.label, entry.data) for entry in await writer.log.last()] == [
            ("draft", "Once"),
            ("critique", ["too short"]),
            ("seen", "Once"),
        ]
        assert (await begun.read()).topic == "kelp"
        assert [each.step for each in told if hasattr(each, "step")] == ["draft", "critique"]


@both_frameworks
@pytest.mark.promise("companions.call")
async def test_steps_of_a_call_that_raises_is_cancelled_or_conflicts_are_visible_nowhere(framework: str) -> None:
    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Studio, store)
        told: list[Any] = []
        writers = holdfast.Companions(Writer, sessions, on_event=told.append)
        shop = Server(framework)
        sessions.install(shop.server)
        inside = asyncio.Event()

        @shop.tool
        @sessions.writes
        @writers.writes
        async def work(how: str, studio: Studio, writer: Writer) -> str:
            studio.topic = how
            async with writer.step("draft", to="drafted") as turn:
                turn.state.text = how
                turn.record(how)
            async with writer.step("critique", to="criticised") as turn:
                turn.record([how])
            assert writer.phase == "criticised"
            assert [entry.label for entry in await writer.log.last()] == ["draft", "critique"]
            inside.set()
            if how == "raise":
                raise RuntimeError("half-way")
            if how == "hang":
                await asyncio.Event().wait()
            if how == "conflict":  # by a writer that takes no turn
                record = await store.get(KIND, writer.handle)
                assert record is not None
                await store.commit(record, expect=record.rev)
            return how

        async with shop.running() as call:
            begun = await sessions.begin()
            before = await writers.for_session(begun)
            assert (await call("work", how="raise", studio_id=begun.handle))[0]
            inside.clear()
            hanging = asyncio.ensure_future(call("work", how="hang", studio_id=begun.handle))
            await inside.wait()
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)
            async with asyncio.timeout(patience(5)):
                while await store.holder(KIND, begun.handle) is not None:
                    await asyncio.sleep(0)
            failed, said = await call("work", how="conflict", studio_id=begun.handle)
            assert failed
            assert "nothing of this call was kept; do it again" in said
            after = await writers.for_session(begun)
            assert (after.phase, after.state, await after.log.last()) == ("empty", before.state, [])
            assert (await begun.read()).topic == ""
            assert told == []
            assert await call("work", how="good", studio_id=begun.handle) == (False, "good")
            after = await writers.for_session(begun)
            assert (after.phase, after.state.text) == ("criticised", "good")
            assert [each.step for each in told] == ["draft", "critique"]
