"""The saved session: adopted without a round trip, verified by use, and shared by compare-and-swap."""

import asyncio
import sys
from dataclasses import replace
from json import dumps
from typing import Any

import pytest

import holdfast
from holdfast import Principal, events
from holdfast.links import HttpMemory, Limits, StoreMemory
from holdfast.stores import Record
from holdfast.testing import Fault, FaultServer
from tests.deadlines import patience, until
from tests.links.memory.documents import Documents
from tests.links.quick_links import FAST, link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.memory")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_saved_session_is_adopted_with_no_round_trip(memories: Any, era: Any) -> None:
    heard: list[events.Event] = []
    async with FaultServer(era=era) as server:
        first = link_to(server.url, memory=memories(), stream=False)
        await first.request("tools/call", tool("count"))
        session = first.session_id
        await first.close()
        assert server.sessions.deletes == 0  # kept: somebody may go on with it
        before = len(server.requests)
        second = link_to(server.url, memory=memories(), stream=False, on_event=heard.append)
        result = await second.request("tools/call", tool("count"))
        assert [request.method for request in server.requests[before:]] == ["tools/call"]
        if era == "2025":
            assert text_of(result) == "2"
            assert second.session_id == session
        assert second.handshake is not None
        assert second.handshake.capabilities["tools"] == {"listChanged": True}
        [handshake_done] = [event for event in heard if isinstance(event, events.HandshakeDone)]
        assert handshake_done.adopted
        assert second.statistics().adoptions == 1
        await second.close(end=True)
        third = link_to(server.url, memory=memories(), stream=False)
        await third.request("tools/list")
        assert third.statistics().handshakes == 1
        await third.close(end=True)


@pytest.mark.promise("link.memory")
async def test_an_adopted_session_that_is_gone_is_replaced_and_the_caller_told(memories: Any) -> None:
    async with FaultServer() as server:
        first = link_to(server.url, memory=memories())
        await first.request("tools/call", tool("count"))
        await first.close()
        server.sessions.sessions.clear()
        async with link_to(server.url, memory=memories()) as second:
            with pytest.raises(holdfast.SessionReplaced):
                await second.request("tools/call", tool("count"))
            assert text_of(await second.request("tools/call", tool("count"))) == "1"
        async with link_to(server.url, memory=memories()) as third:  # the new one was saved
            assert text_of(await third.request("tools/call", tool("count"))) == "2"
            await third.close(end=True)


@pytest.mark.promise("link.memory")
async def test_links_that_lose_one_session_agree_on_one_new_session(memories: Any) -> None:
    async with FaultServer() as server:
        links = [link_to(server.url, memory=memories(), stream=False) for _ in range(8)]
        await links[0].request("tools/list")
        await asyncio.gather(*(link.request("tools/list") for link in links))
        assert server.sessions.handshakes == 1
        server.sessions.sessions.clear()
        await asyncio.gather(*(link.request("tools/list") for link in links))
        await until(lambda: len(server.sessions.sessions) == 1)  # what lost the race was ended
        assert {link.session_id for link in links} == set(server.sessions.sessions)
        await asyncio.gather(*(link.close() for link in links))


@pytest.mark.promise("link.memory")
async def test_what_was_saved_for_another_or_with_more_capabilities_is_not_adopted(store: holdfast.Store) -> None:
    async with FaultServer() as server:
        first = link_to(server.url, memory=StoreMemory(store, "one"), capabilities={"sampling": {}, "roots": {}})
        await first.request("tools/list")
        await first.close()
        # We can do less than was promised: the server could ask for what we can't.
        lesser = link_to(server.url, memory=StoreMemory(store, "one"), capabilities={"sampling": {}})
        await lesser.request("tools/list")
        assert lesser.statistics().adoptions == 0
        await lesser.close()
        more = link_to(server.url, memory=StoreMemory(store, "one"), capabilities={"sampling": {}, "elicitation": {}})
        await more.request("tools/list")
        assert more.statistics().adoptions == 1
        await more.close()
        mallory = Principal("mallory")
        other = link_to(server.url, memory=StoreMemory(store, "one", principal=mallory), principal=mallory)
        await other.request("tools/list")
        assert other.statistics().adoptions == 0
        await other.close(end=False)
        pinned = link_to(server.url, memory=StoreMemory(store, "one"), capabilities={"sampling": {}}, era="2025")
        await pinned.request("tools/list")
        assert pinned.statistics().adoptions == 1
        await pinned.close()


