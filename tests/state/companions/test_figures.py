"""Figures of companions, added up over processes."""

from typing import Any

import pytest

import holdfast
from holdfast.state.companions.figures import totals
from tests.state.companions.writing import ALICE, Studio, Writer, drafted, round_of

pytestmark = pytest.mark.anyio


@pytest.mark.promise("companions.figures")
async def test_figures_add_up_over_processes(url: str) -> None:
    async with holdfast.open_store(url) as store:
        kind = f"kind{id(store)}"
        Kind = type("Kind", (Writer,), {"kind": kind})  # noqa: N806
        sessions = holdfast.Sessions(Studio, store)
        for _ in range(2):  # as two processes
            writers = holdfast.Companions(Kind, sessions)
            writer = await drafted(writers, await sessions.begin(ALICE))
            await round_of(writer, 1, ["a"])
            with pytest.raises(holdfast.errors.WrongPhase):
                async with writer.step("draft", to="drafted"):
                    pass
        async with sessions.lifespan():
            pass  # a server that stops puts its figures down
        found = (await totals(store))[kind]
        assert (found.steps, found.iterations, found.refusals) == (6, 2, {"revised": 2})
        assert set(found.seconds) == {"empty", "drafted", "criticised"}


@pytest.mark.promise("companions.figures")
async def test_a_listener_that_raises_and_a_store_that_fails_once_change_nothing() -> None:
    def raises(event: Any) -> None:
        raise RuntimeError("listener")

    async with holdfast.open_store("memory:") as store:
        sessions = holdfast.Sessions(Studio, store)
        writers = holdfast.Companions(Writer, sessions, on_event=raises)
        writers.reporter.counting._flushed = float("inf")  # not before the server stops
        await drafted(writers, await sessions.begin(ALICE))
        commit = store.commit

        async def down(*args: Any, **kwargs: Any) -> Any:
            store.commit = commit  # type: ignore[method-assign]
            raise holdfast.errors.StoreDown("down")

        store.commit = down  # type: ignore[method-assign]
        await writers.reporter.counting.flush(store)
        async with sessions.lifespan():
            pass
        assert (await totals(store))["writer"].steps == 1
