"""A store whose answer was lost in the middle of a call: the call is done once, and its turn is over."""

from typing import Any

import pytest

from holdfast.state.storage.entries import KIND
from holdfast.stores.postgres.pool import AnswerLost as PostgresAnswerLost
from holdfast.stores.redis.pool import AnswerLost as RedisAnswerLost
from tests.state.shops import accounts_in, bank

pytestmark = pytest.mark.anyio


@pytest.mark.promise("state.call")
@pytest.mark.parametrize("number", [1, 2], ids=["turn", "commit"])
@pytest.mark.parametrize("done", [True, False], ids=["executed", "never sent"])
@pytest.mark.parametrize("place", ["postgres", "valkey"])
async def test_a_call_whose_answer_was_lost_is_done_once(
    place: str, number: int, done: bool, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(place).url
    accounts = accounts_in(url)
    begun, store = await accounts.begin(), await accounts.open()
    pool: Any = store._pool  # type: ignore[attr-defined]
    name, lost = ("_ask", PostgresAnswerLost) if place == "postgres" else ("script", RedisAnswerLost)
    ask, asked = getattr(pool, name), 0

    async def losing(*given: object, **how: object) -> object:
        nonlocal asked
        asked += 1
        if asked != number:
            return await ask(*given, **how)
        if done:
            await ask(*given, **how)
        raise lost("the connection broke", "test", None)

    async with bank(accounts) as call:
        setattr(pool, name, losing)
        failed, said = await call("pay", account_id=begun.handle)
        setattr(pool, name, ask)
        if number == 2 and not done:  # then nothing of it was kept, and it says so
            assert failed
            assert "was not kept" in said
        else:
            assert (failed, said) == (False, "1")
        assert await store.holder(KIND, begun.handle) is None
        paid = 0 if number == 2 and not done else 1
        assert (await begun.read()).calls == paid
        assert await call("pay", account_id=begun.handle) == (False, str(paid + 1))
    await accounts.close()
