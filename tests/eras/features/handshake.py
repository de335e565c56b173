"""What both sides say of themselves: versions, capabilities, identity."""

from tests.eras.cells import CLIENT_2025, CLIENT_2026, HTTP_ONLY, LINK, NotApplicable, feature
from tests.eras.offers import CAPABILITIES, INFO, INSTRUCTIONS
from tests.eras.walk import CLIENT_INFO, Walk

SUBJECT = "Handshake"
REFUSED = NotApplicable(
    "the transport refuses `server/discover` and says which version there is: clients of both eras begin in 2025",
    ("transport",),
    client="2026",
    server="2025",
)
AGREED = NotApplicable("a link has agreed on its version before its user says which", LINK)
OWN = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
    "extensions": {"com.example/extension": {"depth": 1}},
    "experimental": {"com.example/trial": {"on": 1}},
}
ENVELOPE = "io.modelcontextprotocol/"


@feature(SUBJECT, "the newest version of the client's era")
async def newest_version(walk: Walk) -> None:
    client = await walk.client()
    if client.era == "2025":
        assert client.handshake["protocolVersion"] == "2025-11-25"
    elif client.refused is not None:  # a link may say so at the start, and a client of both eras goes on in 2025
        assert walk.cell.way in LINK
        assert walk.cell.server == "2025"
        assert client.refused["code"] in (-32601, -32022)
        assert "2025-11-25" in client.refused["message"]
    else:
        assert "2026-07-28" in client.handshake["supportedVersions"]
        assert {"ttlMs", "cacheScope", "resultType"} <= client.handshake.keys()


@feature(SUBJECT, "older 2025 versions", CLIENT_2025, AGREED)
async def older_versions(walk: Walk) -> None:
    for version in ("2025-06-18", "2025-03-26", "2024-11-05"):
        client = await walk.client(version=version)
        assert client.handshake["protocolVersion"] == version
        tools = (await client.request("tools/list")).result["tools"]
        assert [tool["name"] for tool in tools][-1] == walk.name("by-region")


@feature(SUBJECT, "a version that nobody speaks, 2025", CLIENT_2025)
async def unknown_version_2025(walk: Walk) -> None:
    client = await walk.client(version="2031-01-01")
    assert client.handshake["protocolVersion"] == "2025-11-25"


@feature(SUBJECT, "a version that nobody speaks, 2026: -32022", CLIENT_2026, AGREED)
async def unknown_version_2026(walk: Walk) -> None:
    client = await walk.client_without_handshake(version="2031-01-01")
    reply = await client.request("server/discover")
    assert reply.error["code"] == -32022
    assert "2026-07-28" in reply.error["data"]["supported"]
    assert reply.error["data"]["requested"] == "2031-01-01"
    assert reply.status in (400, None)


@feature(SUBJECT, "the server's capabilities", REFUSED)
async def server_capabilities(walk: Walk) -> None:
    said = (await walk.client()).handshake["capabilities"]
    for name in ("tools", "prompts", "resources", "completions", "logging"):
        assert CAPABILITIES[name].items() <= said[name].items(), name


@feature(SUBJECT, "the server's `extensions`", REFUSED)
async def server_extensions(walk: Walk) -> None:
    said = (await walk.client()).handshake["capabilities"]
    assert said["extensions"]["com.example/extension"] == {"depth": 2}


@feature(SUBJECT, "the server's `experimental` capabilities", REFUSED)
async def server_experimental(walk: Walk) -> None:
    said = (await walk.client()).handshake["capabilities"]
    assert said["experimental"] == {"com.example/trial": {"on": True}}


@feature(SUBJECT, "`serverInfo` with title, icons, website", REFUSED)
async def server_info(walk: Walk) -> None:
    assert (await walk.client()).server_info == INFO


@feature(SUBJECT, "instructions", REFUSED)
async def instructions(walk: Walk) -> None:
    assert (await walk.client()).handshake["instructions"].endswith(INSTRUCTIONS)  # a gateway says whose they are


@feature(SUBJECT, "`clientInfo` reaches the server")
async def client_info(walk: Walk) -> None:
    info = {**CLIENT_INFO, "name": "a-client", "websiteUrl": "https://c.example/", "icons": []}
    client = await walk.client(OWN, info=info)
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}})
    if walk.cell.server == "2026":
        said = [walk.server.one("tools/call").params["_meta"][f"{ENVELOPE}clientInfo"]]
    else:
        said = [each.params["clientInfo"] for each in walk.server.all("initialize")]
    assert info in said, said


def _capabilities_seen(walk: Walk) -> list[dict[str, object]]:
    if walk.cell.server == "2026":
        return [walk.server.one("tools/call").params["_meta"][f"{ENVELOPE}clientCapabilities"]]
    return [each.params["capabilities"] for each in walk.server.all("initialize")]


@feature(SUBJECT, "the client's capabilities reach the server")
async def client_capabilities(walk: Walk) -> None:
    client = await walk.client(OWN)
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}})
    wanted = {name: OWN[name] for name in ("elicitation", "sampling", "roots")}
    assert any(wanted.items() <= said.items() for said in _capabilities_seen(walk)), _capabilities_seen(walk)


@feature(SUBJECT, "the client's `extensions` and `experimental` capabilities reach the server")
async def client_extensions(walk: Walk) -> None:
    client = await walk.client(OWN)
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}})
    wanted = {name: OWN[name] for name in ("extensions", "experimental")}
    assert any(wanted.items() <= said.items() for said in _capabilities_seen(walk)), _capabilities_seen(walk)


@feature(SUBJECT, "the 2026 envelope: -32602 without it", CLIENT_2026, HTTP_ONLY)
async def envelope_missing(walk: Walk) -> None:
    client = await walk.client()
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    status, _, answer = await client.send("POST", message, client.headers(message))
    assert (status, answer["error"]["code"]) == (400, -32602)


@feature(SUBJECT, "headers that differ from the body: -32020", CLIENT_2026, HTTP_ONLY)
async def headers_differ(walk: Walk) -> None:
    client = await walk.client()
    for wrong in ({"mcp_method": "tools/call"}, {"mcp_protocol_version": "2025-11-25"}):
        reply = await client.request("tools/list", **wrong)
        assert (reply.status, reply.error["code"]) == (400, -32020)
    reply = await client.request("tools/call", {"name": walk.name("any")}, mcp_name="other")
    assert (reply.status, reply.error["code"]) == (400, -32020)


@feature(
    SUBJECT,
    "no envelope of 2026 reaches a 2025 server",
    NotApplicable("a 2026 server needs it", server="2026"),
)
async def no_envelope(walk: Walk) -> None:
    client = await walk.client()
    await client.request("tools/call", {"name": walk.name("any"), "arguments": {}, "_meta": {"com.example/q": 1}})
    seen = walk.server.one("tools/call")
    assert not [name for name in seen.params["_meta"] if name.startswith(ENVELOPE)]
    assert not [name for name in seen.headers if name.lower() in ("mcp-method", "mcp-name")]
    assert seen.headers["mcp-protocol-version"] == "2025-11-25"
