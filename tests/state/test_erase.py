"""What a caller has is erased whole, whatever kind it is of."""

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.identity import Identity
from tests.state.companions.writing import Studio, Writer, drafted, round_of
from tests.state.raw_store import raw

pytestmark = pytest.mark.anyio


class Prefs(holdfast.SessionState):
    theme: str = ""


@pytest.mark.promise("state.erase")
async def test_everything_of_one_caller_goes_and_nothing_of_another(url: str) -> None:
    async with holdfast.open_store(url) as store, holdfast.open_store(url) as replica:
        alice, bob = Principal(f"alice-{id(store)}"), Principal(f"bob-{id(store)}")
        studios = holdfast.Sessions(Studio, store, identity=[holdfast.state.FromPrincipal()])
        prefs = holdfast.Sessions(Prefs, replica)
        writers = holdfast.Companions(Writer, studios)
        kept = []
        for who in (alice, bob):
            implicit = await studios.find_for(Identity(who))
            writer = await drafted(writers, implicit)
            await round_of(writer, 1, ["a"])
            await implicit.once("key", lambda state: "a result")
            await (await writer.fork()).note("in a fork")
            other = await prefs.begin(who)
            await other.update(lambda state: setattr(state, "theme", "dark"))
            await (await prefs.begin(who)).end()  # a tombstone
            changed = await prefs.begin(who)
            await changed.update(lambda state: setattr(state, "theme", "x"))
            await changed.end()  # and one with an outline
            kept.append((implicit, writer, other))
        theirs = await store.count(principal=bob, state=None)
        assert await store.count(principal=alice, state=None) == theirs > 8
        assert await prefs.erase(alice) == theirs
        assert await store.count(principal=alice, state=None) == 0
        assert await store.count(principal=bob, state=None) == theirs
        mine, writer, other = kept[0]
        for write in (
            mine.update(lambda state: setattr(state, "topic", "x")),
            other.read(),
            writer.note("late"),
            writer.undo(),
        ):
            with pytest.raises(holdfast.errors.NotFound):
                await write
        assert await studios.all(alice) == []
        anew = await studios.find_for(Identity(alice))  # at once, without a word: this caller is new
        assert (anew.rev, anew.handle == mine.handle) == (1, False)
        assert (await kept[1][0].read()).topic == ""
        assert await prefs.erase(alice) == 2
        with pytest.raises(holdfast.UsageError, match="everybody's"):
            await prefs.erase(ANONYMOUS)


@pytest.mark.promise("state.erase")
@pytest.mark.parametrize("place", ["memory", "sqlite", "postgres", "valkey"])
async def test_nothing_of_a_user_of_several_clients_is_left_in_the_store(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(place)
    url = url or request.getfixturevalue(place).url
    async with holdfast.open_store(url) as store:
        who = f"user-{id(store)}-{place}"

        def of(client: str, subject: str) -> Principal:
            return Principal(json.dumps([client, "https://issuer.invalid", subject], separators=(",", ":")))

        mine, bystander = of("phone", who), of("phone", f"another-{id(store)}")
        by_user = [holdfast.state.FromPrincipal(key="subject")]
        studios = holdfast.Sessions(Studio, store, identity=by_user)
        prefs = holdfast.Sessions(Prefs, store)
        writers = holdfast.Companions(Writer, studios)
        for caller in (mine, bystander):
            implicit = await studios.find_for(Identity(caller))
            assert (await studios.find_for(Identity(of("laptop", json.loads(caller)[2])))).handle == implicit.handle
            writer = await drafted(writers, implicit)
            await round_of(writer, 1, ["a"])
            await implicit.once("key", lambda state: "a result")
            await (await writer.fork()).note("in a fork")
            for ends in (False, True):
                own = await prefs.begin(caller)
                await own.update(lambda state: setattr(state, "theme", "dark"))
                if ends:
                    await own.end()
        assert who in await raw(store, url)
        await prefs.erase(mine)
        left = await raw(store, url)
        assert who not in left
        assert f"another-{id(store)}" in left
        assert (await studios.find_for(Identity(bystander))).rev > 1
        assert await prefs.erase(mine) == 0
        assert await prefs.erase(Principal("12")) == 0  # JSON, and nobody's token


@pytest.mark.promise("state.lists")
async def test_lists_come_in_pages_and_hide_nothing() -> None:
    alice, bob = Principal("alice"), Principal("bob")
    async with holdfast.open_store("memory:") as store:
        sessions, others = holdfast.Sessions(Prefs, store), holdfast.Sessions(Studio, store)
        mine = {(await sessions.begin(alice)).handle for _ in range(250)}
        for _ in range(5):
            await others.begin(alice)
            await sessions.begin(bob)
        assert {each.handle for each in await sessions.all(alice)} == mine
        seen, after = list[str](), None
        while True:
            page = await sessions.page(alice, after=after)
            assert len(page.sessions) <= 100
            seen += [each.handle for each in page.sessions]
            after = page.next
            if after is None:
                break
            await sessions.end(after)  # what the page ended with may be gone
        assert len(seen) == 250
        assert set(seen) == mine
        assert (await sessions.page(ANONYMOUS)).sessions == []
        newer = holdfast.Sessions(_newer(), store, name="Prefs")
        strange = await newer.begin(bob)
        page = await sessions.page(bob)
        assert (len(page.sessions), list(page.unreadable)) == (5, [strange.handle])


def _newer() -> type[holdfast.SessionState]:
    class Prefs(holdfast.SessionState, version=2):
        colour: str = ""

    return Prefs