@pytest.mark.promise("link.memory")
async def test_what_a_session_was_told_is_kept_with_it(memories: Any) -> None:
    async with FaultServer() as server:
        first = link_to(server.url, memory=memories())
        await first.request("logging/setLevel", {"level": "error"})
        await first.request("resources/subscribe", {"uri": "a:1"})
        await first.close()
        async with link_to(server.url, memory=memories()) as second:
            await second.request("tools/list")
            server.sessions.sessions.clear()
            await second.request("tools/list")
            [session] = server.sessions.sessions.values()
            assert (session.log_level, session.subscribed) == ("error", {"a:1"})


@pytest.mark.promise("link.memory")
async def test_only_the_holder_of_the_claim_reads_the_servers_stream(store: holdfast.Store) -> None:
    async with FaultServer() as server:
        links = [link_to(server.url, memory=StoreMemory(store, "one")) for _ in range(3)]
        for link in links:
            await link.request("tools/list")
        await until(lambda: server.streams == 1)
        assert await store.holder("link", "one") is not None
        await links[0].close()
        assert await store.holder("link", "one") is None
        await links[1].close()
        await links[2].close(end=True)


@pytest.mark.promise("link.memory")
@pytest.mark.parametrize("broken", ["down", "garbage", "foreign"])
async def test_a_memory_that_fails_is_told_and_the_link_goes_on(documents: Documents, broken: str) -> None:
    heard: list[events.Event] = []
    if broken == "down":
        documents.down = True
    elif broken == "garbage":
        documents.kept["/sessions/one"] = (1, b"<html>")
    else:
        documents.kept["/sessions/one"] = (1, dumps({"session": "a\nb", "era": "2025"}).encode())
    async with FaultServer() as server:
        memory = HttpMemory(documents.url, name="one")
        async with link_to(server.url, memory=memory, on_event=heard.append) as link:
            assert (await link.request("tools/list"))["tools"]
    assert any(isinstance(event, events.MemoryFailed) for event in heard)


@pytest.mark.promise("link.memory")
async def test_a_record_that_is_no_session_is_told_and_not_adopted(store: holdfast.Store) -> None:
    heard: list[events.Event] = []
    await store.commit(Record("link", "one", data={"session": "x"}), expect=0)
    memory = StoreMemory(store, "one")
    async with FaultServer() as server, link_to(server.url, memory=memory, on_event=heard.append) as link:
        assert (await link.request("tools/list"))["tools"]
    assert any(isinstance(event, events.MemoryFailed) for event in heard)


@pytest.mark.promise("link.memory")
async def test_a_401_does_not_cost_the_saved_session(memories: Any) -> None:
    tokens = iter(["old", "new", "newer"])

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {next(tokens)}"}

    async with FaultServer(bearer="old") as server:
        target = holdfast.links.HttpTarget(server.url, headers=headers)
        async with link_to(target, memory=memories(), stream=False) as link:
            assert text_of(await link.request("tools/call", tool("count"))) == "1"
            server.bearer = "new"
            assert text_of(await link.request("tools/call", tool("count"))) == "2"
            server.plan(Fault.STATUS, method="tools/call", status=500)
            with pytest.raises(holdfast.errors.BadAnswer):
                await link.request("tools/call", tool("count"))
            assert text_of(await link.request("tools/call", tool("count"))) == "3"
            await link.close(end=True)


class Away(StoreMemory):
    """A memory whose store can be out of reach."""

    down = False

    def _reach(self) -> None:
        if self.down:
            raise holdfast.errors.StoreDown("the store is out of reach")

    async def load(self) -> Any:
        self._reach()
        return await super().load()

    async def save(self, saved: Any, token: object) -> object:
        self._reach()
        return await super().save(saved, token)


@pytest.mark.promise("link.state-loss")
async def test_a_loss_that_only_a_safe_call_met_is_told_after_a_restart(memories: Any) -> None:
    async with FaultServer() as server:
        first = link_to(server.url, memory=memories(), stream=False)
        await first.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        await first.request("tools/list")
        # As if it had been killed: nothing is closed before the others are done.
        async with link_to(server.url, memory=memories(), stream=False) as second:
            await second.request("tools/list")
            with pytest.raises(holdfast.SessionReplaced):
                await second.request("tools/call", tool("count", call="x"))
            assert server.effects["x"] == 0
            assert text_of(await second.request("tools/call", tool("count"))) == "1"
        async with link_to(server.url, memory=memories(), stream=False) as third:
            assert text_of(await third.request("tools/call", tool("count"))) == "2"  # it was told
        await first.close()


