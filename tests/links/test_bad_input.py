"""Bad input: each a typed error that names server, phase and remedy; and the link goes on."""

import asyncio
from typing import Any, cast

import pytest

import holdfast
from holdfast import HttpTarget, Limits, Link, Options
from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, Saved
from holdfast.core.models import BackendSessionId
from holdfast.links.wires.base import Generation, Resolved
from holdfast.testing import Fault, FaultServer
from tests.links.kit import FAST, link_to, text_of, tool

pytestmark = pytest.mark.anyio


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("example.com/mcp", "http:// or https://"),
        ("ftp://example.com/", "http:// or https://"),
        ("http://", "has no host"),
        ("http://exa mple.com/", "space"),
        ("http://[::1/mcp", "malformed"),
        ("http://host:99999/mcp", "malformed"),
        ("http://host:0/mcp", "port 0"),
        ("https://me:s3cret@host/mcp", "user or password"),
        ("http://host/mcp\r\nx: y", "control character"),
        ("", "http:// or https://"),
    ],
)
async def test_a_malformed_url(url: str, says: str) -> None:
    with pytest.raises(holdfast.ConfigError, match=says) as caught:
        Link(url)
    assert caught.value.remedy
    assert caught.value.phase == "resolve"
    assert "s3cret" not in str(caught.value)


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("host", "scheme"), [("localhost:8000/mcp", "http"), ("127.0.0.1:8000", "http"), ("mcp.example/mcp", "https")]
)
async def test_a_bare_host_is_refused_with_the_url_that_was_probably_meant(host: str, scheme: str) -> None:
    for declare in (HttpTarget, lambda url: holdfast.Server("it", url=url)):
        with pytest.raises(holdfast.ConfigError) as caught:
            declare(host)
        assert caught.value.remedy == f"write '{scheme}://{host}'"


@pytest.mark.promise("link.bad-input")
async def test_something_that_is_no_target() -> None:
    for target in (42, object(), b"http://x/"):
        with pytest.raises(holdfast.ConfigError, match="no target"):
            Link(target)
    with pytest.raises(holdfast.ConfigError, match="era"):
        Options(era="legacy")  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="silence"):
        Limits(silence=-1)
    with pytest.raises(holdfast.UsageError, match="in_flight"):
        Limits(in_flight=0)


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("name", ["mcp-session-id", "Mcp-Name", "bad name", "", "x\n"])
async def test_headers_that_are_not_ours_to_take(name: str) -> None:
    with pytest.raises(holdfast.ConfigError):
        HttpTarget("http://host/mcp", headers={name: "s3cret"})
    with pytest.raises(holdfast.ConfigError) as caught:
        HttpTarget("http://host/mcp", headers={"x-a": "s3cret\r\nx: y"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault.HTML, "not an MCP server"),
        (Fault.BROKEN_JSON, "not valid JSON"),
        (Fault.NOT_JSON_RPC, "not a JSON-RPC answer"),
        (Fault.WRONG_ID, "not a JSON-RPC answer"),
        (Fault.ACCEPTED, "without an answer"),
    ],
)
async def test_a_server_that_is_not_mcp_at_all(fault: Fault, says: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(fault, times=2)
        with pytest.raises(holdfast.Rejected, match=says) as caught:
            await link.request("tools/list")
        assert (caught.value.server, caught.value.phase) == ("it", "handshake")
        assert "URL" in str(caught.value.remedy)
        server.lift()
        assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("link.bad-input")
async def test_a_port_that_does_not_speak_http() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.NOT_HTTP, times=2)
        with pytest.raises(holdfast.Rejected, match="not an MCP server"):
            await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("status", [400, 404, 405, 406])
async def test_a_plain_refusal_of_the_handshake(status: int) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, status=status, headers={"content-type": "text/plain"}, body=b"nothing here", times=2)
        with pytest.raises(holdfast.Rejected) as caught:
            await link.request("tools/list")
        assert caught.value.status == status
        assert "nothing here" in str(caught.value)
        assert caught.value.remedy


@pytest.mark.promise("link.probe")
@pytest.mark.parametrize("status", [401, 429, 500, 502, 503])
async def test_a_transient_fault_on_the_probe_is_no_era(status: int) -> None:
    """The SDK's client lands on 2025 for good here."""
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, method="server/discover", status=status, times=10)
        with pytest.raises(holdfast.HoldfastError) as caught:
            await link.request("tools/list")
        assert caught.value.status == status
        server.lift()
        await link.request("tools/list")
        assert link.era is not None
        assert link.era.value == "2026"
        assert link.session_id is None


