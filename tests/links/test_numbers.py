"""A number that no float holds is refused where it is read: what a caller gets can be kept, compared and sent."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.links.codec import decode
from tests.gateway.raw_backend import raw_http
from tests.gateway.test_fidelity import BOTH_WAYS, Transport, backend

pytestmark = pytest.mark.anyio

HUGE = ("1e400", "-1E+400", "9" * 400 + ".0", "1" + "0" * 300 + "e99")


@pytest.mark.promise("link.values")
@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("around", ["%s", "[[1],[%s]]", '{"a":[{"b":%s}],"c":"\\ud83d"}'])
async def test_a_number_that_no_float_holds_is_refused(number: str, around: str) -> None:
    with pytest.raises(ValueError, match="a number that no float can represent"):
        decode((around % number).encode())


@pytest.mark.promise("link.values")
async def test_numbers_that_python_holds_are_read() -> None:
    text = b'{"big":' + b"9" * 400 + b',"e":1e308,"tiny":1e-400,"text":"1e400","list":[1.5,-2e10]}'
    assert decode(text) == {"big": int("9" * 400), "e": 1e308, "tiny": 0.0, "text": "1e400", "list": [1.5, -2e10]}


def server_of(said: dict[str, Any]) -> dict[str, Any]:
    return {"url": said["url"]} if "url" in said else {"command": said["command"], "args": said["args"]}


@BOTH_WAYS
@pytest.mark.promise("link.values")
async def test_a_result_with_such_a_number_is_an_answer_that_nobody_can_read(transport: Transport) -> None:
    said = {"era": "2025", "result": '{"content":[],"structuredContent":{"x":1e400}}'}
    async with backend(transport, said) as given, holdfast.run():
        server = holdfast.Server("z", **server_of(given), era="2025")
        with pytest.raises(holdfast.errors.BadAnswer):
            await server.call_tool("t", {})


@pytest.mark.promise("link.values")
async def test_a_durable_run_never_loses_its_session_over_a_handshake_that_cannot_be_kept(tmp_path: Path) -> None:
    """It could not be saved, and each process began anew in silence."""
    said = {"era": "2025", "handshake": ',"_meta":{"x":1e400}'}
    async with raw_http(said) as url:
        server = holdfast.Server("z", url=url, era="2025")
        async with holdfast.run("id", store=f"sqlite:///{tmp_path}/runs.db"):
            with pytest.raises(holdfast.Rejected, match="a number that no float can represent"):
                await server.call_tool("t", {})