@pytest.mark.promise("link.state-loss")
async def test_a_loss_stays_to_be_reported_until_it_is_confirmed(store: holdfast.Store) -> None:
    async with FaultServer() as server:
        options: dict[str, Any] = {"stream": False, "confirm_losses": True}
        async with link_to(server.url, memory=StoreMemory(store, "one"), **options) as first:
            await first.request("tools/call", tool("count"))
            server.sessions.sessions.clear()
            for _ in range(2):  # met by the call itself, then remembered
                with pytest.raises(holdfast.SessionReplaced):
                    await first.request("tools/call", tool("count"))
        async with link_to(server.url, memory=StoreMemory(store, "one"), **options) as second:
            with pytest.raises(holdfast.SessionReplaced):
                await second.request("tools/call", tool("count"))
            assert second.losses.pending is not None
            second.losses.reported(second.losses.pending)
            assert text_of(await second.request("tools/call", tool("count"))) == "1"
        async with link_to(server.url, memory=StoreMemory(store, "one"), **options) as third:
            assert text_of(await third.request("tools/call", tool("count"))) == "2"


@pytest.mark.promise("link.state-loss")
@pytest.mark.parametrize("again", [False, True])
async def test_what_another_link_left_in_a_session_is_told_to_the_link_that_began_it(
    memories: Any, again: bool
) -> None:
    async with FaultServer() as server:
        first = link_to(server.url, memory=memories(), stream=False)
        second = link_to(server.url, memory=memories(), stream=False)
        if again:  # the session that the first one began is itself in place of a lost one
            await first.request("tools/call", tool("count"))
            server.sessions.sessions.clear()
            with pytest.raises(holdfast.SessionReplaced):
                await first.request("tools/call", tool("count"))
        await first.request("tools/list")
        await second.request("tools/call", tool("count"))
        await first.request("logging/setLevel", {"level": "info"})  # what it saves does not undo what it does not know
        server.sessions.sessions.clear()
        with pytest.raises(holdfast.SessionReplaced):
            await first.request("tools/call", tool("count", call="x"))
        assert server.effects["x"] == 0
        assert text_of(await first.request("tools/call", tool("count"))) == "1"
        for link in (first, second):
            await link.close()


@pytest.mark.promise("link.state-loss")
async def test_a_session_that_nobody_else_used_is_replaced_without_a_word(memories: Any) -> None:
    async with FaultServer() as server:
        async with link_to(server.url, memory=memories(), stream=False) as link:
            await link.request("tools/list")
            server.sessions.sessions.clear()
            assert text_of(await link.request("tools/call", tool("count"))) == "1"


@pytest.mark.promise("link.state-loss")
async def test_a_loss_while_the_memory_is_away_is_told_by_a_link_that_left_nothing(documents: Documents) -> None:
    async with FaultServer() as server:
        async with link_to(server.url, memory=HttpMemory(documents.url, name="one"), stream=False) as link:
            await link.request("tools/list")
            documents.down = True
            server.sessions.sessions.clear()
            with pytest.raises(holdfast.SessionReplaced):  # another link may have used it: nobody can say
                await link.request("tools/call", tool("count"))
            documents.down = False


@pytest.mark.promise("link.state-loss")
@pytest.mark.parametrize("met", ["by the call", "before"])
async def test_a_loss_that_one_link_has_reported_is_told_by_no_other(store: holdfast.Store, met: str) -> None:
    async with FaultServer() as server:
        options: dict[str, Any] = {"stream": False, "confirm_losses": True}
        first = link_to(server.url, memory=StoreMemory(store, "one"), **options)
        second = link_to(server.url, memory=StoreMemory(store, "one"), **options)
        for link in (first, second):
            await link.request("tools/call", tool("count"))
        server.sessions.sessions.clear()
        await first.request("tools/list")
        if met == "before":
            await second.request("tools/list")
            assert second.losses.pending is not None
        with pytest.raises(holdfast.SessionReplaced):
            await first.request("tools/call", tool("count"))
        assert first.losses.pending is not None
        first.losses.reported(first.losses.pending)
        async with asyncio.timeout(patience(5)):
            while "'unreported_loss': True" in str(await store.get("link", "one")):
                continue  # until it is written down
        assert text_of(await first.request("tools/call", tool("count"))) == "1"
        assert text_of(await second.request("tools/call", tool("count"))) == "2"
        await second.request("logging/setLevel", {"level": "info"})  # it writes no old news
        for link in (first, second):
            await link.close()
        async with link_to(server.url, memory=StoreMemory(store, "one"), **options) as third:
            assert text_of(await third.request("tools/call", tool("count"))) == "3"