@pytest.mark.promise("link.probe")
async def test_a_probe_that_hangs_or_is_cut_is_asked_again() -> None:
    async with FaultServer(era="2026") as server:
        for fault in (Fault.HANG, Fault.CLOSE, Fault.RESET, Fault.CLOSE_IN_BODY):
            async with link_to(server.url, limits=FAST.scaled(0.2)) as link:
                server.plan(fault, method="server/discover")
                await link.request("tools/list")
                assert link.era is not None
                assert link.era.value == "2026"


@pytest.mark.promise("link.probe")
async def test_the_era_is_asked_for_once_per_server() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as first, link_to(server.url) as second:
        await first.request("tools/list")
        await second.request("tools/list")
        assert sum(request.method == "initialize" for request in server.requests) == 1


@pytest.mark.promise("link.probe")
async def test_a_pinned_era_is_not_asked_for() -> None:
    async with FaultServer() as server:
        async with link_to(server.url, era="2025") as link:
            await link.request("tools/list")
        assert "server/discover" not in {request.method for request in server.requests}
        async with link_to(server.url, era="2026") as link:
            with pytest.raises(holdfast.Rejected, match="does not speak 2026"):
                await link.request("tools/list")
    async with FaultServer(era="2026") as server, link_to(server.url, era="2025") as link:
        with pytest.raises(holdfast.Rejected, match="refused the handshake"):
            await link.request("tools/list")


@pytest.mark.promise("link.probe")
async def test_a_server_of_another_century_is_told_apart() -> None:
    async with FaultServer(era="2026") as server, link_to(server.url) as link:
        body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"supported":["2031-01-01"]}}}'
        server.plan(Fault.STATUS, method="server/discover", status=400, body=body)
        with pytest.raises(holdfast.Rejected, match="2031-01-01") as caught:
            await link.request("tools/list")
        assert "update" in str(caught.value.remedy)


@pytest.mark.promise("link.bad-input")
async def test_a_session_id_with_illegal_characters() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.sessions.bad_session_id = "böse id"
        with pytest.raises(holdfast.Rejected, match="visible ASCII"):
            await link.request("tools/list")
        server.sessions.bad_session_id = None
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
async def test_a_redirect_to_another_origin_is_not_followed_and_said_so() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.REDIRECT, times=1)
        with pytest.raises(holdfast.Rejected, match=r"elsewhere\.example.*not followed") as caught:
            await link.request("tools/list")
        assert caught.value.phase == "handshake"


@pytest.mark.promise("link.bad-input")
async def test_a_redirect_within_the_origin_is_followed_once_and_remembered() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        server.plan(Fault.STATUS, status=307, headers={"location": "/mcp/"})
        await link.request("tools/list")
        await link.request("tools/list")
        assert (await link.request("tools/list"))["tools"]


@pytest.mark.promise("link.bad-input")
async def test_messages_over_the_cap_in_either_direction() -> None:
    limits = Limits(message_bytes=100_000, close=2)
    async with FaultServer() as server, link_to(server.url, limits=limits) as link:
        await link.request("tools/list")
        before = len(server.requests)
        with pytest.raises(holdfast.LimitReached) as caught:
            await link.request("tools/call", tool("echo", text="x" * 200_000))
        assert caught.value.limit == 100_000
        assert len(server.requests) == before
        server.plan(Fault.OVERSIZE, method="tools/call")
        with pytest.raises(holdfast.LimitReached) as caught:
            await link.request("tools/call", tool("echo"))
        assert "message_bytes" in str(caught.value.remedy)
        await link.request("tools/list")


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"x"])
async def test_parameters_that_are_not_json(value: Any) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        with pytest.raises(holdfast.UsageError, match="not JSON"):
            await link.request("tools/call", tool("echo", text=value))
        await link.request("tools/list")


@pytest.mark.promise("link.values")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_half_a_character_is_no_lost_call(era: Any) -> None:
    async with FaultServer(era=era) as server, link_to(server.url) as link:
        answer = await link.request("tools/call", tool("echo", text="half \ud83d"))
        assert text_of(answer) == "half \ufffd"  # as it stands in Python: only a gateway passes it on as it is
        assert server.requests[-1].message is not None
        assert server.requests[-1].message["params"]["arguments"] == {"text": "half \ud83d"}
        await link.request("tools/call", tool("\ud83d"))  # 2026 has the name in a header, too: the server's to judge


@pytest.mark.promise("link.values")
async def test_numbers_come_back_as_they_were_sent() -> None:
    for form in ("json", "sse"):
        async with FaultServer(answers=form) as server, link_to(server.url) as link:  # type: ignore[arg-type]
            big = 2**80 + 1
            echoed = await link.request("tools/call", tool("echo", text=big))
            assert echoed["content"][0]["text"] == str(big)


