"""The writer examples over real HTTP: restarts between steps, two replicas, two users, a client with a model."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from click.testing import CliRunner
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CreateMessageResult, TextContent

from holdfast.cli import app
from tests.state.replicas import FRAMEWORKS, Replica, replicas
from tests.state.test_baskets import ERAS, client, refusal, text, value

pytestmark = pytest.mark.anyio


async def work(url: Any, era: str, session: str, token: str | None = None) -> list[Any]:
    """A draft and three rounds; `url` says for each step where it is made."""
    said: list[Any] = []
    for tool in ("draft", *(["critique", "revise", "progress"] * 3)):
        async with client(await url(), era, token) as asking:
            arguments = {"topic": "Kelp"} if tool == "draft" else {}
            answer = await value(asking, tool, studio_id=session, **arguments)
            said.append(answer.get("result", answer) if isinstance(answer, dict) else answer)
    return said


@pytest.mark.promise("companions.real")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_with_restarts_between_steps_on_two_replicas_it_is_as_in_one_process(
    framework: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    both = [Replica(framework, store, EXAMPLE="writer") for _ in range(2)]
    async with replicas(*both):
        turns = iter(range(100))
        coming: asyncio.Future[None] | None = None

        async def still() -> str:
            return both[0].url

        async def alternating() -> str:
            return both[next(turns) % 2].url

        async def restarted() -> str:
            """Two steps on each process, which was started for them: a start takes seconds on a busy machine."""
            nonlocal coming
            process, is_second = divmod(next(turns), 2)
            if not is_second:
                if coming is not None:
                    await coming
                coming = asyncio.ensure_future(both[(process + 1) % 2].restart())  # for the next two, during these
            return both[process % 2].url

        async with client(both[0].url, "2026") as asking:
            sessions = [(await value(asking, "create_studio"))["studio_id"] for _ in range(3)]
        plain = await work(still, "2026", sessions[0])
        assert await work(restarted, "2026", sessions[1]) == plain
        assert coming is not None
        await coming
        assert await work(alternating, "2025", sessions[2]) == plain
        assert plain[-1] == {"phase": "revised", "iteration": 3, "converged": False}
        async with client(both[0].url, "2025") as asking:
            told = await refusal(asking, "revise", studio_id=sessions[1])
            assert told.startswith(
                "the writer is in phase 'revised': 'revise' needs 'criticised'; call critique next ("
            )
            parallel = [
                asking.call_tool(tool, {"studio_id": sessions[2]}) for tool in ("critique", "revise", "critique")
            ]
            answers = await asyncio.gather(*parallel)
            for answer in answers:
                if answer.is_error:
                    assert "phase" in str(answer.content)
            done = sum(not answer.is_error for answer in answers)  # all three, if they came one after another
            assert 1 <= done <= 3
            after = await value(asking, "progress", studio_id=sessions[2])
            assert after["phase"] == ("criticised" if done % 2 else "revised")
        for replica in both:
            await replica.stop()
    shown = [
        await asyncio.to_thread(CliRunner().invoke, app, ["state", "log", f"{each}.writer", "--store", store, "--json"])
        for each in sessions
    ]
    assert shown[0].exit_code == 0
    labels = [[entry["label"] for entry in json.loads(each.stdout)["entries"]] for each in shown]
    assert labels[0] == labels[1] == ["draft", "query", *(["critique", "revision"] * 3)]
    assert labels[2] == [*labels[0], *["critique", "revision", "critique"][:done]]
    drawn = await asyncio.to_thread(
        CliRunner().invoke, app, ["state", "tree", f"{sessions[0]}.writer", "--store", store]
    )
    assert "2 draft → drafted" in drawn.stdout
    figures = await asyncio.to_thread(CliRunner().invoke, app, ["state", "stats", "--store", store])
    assert "writer:" in figures.stdout
    assert "iterations" in figures.stdout


@asynccontextmanager
async def with_a_model(url: str, era: str, asked: list[str]) -> AsyncGenerator[mcp.Client]:
    """A client that offers its model."""

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        said = params.messages[0].content.text
        asked.append(said)
        words = "too long\ntoo wet" if said.startswith("Name") else f"model: {len(asked)}"
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text=words), model="test")

    async with httpx2.AsyncClient(timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with mcp.Client(transport, mode=ERAS[era], sampling_callback=sample) as session:  # type: ignore[arg-type]
            yield session


@pytest.mark.promise("companions.real")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_two_users_at_once_and_a_client_that_offers_its_model(framework: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with replicas(Replica(framework, store, tokens=True, EXAMPLE="writer")) as (server,):

        async def here() -> str:
            return server.url

        begun: dict[str, str] = {}
        for token in ("alice-token", "bob-token"):
            async with client(server.url, "2026", token) as asking:
                begun[token] = (await value(asking, "create_studio"))["studio_id"]
        both = await asyncio.gather(*(work(here, "2026", session, token) for token, session in begun.items()))
        assert both[0] == both[1]
        async with client(server.url, "2026", "bob-token") as bob:
            assert "no such session" in await refusal(bob, "critique", studio_id=begun["alice-token"])
    async with replicas(Replica(framework, store, EXAMPLE="writer")) as (server,):
        for era in ERAS:
            asked: list[str] = []
            async with with_a_model(server.url, era, asked) as asking:
                session = (await value(asking, "create_studio"))["studio_id"]
                assert "model: 1" in await text(asking, "draft", topic="Kelp", studio_id=session)
                await server.restart()
            async with with_a_model(server.url, era, asked) as asking:
                await text(asking, "critique", studio_id=session)
                assert "model: 3" in await text(asking, "revise", studio_id=session)
            assert asked[0] == "Write one sentence about Kelp."
            assert "Correct these faults: too long, too wet" in asked[2]
            assert len(asked) == 3  # each question once
