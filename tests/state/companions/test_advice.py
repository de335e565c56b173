"""Advice names tools as the caller knows them, also where the server is mounted under others."""

import pytest
from fastmcp import Client, FastMCP

import holdfast
from tests.state.companions.test_companions import tools_of

pytestmark = pytest.mark.anyio


class Other(holdfast.SessionState):
    pass


@pytest.mark.parametrize("names", [[], ["shop"], ["shop", "big"], ["shop", "big", "all"]])
@pytest.mark.parametrize("is_scoped", [False, True], ids=["plain", "scoped"])
@pytest.mark.promise("companions.phases")
async def test_advice_names_tools_as_a_mount_does(names: list[str], is_scoped: bool) -> None:
    server, _, sessions = tools_of("fastmcp")
    for name in names:
        outer = FastMCP(name)
        if is_scoped:  # the servers between have middleware of ours too
            holdfast.Sessions(Other, noun=f"other_{name}").install(outer)
        outer.mount(server, namespace=name)
        server = outer
    prefix = "".join(f"{name}_" for name in reversed(names))
    handle = (await sessions.begin()).handle
    async with Client(server) as client:

        async def said(session: str) -> str:
            arguments = {"studio_id": session}
            answer = await client.call_tool(f"{prefix}critique", arguments, raise_on_error=False)
            return str(answer.content[0].text)

        known = {tool.name for tool in await client.list_tools()}
        for advice, text in (("draft", await said(handle)), ("create_studio", await said("unknown"))):
            assert f"; call {prefix}{advice} " in text
            assert f"{prefix}{advice}" in known