@pytest.mark.promise("link.bad-input")
async def test_an_answer_that_is_an_error_is_the_servers_word() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        with pytest.raises(holdfast.ErrorAnswer) as caught:
            await link.request("no/such/method", {})
        assert (caught.value.code, caught.value.message) == (-32601, "Method not found")
        assert caught.value.server == "it"


@pytest.mark.promise("link.bad-input")
async def test_hostile_messages_on_the_servers_stream_harm_nothing() -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        from tests.links.kit import until

        await until(lambda: server.streams == 1)
        hostile: list[Any] = [
            {},
            {"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"},
            {"jsonrpc": "2.0", "id": None, "method": 7},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": [], "progress": "x"}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}},
            {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"_meta": 7}},
            {"jsonrpc": "2.0", "method": "notifications/message", "params": [1, 2]},
            {"jsonrpc": "2.0", "id": "x", "result": {}},
        ]
        for message in hostile:
            server.push(message)
        await asyncio.gather(*(link.request("tools/list") for _ in range(5)))
        await until(lambda: link.statistics().strays >= 3)
        assert server.streams == 1
        assert link.generation == 1


@pytest.mark.promise("errors.repr")
def test_no_secret_is_in_a_repr() -> None:
    url = "https://mcp.example.com/s/OWY0ZmM5NjAtMjM0OS00/mcp?api_key=sk-12345#frag"
    headers = {"authorization": "Bearer hunter2"}
    target = holdfast.HttpTarget(url, headers, proxy="http://me:hunter2@proxy:1")
    server = holdfast.Server("it", url=url, headers=headers, proxy="http://me:hunter2@proxy:1")
    program = holdfast.Server("it", command="tool", args=["--api-key", "hunter2"], env={"TOKEN": "hunter2"})
    session = BackendSessionId("sk-12345")
    handshake = Handshake(Era.Y2025, "2025-11-25", {})
    generation = Generation(1, Era.Y2025, "2025-11-25", handshake, cast("Any", None), session, headers=headers)
    resolved = Resolved(url, headers, {"TOKEN": "hunter2"})
    saved = Saved(session, handshake, Ours({}))
    for shown in (target, server, program, holdfast.Link(url), holdfast.Link(target), generation, resolved, saved):
        for secret in ("sk-12345", "hunter2", "MjM0OS00", "frag"):
            assert secret not in repr(shown), shown
    assert "https://mcp.example.com/s/OWY0…/mcp?•••" in repr(server)
    parameters = holdfast.HttpTarget("https://h/mcp;key=hunter2/x?a=hunter2")
    told = holdfast.CommandTarget("x", ["https://me:hunter2@h/?k=hunter2", "--at=https://h/x?sid=hunter2#hunter2"])
    for shown in (parameters, parameters.name, holdfast.Link(parameters), told):
        assert "hunter2" not in repr(shown)
    assert repr(holdfast.Server("it", url="http://h/mcp", timeout=3)) == "Server('it', url='http://h/mcp', timeout=3)"


@pytest.mark.promise("errors.repr")
@pytest.mark.parametrize(
    "wrong",
    ["me:hunter2@host/mcp", "https:/me:hunter2@h/", "https://me:hunter2@h/", "https://h:hunter2/mcp",
     "//me:hunter2@h/x",
     "https://[bad/?k=hunter2", "ftp://h/?k=hunter2", "https://h /?k=hunter2", "https://hunter2@h/"],
)  # fmt: skip
def test_no_secret_is_in_the_refusal_of_a_url(wrong: str) -> None:
    for make in (holdfast.HttpTarget, holdfast.Link, lambda url: holdfast.Server("it", url=url), holdfast.Server):
        with pytest.raises(holdfast.ConfigError) as refused:
            make(wrong)  # type: ignore[operator]
        assert "hunter2" not in f"{refused.value} {refused.value!r}"
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.promise("errors.repr")
@pytest.mark.parametrize("place", ["https://me:hunter2@else.example/x?t=hunter2", "/login?next=hunter2", "x#hunter2"])
async def test_no_secret_is_in_the_word_of_a_redirect(place: str) -> None:
    async with FaultServer() as server, link_to(server.url) as link:
        await link.request("tools/list")
        for _ in range(3):
            server.plan(Fault.STATUS, method="tools/call", status=302, headers={"location": place})
        with pytest.raises(holdfast.HoldfastError, match="redirected") as refused:
            await link.request("tools/call", tool("echo"))
        assert "hunter2" not in f"{refused.value} {refused.value!r}"