@pytest.mark.promise("link.state-loss")
async def test_a_new_program_where_one_was_saved_is_told_as_a_replacement(store: holdfast.Store) -> None:
    notebook = holdfast.links.CommandTarget(sys.executable, ("-m", "holdfast.gateway.demo.notebook"))
    heard: list[events.Event] = []

    def link() -> holdfast.Link:
        return link_to(notebook, memory=StoreMemory(store, "one"), era="2025", on_event=heard.append, limits=Limits())

    async with link() as first:
        assert text_of(await first.request("tools/call", tool("write", text="a"))) == "noted, 1 so far"
    async with link() as second:
        assert await second.request("tools/call", tool("read"), safe=True)
        with pytest.raises(holdfast.SessionReplaced):
            await second.request("tools/call", tool("write", text="b"))
        assert text_of(await second.request("tools/call", tool("write", text="b"))) == "noted, 1 so far"
        assert second.statistics().replacements == 1
        await second.close(end=True)
    assert sum(isinstance(event, events.LinkSessionReplaced) for event in heard) == 1
    async with link() as third:  # the second was ended, so nothing is missed
        assert text_of(await third.request("tools/call", tool("write", text="c"))) == "noted, 1 so far"
        await third.close(end=True)


@pytest.mark.promise("link.memory")
@pytest.mark.parametrize("program", [True, False])
async def test_a_link_that_came_up_before_it_had_a_memory_keeps_its_session_there(
    store: holdfast.Store, program: bool
) -> None:
    alice = Principal("alice")
    async with FaultServer() as server:
        notebook = holdfast.links.CommandTarget(sys.executable, ("-m", "holdfast.gateway.demo.notebook"))
        target, unsafe = (notebook, tool("write", text="a")) if program else (server.url, tool("count"))
        options: dict[str, Any] = {"era": "2025", "stream": False, "limits": Limits()}
        spare = link_to(target, **options)
        await spare.open()
        assert await store.get("link", "one") is None
        spare.saved.keep_in(StoreMemory(store, "one", principal=alice), alice, spare.lifecycle.generation)
        await spare.request("tools/call", unsafe)
        await spare.close()  # as at a rest: not ended
        memory = StoreMemory(store, "one", principal=alice)
        async with link_to(target, memory=memory, principal=alice, **options) as next_one:
            if program:
                with pytest.raises(holdfast.SessionReplaced):
                    await next_one.request("tools/call", unsafe)
            else:
                assert text_of(await next_one.request("tools/call", unsafe)) == "2"
            await next_one.close(end=True)


@pytest.mark.promise("link.state-loss")
async def test_a_saved_session_that_can_not_be_taken_up_is_told_as_lost(store: holdfast.Store) -> None:
    async with FaultServer() as server:
        async with link_to(server.url, memory=StoreMemory(store, "one"), capabilities={"roots": {}}) as first:
            await first.request("tools/call", tool("count"))
        async with link_to(server.url, memory=StoreMemory(store, "one")) as lesser:
            with pytest.raises(holdfast.SessionReplaced):
                await lesser.request("tools/call", tool("count"))


@pytest.mark.promise("link.memory")
async def test_a_session_that_could_not_be_saved_is_saved_later(store: holdfast.Store) -> None:
    heard: list[events.Event] = []
    async with FaultServer() as server:
        memory = Away(store, "one")
        memory.down = True
        async with link_to(server.url, memory=memory, stream=False, on_event=heard.append) as link:
            assert text_of(await link.request("tools/call", tool("count"))) == "1"
            memory.down = False
        assert sum(isinstance(event, events.MemoryFailed) for event in heard) <= 2
        async with link_to(server.url, memory=StoreMemory(store, "one"), stream=False) as next_one:
            assert text_of(await next_one.request("tools/call", tool("count"))) == "2"


@pytest.mark.promise("link.memory")
async def test_after_an_outage_one_of_two_sessions_stands_and_the_other_is_told(store: holdfast.Store) -> None:
    async with FaultServer() as server:
        memories = Away(store, "one"), Away(store, "one")
        links = [link_to(server.url, memory=memory, stream=False) for memory in memories]
        for number, link in enumerate(links):
            assert text_of(await link.request("tools/call", tool("count"))) == str(number + 1)
        for memory in memories:
            memory.down = True
        server.sessions.sessions.clear()
        for link in links:
            with pytest.raises(holdfast.SessionReplaced):
                await link.request("tools/call", tool("count"))
            assert text_of(await link.request("tools/call", tool("count"))) == "1"
        assert len(server.sessions.sessions) == 2  # nobody can know, yet
        for memory in memories:
            memory.down = False
        await until(lambda: len(server.sessions.sessions) == 1)
        told, counts = 0, list[str]()
        for link in links * 2:
            try:
                counts.append(text_of(await link.request("tools/call", tool("count"))))
            except holdfast.SessionReplaced:
                told += 1
        assert told == 1
        assert counts == ["2", "3", "4"]
        for link in links:
            await link.close(end=True)


