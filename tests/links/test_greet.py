"""The handshake: which era is taken where a server offers both, what is learnt of it, and what a failure means."""

from typing import Any

import pytest

import holdfast
from holdfast.testing import Fault, FaultServer
from tests.links.kit import FAST, link_to

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.handshake-failed")
@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "server/discover"])
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        (Fault.STATUS, {"status": 502, "body": b"<html>bad gateway"}),
        (Fault.STATUS, {"status": 500}),
        (Fault.HANG, {}),
        (Fault.RESET, {}),
        (Fault.CLOSE_IN_BODY, {}),
    ],
    ids=["502", "500", "hang", "reset", "cut"],
)
async def test_a_handshake_that_fails_has_executed_nothing(method: str, fault: Fault, options: Any) -> None:
    era: Any = "2026" if method == "server/discover" else "2025"
    async with FaultServer(era=era) as server, link_to(server.url, era=era, limits=FAST.scaled(0.1)) as link:
        server.plan(fault, method=method, times=10, **options)
        with pytest.raises(holdfast.Unavailable) as caught:
            await link.request("tools/call", {"name": "effect", "arguments": {"call": "x"}})
        assert caught.value.status == options.get("status")
        assert caught.value.server == "it"
        assert caught.value.phase == "greet"
        assert "executed" not in str(caught.value).replace("nothing was executed", "")
        assert "nothing was executed" in caught.value.public_text()
        assert not server.effects
