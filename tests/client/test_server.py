"""Server declarations: what is wrong is refused when it is declared."""

from typing import Any

import pytest

import holdfast
from holdfast import Server
from holdfast.testing import FaultServer
from tests.client.servers import at

pytestmark = pytest.mark.anyio


@pytest.mark.promise("run.bad-input")
async def test_what_is_declared_wrong_is_refused_when_it_is_declared() -> None:
    async def hear(event: Any) -> None: ...

    class Hears:
        async def __call__(self, event: Any) -> None: ...

    server = Server("it", url="http://127.0.0.1:9/mcp")
    wrong: list[dict[str, Any]] = [
        {name: value} for name in ("on_event", "on_replaced") for value in (hear, Hears(), lambda: None, "x")
    ]
    for each in (*wrong, {"callbacks": {"elicit": hear}}, {"principal": 5}, {"eager": ["it"]}):
        with pytest.raises(holdfast.UsageError, match=rf"run(: |\(){next(iter(each))}=") as caught:
            holdfast.run(**each)
        assert caught.value.remedy
    for each in ({"callbacks": {}}, {"limits": 5}, {"stateful": "no"}):
        with pytest.raises(holdfast.errors.ConfigError, match=f"{next(iter(each))}= is a"):
            server.with_(**each)
    async with holdfast.run():
        with pytest.raises(holdfast.UsageError, match=r"definition= .* is a dict"):
            await server.call_tool("x", definition={"name": "x"})  # type: ignore[arg-type]


@pytest.mark.promise("run.bad-input")
async def test_bad_declarations_and_misuse_are_told() -> None:
    for wrong in (
        {"name": "x"},
        {"name": "x", "url": "http://h/", "command": "y"},
        {"name": "", "url": "http://h/"},
        {"name": "a b", "url": "http://h/"},
        {"name": "x", "url": "nonsense"},
        {"name": "x", "url": "http://h/", "reuse": "always"},
        {"name": "x", "url": "http://h/", "args": ["y"]},
        {"name": "x", "command": "y", "headers": {"a": "b"}},
        {"name": "x", "command": "y", "args": "--flag"},
    ):
        with pytest.raises(holdfast.errors.ConfigError):
            Server(**wrong)  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="needs an id"):
        async with holdfast.open_store("memory:") as store:
            holdfast.run(store=store)
    async with FaultServer() as http:
        server = at(http)
        assert server == at(http)
        assert hash(server) == hash(at(http))
        assert server != at(http, "other")
        async with holdfast.run():
            await server.call_tool("echo")
            with pytest.raises(holdfast.errors.ConfigError, match="two different servers"):
                await at(http, timeout=5).call_tool("echo")
            with pytest.raises(holdfast.errors.ConfigError, match="disabled"):
                await at(http, "off", disabled=True).call_tool("echo")
            with pytest.raises(holdfast.UsageError):
                await server.call_tool("echo", [1])  # type: ignore[arg-type]
        scope = holdfast.run()
        async with scope:
            pass
        with pytest.raises(holdfast.UsageError, match="entered already"):
            await scope.__aenter__()
        await scope.__aexit__(None, None, None)  # closed twice is fine
        with pytest.raises(holdfast.UsageError):
            await server.session()
