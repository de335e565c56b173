"""The chain of identities: what each place finds, in which order, and chains that can never match."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import mcp
import pytest
from click.testing import CliRunner
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import InvalidSignature
from mcp.server.mcpserver.resolve import Resolve

import holdfast
from holdfast.cli import app
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.identity import Chain, Identity, Key, Named

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")
ARGUMENT, META = holdfast.state.FromArgument("basket"), holdfast.state.FromMeta("com.shop/basket")
SESSION, PRINCIPAL = holdfast.state.From2025Session(), holdfast.state.FromPrincipal()


class Basket(holdfast.SessionState):
    items: list[str] = []


@pytest.mark.promise("state.identity")
def test_the_first_place_that_says_anything_decides() -> None:
    chain = Chain([ARGUMENT, META, SESSION, PRINCIPAL])
    whole = Identity(ALICE, {"basket": "s_1"}, {"com.shop/basket": "s_2"}, "c1")
    assert chain.find(whole, "Basket") == Named("s_1")
    assert chain.find(Identity(ALICE, {}, whole.meta, "c1"), "Basket") == Named("s_2")
    by_session = chain.find(Identity(ALICE, {"basket": ""}, {}, "c1"), "Basket")
    by_principal = chain.find(Identity(ALICE), "Basket")
    assert isinstance(by_session, Key)
    assert isinstance(by_principal, Key)
    assert by_session.digest != by_principal.digest
    assert chain.find(Identity(), "Basket") is None
    assert Chain([META, ARGUMENT]).find(whole, "Basket") == Named("s_2")


@pytest.mark.promise("state.identity")
def test_what_stands_for_a_session_differs_by_caller_connection_and_kind() -> None:
    chain = Chain([SESSION, PRINCIPAL])
    found = [
        chain.find(caller, kind)
        for kind in ("Basket", "Draft")
        for caller in (
            Identity(ALICE),
            Identity(Principal("bob")),
            Identity(ALICE, session_2025="c1"),
            Identity(Principal("bob"), session_2025="c1"),  # the same id with another caller is another session
            Identity(ANONYMOUS, session_2025="c1"),
            Identity(ALICE, session_2025="c2"),
        )
    ]
    assert len({each.digest for each in found if isinstance(each, Key)}) == len(found) == 12


@pytest.mark.promise("state.bad-input")
@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ([], "can never find"),
        ([ARGUMENT, ARGUMENT], "twice"),
        ([holdfast.state.ForEveryone(), ARGUMENT], "nothing after"),
        ([holdfast.state.FromMeta("")], "empty name"),
        (["basket_id"], "not a place to look"),
    ],
)
def test_a_chain_that_can_never_match_is_refused(chain: list[Any], said: str) -> None:
    with pytest.raises(holdfast.UsageError, match=said) as refused:
        holdfast.Sessions(Basket, identity=chain)
    assert refused.value.remedy


@pytest.mark.promise("state.bad-input")
async def test_a_server_on_which_nothing_can_be_found_does_not_start() -> None:
    only_known = holdfast.Sessions(Basket, identity=[PRINCIPAL])
    for server in (FastMCP("shop"), MCPServer("shop")):
        with pytest.raises(holdfast.UsageError, match="authenticates no callers"):
            only_known.install(server)
    by_handle = holdfast.Sessions(Basket, identity=[ARGUMENT])
    with pytest.raises(holdfast.UsageError, match="must be a FastMCP or an MCPServer"):
        by_handle.install(object())
    with pytest.raises(holdfast.UsageError, match="has no field 'price'"):
        by_handle.install(MCPServer("shop"), create=["price"])

    twice = MCPServer("shop")
    by_handle.install(twice)
    with pytest.raises(holdfast.UsageError, match="has a tool create_basket already"):
        holdfast.Sessions(Basket).install(twice)
    with pytest.raises(holdfast.UsageError, match="makes no name"):
        holdfast.Sessions(Basket, noun="my basket")
    secret = holdfast.Sessions(Basket, "postgresql://u:s3cret@127.0.0.1:1/x")
    assert "s3cret" not in repr(secret)

    fast = FastMCP("shop")
    by_handle.install(fast)

    @fast.tool
    async def add(item: str, basket_of_mine: holdfast.Session[Basket] = Depends(by_handle)) -> str:
        return item

    with pytest.raises((holdfast.UsageError, RuntimeError), match="no argument 'basket'"):
        async with Client(fast):
            pass

    official = MCPServer("shop")
    with pytest.raises(InvalidSignature, match="basket"):

        @official.tool()
        async def put(item: str, mine: Annotated[holdfast.Session[Basket], Resolve(by_handle)]) -> str:
            return item


@pytest.mark.promise("state.identity")
async def test_meta_names_a_session_out_of_the_models_sight() -> None:
    sessions = holdfast.Sessions(Basket, identity=[META])
    server = FastMCP("shop")

    @server.tool
    async def add(item: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
        return len((await basket.update(lambda state: state.items.append(item))).items)

    begun = await sessions.begin()
    async with Client(server) as client:
        for number in (1, 2):
            answer = await client.call_tool("add", {"item": "fig"}, meta={"com.shop/basket": begun.handle})
            assert answer.data == number
        wrong = await client.call_tool("add", {"item": "fig"}, meta={"com.shop/basket": 7}, raise_on_error=False)
        assert wrong.is_error
        assert "must be a session's handle, a str, not int" in str(wrong.content)

    official = MCPServer("shop")

    @official.tool()
    async def count(basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> int:
        return len(basket.state.items)

    for mode in ("auto", "legacy"):
        async with mcp.Client(official, mode=mode) as other:  # type: ignore[arg-type]
            told = await other.call_tool("count", {}, meta={"com.shop/basket": begun.handle})
            assert told.structured_content == {"result": 2}
            assert (await other.call_tool("count", {})).is_error


@pytest.mark.promise("state.identity")
async def test_everyone_shares_what_is_persistent() -> None:
    shelf = holdfast.Sessions(Basket, identity=[holdfast.state.ForEveryone("shelf")], idle=None, max_age=None)
    found = [await shelf.find_for(Identity(principal)) for principal in (ALICE, ANONYMOUS, Principal("bob"))]
    assert len({session.handle for session in found}) == 1
    assert found[0].expires is None


@pytest.mark.promise("state.injection")
async def test_one_session_is_shared_by_servers_of_both_frameworks() -> None:
    sessions = holdfast.Sessions(Basket)
    fast, official = FastMCP("fast"), MCPServer("official")
    sessions.install(fast)
    sessions.install(official)

    @fast.tool
    async def add(item: str, basket_id: str, basket: holdfast.Session[Basket] = Depends(sessions)) -> int:
        return len((await basket.update(lambda state: state.items.append(item))).items)

    @official.tool()
    async def count(basket_id: str, basket: Annotated[holdfast.Session[Basket], Resolve(sessions)]) -> int:
        return len(basket.state.items)

    async with Client(fast) as one, mcp.Client(official) as other:
        made = await other.call_tool("create_basket", {})
        assert made.structured_content is not None
        handle = made.structured_content["basket_id"]
        for number in range(1, 4):
            assert (await one.call_tool("add", {"item": "fig", "basket_id": handle})).data == number
            told = await other.call_tool("count", {"basket_id": handle})
            assert told.structured_content == {"result": number}
        await one.call_tool("end_basket", {"basket_id": handle})
        assert (await other.call_tool("count", {"basket_id": handle})).is_error


@pytest.mark.promise("state.identity")
async def test_a_caller_whose_pointer_was_damaged_begins_anew_once_it_is_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    everyone = [holdfast.state.ForEveryone()]
    sessions = [holdfast.Sessions(Basket, url, identity=everyone) for _ in range(2)]
    lost = await sessions[0].find_for(Identity())
    await sessions[0].close()
    with closing(sqlite3.connect(tmp_path / "s.db")) as file, file:
        file.execute("UPDATE holdfast_records SET rev = 'x' WHERE kind = 'state-key'")
        [(id,)] = file.execute("SELECT id FROM holdfast_records WHERE kind = 'state-key'")
    with pytest.raises(holdfast.errors.CorruptRecord, match="holdfast store end URL KIND ID"):
        await sessions[1].find_for(Identity())
    for code, said in ((0, "ended state-key/"), (1, "no live or expired record")):
        done = await asyncio.to_thread(CliRunner().invoke, app, ["store", "end", url, "state-key", id])
        assert (done.exit_code, said in done.output) == (code, True), done.output
    found = await asyncio.gather(*(sessions[1].find_for(Identity()) for _ in range(8)))
    assert len({each.handle for each in found} - {lost.handle}) == 1
    await sessions[1].close()


@pytest.mark.promise("state.identity")
async def test_a_user_of_two_clients_has_one_session_by_subject_and_two_by_client() -> None:
    def principal(client: str, subject: str | None) -> Principal:
        return Principal(json.dumps([client, "https://issuer.invalid", subject], separators=(",", ":")))

    for key, expected in (("subject", 2), ("client", 3)):
        sessions = holdfast.Sessions(Basket, identity=[holdfast.state.FromPrincipal(key=key)])  # type: ignore[arg-type]
        callers = [principal("phone", "ann"), principal("web", "ann"), principal("web", "bob")]
        found = [await sessions.find_for(Identity(caller)) for caller in callers]
        assert len({each.handle for each in found}) == expected
        await found[0].update(lambda state: state.items.append("x"))
        assert (await (await sessions.find_for(Identity(callers[1]))).read()).items == (["x"] if expected == 2 else [])
    by_subject = holdfast.Sessions(Basket, identity=[holdfast.state.FromPrincipal(key="subject")])
    for nobody in (ANONYMOUS, principal("web", None), Principal("not of a token")):
        with pytest.raises(holdfast.errors.NotFound):
            await by_subject.find_for(Identity(nobody))
    with pytest.raises(holdfast.UsageError, match="must be 'client' or 'subject'"):
        holdfast.Sessions(Basket, identity=[holdfast.state.FromPrincipal(key="name")])  # type: ignore[arg-type]
