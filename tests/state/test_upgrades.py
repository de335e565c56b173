"""Old and new releases of a server on one store: schemas that change, and keys that do."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.client import Client as SdkClient
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.core.models import Principal
from holdfast.core.values import members
from holdfast.state import migrate
from holdfast.state.storage.entries import KIND
from holdfast.stores import Store, open_store
from holdfast.stores.archive import reseal_store
from holdfast.stores.sealing import SealingCodec, new_key

pytestmark = pytest.mark.anyio
ALICE = Principal("alice")


class Old(holdfast.SessionState):
    text: str = ""
    notes: list[str] = []


class New(holdfast.SessionState, version=2):
    text: str = ""
    points: list[str] = []
    stars: int = 0

    @migrate(from_version=1)
    @staticmethod
    def _forward(raw: dict[str, Any]) -> dict[str, Any]:
        return {"text": raw["text"], "points": raw["notes"]}

    @migrate(from_version=2, to_version=1)
    @staticmethod
    def _back(raw: dict[str, Any]) -> dict[str, Any]:
        return {"text": raw["text"], "notes": raw["points"]}


@pytest.mark.promise("state.upgrades")
async def test_old_code_reads_what_newer_code_wrote_and_never_writes_it(url: str) -> None:
    async with open_store(url) as one, open_store(url) as other:
        older = holdfast.Sessions(Old, one, name="paper")
        newer = holdfast.Sessions(New, other, name="paper")
        session = await older.begin(ALICE)
        await session.update(lambda state: state.notes.append("a"))
        assert (await newer.find(session.handle, ALICE)).state.points == ["a"]  # reading changes no record
        await session.update(lambda state: state.notes.append("b"))
        upgraded = await newer.find(session.handle, ALICE)
        async with upgraded.edit("rate") as draft:
            draft.stars, draft.text = 5, "kelp"
        record = await one.get(KIND, session.handle)
        assert record is not None
        assert (members(record.data)["v"], members(record.data)["min_reader"]) == (2, 1)
        seen = await older.find(session.handle, ALICE)
        assert (seen.state.text, seen.state.notes) == ("kelp", ["a", "b"])

        async def edits() -> None:
            async with seen.edit() as draft:
                draft.text = "moss"

        async def leases() -> None:
            async with seen.lease() as draft:
                draft.text = "moss"

        writes: list[Any] = [
            edits,
            leases,
            seen.undo,
            seen.fork,
            lambda: seen.update(lambda state: setattr(state, "text", "moss")),
            lambda: seen.once("key", lambda state: state.notes.append("x")),
            lambda: seen.log.add("note"),
        ]
        for write in writes:
            with pytest.raises(holdfast.errors.Busy, match="a newer release of this server") as refused:
                await write()
            assert isinstance(refused.value, holdfast.errors.Unavailable)  # nothing was done: another replica may do it
        kept = await upgraded.read()
        assert (kept.stars, kept.text, kept.points) == (5, "kelp", ["a", "b"])
        assert (await one.get(KIND, session.handle)) == record
        assert await seen.end()  # to end it, nobody must know what is in it


@pytest.mark.promise("state.upgrades")
async def test_a_release_that_declares_no_way_back_is_read_where_the_older_one_knows_it() -> None:
    class Prepared(Old):
        """The first of two deploys: it can read what the second one will write."""

        @migrate(from_version=2, to_version=1)
        @staticmethod
        def _back(raw: dict[str, Any]) -> dict[str, Any]:
            return {"text": raw["text"], "notes": []}

    class Next(holdfast.SessionState, version=2):
        text: str = ""
        stars: int = 0

    async with open_store("memory:") as store:
        session = await holdfast.Sessions(Next, store, name="paper").begin(ALICE)
        await session.update(lambda state: setattr(state, "text", "kelp"))
        seen = await holdfast.Sessions(Prepared, store, name="paper").find(session.handle, ALICE)
        assert seen.state.text == "kelp"
        with pytest.raises(holdfast.errors.Busy):
            await seen.log.add("x")
        with pytest.raises(holdfast.errors.CorruptRecord, match="has version 2, and this code knows 1"):
            await holdfast.Sessions(Old, store, name="paper").find(session.handle, ALICE)
    with pytest.raises(holdfast.UsageError, match="not from 3 to 1"):
        migrate(from_version=3, to_version=1)


@pytest.mark.promise("state.upgrades")
async def test_companions_are_upgraded_the_same_way() -> None:
    class Style(holdfast.state.CompanionOptions):
        pass

    class OldWriter(holdfast.Companion[Old, Style]):
        kind = "writer"
        phases = {"empty": ["drafted"], "drafted": []}

    class NewWriter(holdfast.Companion[New, Style]):
        kind = "writer"
        phases = {"empty": ["drafted"], "drafted": []}

    class Room(holdfast.SessionState):
        pass

    async with open_store("memory:") as store:
        rooms, others = (holdfast.Sessions(Room, store) for _ in range(2))
        old, new = holdfast.Companions(OldWriter, rooms), holdfast.Companions(NewWriter, others)
        room = await rooms.begin(ALICE)
        await old.for_session(room)
        writer = await new.for_session(await others.find(room.handle, ALICE))
        async with writer.step("draft", to="drafted") as turn:
            turn.state.points.append("p")
        seen = await old.for_session(room)
        assert (seen.phase, seen.state.notes) == ("drafted", ["p"])
        for write in (seen.note("x"), seen.undo(), seen.step("again").__aenter__()):
            with pytest.raises(holdfast.errors.Busy, match="newer release"):
                await write


@pytest.mark.promise("state.upgrades")
@pytest.mark.parametrize("framework", ["fastmcp", "mcpserver"])
async def test_a_tool_of_an_old_replica_says_that_an_upgrade_is_under_way(framework: str) -> None:
    async with open_store("memory:") as store:
        sessions = holdfast.Sessions(Old, store, name="paper")
        begun = await holdfast.Sessions(New, store, name="paper").begin()
        server: Any
        if framework == "fastmcp":
            server = FastMCP("papers")

            @server.tool  # type: ignore[untyped-decorator]
            async def add(old_id: str, paper: holdfast.Session[Old] = Depends(sessions)) -> str:
                return (await paper.update(lambda state: state.notes.append("x"))).text

            client: Any = Client(server)
        else:
            server = MCPServer("papers")

            @server.tool()  # type: ignore[untyped-decorator]
            async def add_(old_id: str, paper: Annotated[holdfast.Session[Old], Resolve(sessions)]) -> str:
                return (await paper.update(lambda state: state.notes.append("x"))).text

            client = SdkClient(server)
        async with client:
            name = "add" if framework == "fastmcp" else "add_"
            extra = {"raise_on_error": False} if framework == "fastmcp" else {}
            answer = await client.call_tool(name, {"old_id": begun.handle}, **extra)
            assert answer.is_error
            assert "the upgrade is under way" in answer.content[0].text


async def sealed_anew(store: Store, ring: list[str]) -> None:
    async for move in reseal_store(store, SealingCodec(1 << 20, ring)):
        assert move.damaged is None


@pytest.mark.promise("sealing.rotation")
async def test_keys_are_rotated_in_two_deploys_while_an_older_replica_lives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/sealed.db"
    old, new = new_key(), new_key()

    async def both_work(*rings: list[str]) -> None:
        """Replicas with these rings read and write what the others wrote."""
        for writer in rings:
            for reader in rings:
                async with open_store(url, keys=writer) as one, open_store(url, keys=reader) as two:
                    session = await holdfast.Sessions(Old, one).begin(ALICE)
                    await session.update(lambda state: state.notes.append("a"))
                    same = await holdfast.Sessions(Old, two).find(session.handle, ALICE)
                    await same.update(lambda state: state.notes.append("b"))
                    assert (await session.read()).notes == ["a", "b"]
                    assert [entry.label for entry in await session.log.last()] == ["update", "update"]

    await both_work([old], [old, new])  # during the first deploy
    async with open_store(url, keys=[old, new]) as alive:  # a replica of the first deploy lives on
        sessions = holdfast.Sessions(Old, alive)
        session = await sessions.begin(ALICE)
        await both_work([old, new], [new, old])  # during the second
        async with open_store(url, keys=[new, old]) as store:
            await sealed_anew(store, [new, old])
            await session.update(lambda state: state.notes.append("while it is sealed anew"))
            assert (await holdfast.Sessions(Old, store).find(session.handle, ALICE)).state.notes
    async with open_store(url, keys=[new, old]) as store:
        await sealed_anew(store, [new, old])  # once the last replica of the first deploy is gone
    async with open_store(url, keys=[new]) as store:
        assert (await holdfast.Sessions(Old, store).find(session.handle, ALICE)).state.notes == [
            "while it is sealed anew"
        ]
    with pytest.raises(
        holdfast.errors.ConfigError, match="is not among the 1 keys given"
    ):  # the wrong order of deploys
        await both_work([old], [new, old])
