"""Iterations and convergence, read from the log."""

import pytest

import holdfast
from tests.state.companions.writing import ALICE, Studio, Writer

pytestmark = pytest.mark.anyio


@pytest.mark.promise("companions.work")
async def test_similarity_is_of_words_and_each_query_is_judged_by_itself() -> None:
    sessions = holdfast.Sessions(Studio)
    writers = holdfast.Companions(Writer, sessions)

    async def similarity(one: str, other: str) -> float:
        writer = await writers.for_session(await sessions.begin(ALICE))
        for text in (one, other):
            async with writer.step("draft") as turn:
                turn.record(text)
                for number in range(130):  # chatter is no reason to forget
                    turn.message("user", str(number))
        found = (await writer.insight()).convergence.similarity
        assert found is not None
        return found

    assert await similarity("The kelp grows in cold water.", "Every author wants better drafts now.") < 0.3
    long = " ".join(f"word{number}" for number in range(700))
    assert await similarity(long, "changed " + long.partition(" ")[2]) > 0.99
    writer = await writers.for_session(await sessions.begin(ALICE))
    reached: list[bool] = []
    for _ in range(2):
        async with writer.step("query") as turn:
            turn.record("again")
        for number, points in enumerate((["a", "b"], ["a"], [])):
            async with writer.step("critique") as turn:
                turn.record(list(points))
            async with writer.step("revision") as turn:
                turn.record(f"text {number} " * 9)
        reached.append((await writer.insight()).convergence.reached)
    assert reached == [True, True]
