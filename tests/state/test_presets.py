"""State for each conversation, for each user and for everyone: the preference examples over HTTP and stdio."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from fastmcp import FastMCP
from mcp.client.stdio import StdioServerParameters, stdio_client

import holdfast
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.state.identity import Identity
from tests.state.replicas import FRAMEWORKS, ROOT, Replica, replicas
from tests.state.test_baskets import ERAS, client, refusal, text, value

pytestmark = pytest.mark.anyio

DAY = 86_400.0


class Preferences(holdfast.SessionState):
    language: str = "en"


@pytest.mark.promise("state.presets")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_user_has_one_state_over_two_clients_and_another_user_another(framework: str, url: str) -> None:
    both = [Replica(framework, url, tokens=True, EXAMPLE="preferences") for _ in range(2)]
    async with replicas(*both) as (one, other):
        for era, language in zip(ERAS, ("de", "fr"), strict=True):
            async with client(one.url, era, "alice-token") as alice:
                await value(alice, "speak", language=language)
                mine = (await value(alice, "create_order"))["order_id"]
            async with client(other.url, era, "alice-phone-token") as phone, client(other.url, era, "bob-token") as bob:
                hers = (await value(phone, "create_order"))["order_id"]
                assert (await text(phone, "order", article="tea", order_id=hers)).startswith(f"{language}: 1 ordered")
                his = (await value(bob, "create_order"))["order_id"]
                assert (await text(bob, "order", article="tea", order_id=his)).startswith("en: 1 ordered")
                said = await refusal(bob, "order", article="tea", order_id=mine)
                assert "there is no such session" in said
        async with client(one.url, "2026", "alice-token") as alice:
            assert (await text(alice, "order", article="tea", order_id=mine)).startswith("fr: 1 ordered")


@asynccontextmanager
async def program(framework: str, store: str, era: str) -> AsyncGenerator[mcp.Client]:
    """The example as a program on stdio."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=[str(ROOT / "examples" / f"preferences_{framework}.py"), "stdio"],
        env={**os.environ, "SHOP": store},
    )
    async with mcp.Client(stdio_client(parameters), mode=ERAS[era]) as asking:  # type: ignore[arg-type]
        yield asking


@pytest.mark.promise("state.presets")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("era", ERAS)
async def test_on_stdio_the_user_is_the_one_who_runs_the_program(framework: str, era: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with program(framework, store, era) as asking:
        await value(asking, "speak", language="de")
        order = (await value(asking, "create_order"))["order_id"]
        assert await text(asking, "order", article="tea", order_id=order) == "de: 1 ordered, 1 sold"
        if era == "2025":  # the connection is the conversation
            assert await text(asking, "order", article="tea") == "de: 1 ordered, 2 sold"
        else:
            said = await refusal(asking, "order", article="tea")
            assert "call create_order to begin one" in said
    async with program(framework, store, era) as asking:
        other = (await value(asking, "create_order"))["order_id"]
        assert (await text(asking, "order", article="tea", order_id=other)).startswith("de: 1 ordered")
        assert (await text(asking, "order", article="tea", order_id=order)).startswith("de: 2 ordered")


@pytest.mark.promise("state.presets")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("era", ERAS)
async def test_over_http_without_authentication_there_is_no_user(framework: str, era: str, tmp_path: Path) -> None:
    async with replicas(Replica(framework, f"sqlite:///{tmp_path}/s.db", EXAMPLE="preferences")) as (server,):
        async with client(server.url, era) as asking:
            said = await refusal(asking, "speak", language="de")
            assert "sign in: it is kept for each user" in said
            order = (await value(asking, "create_order"))["order_id"]
            said = await refusal(asking, "order", article="tea", order_id=order)
            assert "sign in" in said
            assert await text(asking, "resume_order", order_id=order)


@pytest.mark.promise("state.presets")
async def test_a_preset_is_places_and_spans_that_can_be_changed() -> None:
    spans = {
        per: (sessions.table.idle, sessions.table.max_age)
        for per in ("conversation", "user", "everyone")
        for sessions in [holdfast.Sessions(Preferences, per=per)]  # type: ignore[arg-type]
    }
    assert spans == {"conversation": (DAY, 30 * DAY), "user": (90 * DAY, None), "everyone": (None, None)}
    assert (
        holdfast.Sessions(Preferences).chain.places == holdfast.Sessions(Preferences, per="conversation").chain.places
    )
    short = holdfast.Sessions(Preferences, per="everyone", idle=60, max_age=None)
    assert (short.table.idle, short.table.max_age) == (60, None)
    everyone = holdfast.Sessions(Preferences, per="everyone")
    for caller in (Identity(ANONYMOUS), Identity(Principal("alice"))):
        await (await everyone.find_for(caller)).update(lambda state: setattr(state, "language", state.language + "."))
    assert (await everyone.find_for(Identity())).state.language == "en.."


@pytest.mark.promise("state.bad-input")
async def test_presets_that_say_two_things_or_none_are_refused() -> None:
    with pytest.raises(holdfast.UsageError, match="both say whose"):
        holdfast.Sessions(Preferences, per="user", identity=[holdfast.state.FromPrincipal()])
    with pytest.raises(holdfast.UsageError, match="per='team' is unknown"):
        holdfast.Sessions(Preferences, per="team")  # type: ignore[arg-type]
    server: FastMCP[Any] = FastMCP("shop")
    for per in ("user", "everyone"):
        sessions = holdfast.Sessions(Preferences, per=per, noun=per)  # type: ignore[arg-type]
        sessions.install(server)
        with pytest.raises(holdfast.UsageError, match="callers can't name one"):
            sessions.install(server, tools=["create"])
    assert await server.list_tools() == []
