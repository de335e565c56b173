"""A key twice in one object is refused at the side that sent it: of two readers each may take another one."""

from pathlib import Path

import pytest

from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_http
from tests.gateway.test_fidelity import BOTH_ERAS, BOTH_WAYS, Transport, backend, call_of, sent

pytestmark = pytest.mark.anyio


@pytest.mark.promise("gateway.fidelity")
@BOTH_ERAS
async def test_a_client_that_repeats_a_key_is_refused_with_its_place(tmp_path: Path, era: str) -> None:
    said = {"era": era}
    async with (
        raw_http(said) as url,
        gateway(tmp_path, {"b": {"url": url, "era": era}}) as program,
        RawClient(program.url) as client,
    ):
        if era == "2025":
            await client.initialize()
        good = call_of('{"path":"/safe"}', era)
        assert "error" not in (await sent(client, good, era)).last
        for body, place in (
            (call_of('{"path":"/safe","path":"/etc/shadow"}', era), "params.arguments.path"),
            (good.replace(b'"method"', b'"method":"ping","method"'), "method"),
            (good.replace(b'"name"', b'"name":"x","n\\u0061me"'), "params.name"),
            (good[:-1] + b',"id":8}', "id"),
        ):
            answer = await sent(client, body, era)
            assert (answer.status, answer.error["code"]) == (400, -32700)
            assert f"the key '{place}' occurs twice" in answer.error["message"]


@pytest.mark.promise("gateway.fidelity")
@BOTH_WAYS
async def test_a_backend_that_repeats_a_key_has_answered_what_nobody_can_read(
    tmp_path: Path, transport: Transport
) -> None:
    said = {"era": "2025", "result": '{"content":[],"structuredContent":{"a":1,"a":2}}'}
    async with (
        backend(transport, said) as server,
        gateway(tmp_path, {"b": server}) as program,
        RawClient(program.url) as client,
    ):
        await client.initialize()
        answer = await sent(client, call_of("{}", "2025"), "2025")
        assert '"a":2' not in answer.raw.decode()
        assert answer.result["isError"]
        assert answer.result["_meta"]["dev.holdfast/error"]["kind"] == "BadAnswer"