@pytest.mark.promise("link.memory")
async def test_links_that_share_a_session_lose_none_of_each_others_subscriptions() -> None:
    async with holdfast.open_store("memory:") as store, FaultServer() as server:
        links = [link_to(server.url, memory=StoreMemory(store, "one"), stream=False) for _ in range(2)]
        for link in links:
            await link.request("tools/list")
        await links[0].request("resources/subscribe", {"uri": "a:1"})
        await until(lambda: links[0].statistics().in_flight == 0)
        server.sessions.sessions.clear()
        await links[1].request("tools/list")
        await links[0].request("tools/list")
        [session] = server.sessions.sessions.values()
        assert session.subscribed == {"a:1"}
        await links[0].close()
        await links[1].close(end=True)


@pytest.mark.promise("link.memory")
async def test_an_ended_sessions_name_can_be_used_again_and_one_in_use_does_not_expire() -> None:
    clock = holdfast.stores.ManualClock()
    async with holdfast.open_store("memory:", clock=clock) as store, FaultServer() as server:
        for turn in range(3):
            link = link_to(server.url, memory=StoreMemory(store, "one", idle=0.3), stream=False)
            assert text_of(await link.request("tools/call", tool("count"))) == "1", turn
            if turn < 2:
                await link.close(end=True)
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begun < 0.5:
            await link.request("tools/call", tool("count"))
            clock.advance(0.01)
            await asyncio.sleep(0.01)
        await link.close()
        async with link_to(server.url, memory=StoreMemory(store, "one", idle=0.3), stream=False) as heir:
            await heir.request("tools/list")
            assert heir.statistics().adoptions == 1


@pytest.mark.promise("link.shared")
async def test_two_links_share_one_session_and_every_caller_gets_its_own_answer() -> None:
    async with holdfast.open_store("memory:") as store, FaultServer(answers="sse") as server:
        patient = replace(FAST, silence=30)  # a thousand calls at once take long on a busy machine
        first = link_to(server.url, memory=StoreMemory(store, "shared"), limits=patient)
        await first.request("tools/list")
        second = link_to(server.url, memory=StoreMemory(store, "shared"), limits=patient)

        async def call(link: holdfast.Link, text: str) -> None:
            steps: list[float] = []

            async def progress(done: float, total: float | None, message: str | None) -> None:
                steps.append(done)

            result = await link.request("tools/call", tool("progress", steps=2, text=text), on_progress=progress)
            assert text_of(result) == text
            assert steps == [1, 2]

        await asyncio.gather(
            *(call(link, f"{name}{n}") for n in range(500) for name, link in (("a", first), ("b", second)))
        )
        assert first.session_id == second.session_id
        assert server.sessions.handshakes == 1
        await first.close()
        await second.close(end=True)
        assert server.sessions.deletes == 1


@pytest.mark.promise("link.memory")
async def test_the_era_that_another_link_pinned_is_not_adopted_where_none_is_pinned(memories: Any) -> None:
    async with FaultServer(era="both") as server:
        for pinned, stateful, expected in (("2026", True, "2025"), ("2025", False, "2026")):
            server.sessions.gives_sessions = pinned == "2026"  # else nothing is saved that could be lost
            async with link_to(server.url, memory=memories(), era=pinned, stream=False) as first:
                await first.request("tools/list")
            async with link_to(server.url, memory=memories(), stateful=stateful, stream=False) as second:
                await second.request("tools/list")
                assert second.era is not None
                assert second.era.value == expected
                await second.close(end=True)


@pytest.mark.promise("link.memory")
async def test_a_link_whose_stream_another_one_reads_does_not_wait_for_it(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.links.lifecycle.stream.OPEN_SECONDS", 1000.0)
    shared = {"capabilities": {"elicitation": {}}, "era": "2025"}
    async with FaultServer() as server:
        async with link_to(server.url, memory=StoreMemory(store, "one"), **shared) as first:
            await first.request("tools/call", tool("count"), timeout=5)
            async with link_to(server.url, memory=StoreMemory(store, "one"), **shared) as second:
                assert text_of(await asyncio.wait_for(second.request("tools/call", tool("count")), patience(5))) == "2"
                assert server.streams == 1
