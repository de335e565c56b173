"""Targets: what is refused at once, and that no secret is shown."""

from typing import Any, cast

import pytest

import holdfast
from holdfast import Link
from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, Saved
from holdfast.core.models import BackendSessionId
from holdfast.links import HttpTarget, Limits, Options
from holdfast.links.wires.base import Generation, Resolved

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
    with pytest.raises(holdfast.errors.ConfigError, match=says) as caught:
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
        with pytest.raises(holdfast.errors.ConfigError) as caught:
            declare(host)
        assert caught.value.remedy == f"write '{scheme}://{host}'"


@pytest.mark.promise("link.bad-input")
async def test_something_that_is_no_target() -> None:
    for target in (42, object(), b"http://x/"):
        with pytest.raises(holdfast.errors.ConfigError, match="not a target"):
            Link(target)
    with pytest.raises(holdfast.errors.ConfigError, match="era"):
        Options(era="legacy")  # type: ignore[arg-type]
    with pytest.raises(holdfast.UsageError, match="silence"):
        Limits(silence=-1)
    with pytest.raises(holdfast.UsageError, match="in_flight"):
        Limits(in_flight=0)


@pytest.mark.promise("link.bad-input")
@pytest.mark.parametrize("name", ["mcp-session-id", "Mcp-Name", "bad name", "", "x\n"])
async def test_headers_that_are_not_ours_to_take(name: str) -> None:
    with pytest.raises(holdfast.errors.ConfigError):
        HttpTarget("http://host/mcp", headers={name: "s3cret"})
    with pytest.raises(holdfast.errors.ConfigError) as caught:
        HttpTarget("http://host/mcp", headers={"x-a": "s3cret\r\nx: y"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.promise("errors.repr")
def test_no_secret_is_in_a_repr() -> None:
    url = "https://mcp.example.com/s/OWY0ZmM5NjAtMjM0OS00/mcp?api_key=sk-12345#frag"
    headers = {"authorization": "Bearer hunter2"}
    target = holdfast.links.HttpTarget(url, headers, proxy="http://me:hunter2@proxy:1")
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
    parameters = holdfast.links.HttpTarget("https://h/mcp;key=hunter2/x?a=hunter2")
    told = holdfast.links.CommandTarget(
        "x", ["https://me:hunter2@h/?k=hunter2", "--at=https://h/x?sid=hunter2#hunter2"]
    )
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
    for make in (holdfast.links.HttpTarget, holdfast.Link, lambda url: holdfast.Server("it", url=url), holdfast.Server):
        with pytest.raises(holdfast.errors.ConfigError) as refused:
            make(wrong)  # type: ignore[operator]
        assert "hunter2" not in f"{refused.value} {refused.value!r}"
        assert refused.value.__suppress_context__ or refused.value.__context__ is None
