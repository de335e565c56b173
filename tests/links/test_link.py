"""A link's own checks of what it is asked to send."""

from typing import Any

import pytest

import holdfast
from holdfast.testing import FaultServer
from tests.links.quick_links import link_to

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("method", "params", "headers"),
    [
        ("tools/call", {"name": "x", "_meta": "x"}, None),
        ("tools/call", {"name": "x", "_meta": 5}, None),
        ("tools/call", [1, 2], None),
        (7, None, None),
        ("", None, None),
        ("tools/call", {"name": "x"}, {"x-a": 5}),
        ("tools/call", {"name": "x"}, {"x-a": "a\r\nb"}),
        ("tools/call", {"name": "x"}, {"mcp-session-id": "y"}),
    ],
)
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_callers_mistake_is_a_usage_error(era: Any, method: Any, params: Any, headers: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        with pytest.raises(holdfast.UsageError):
            await link.request(method, params, headers=headers)
        await link.request("tools/list")
