"""The client that the official conformance suite drives: a link of ours under the SDK's `mcp.Client`.

`client.py URL`, with MCP_CONFORMANCE_SCENARIO, MCP_CONFORMANCE_CONTEXT (JSON) and MCP_CONFORMANCE_PROTOCOL_VERSION in the
environment. It does what an agent does: initialize, list everything, call every tool. It has no code for the server of a particular scenario.
"""

import asyncio
import json
import logging
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp.shared.exceptions import MCPError
from pydantic import AnyUrl

from holdfast import Link
from holdfast.links import HttpTarget, Limits, LinkTransport, Options

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
CALLBACK = "http://localhost:3000/callback"
DOCUMENT = "https://conformance-test.local/client-metadata.json"  # the suite's own name for our metadata document

log = logging.getLogger("conformance")


class Tokens:
    """Token storage in memory."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.tokens: OAuthToken | None = None
        self.client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Follows the authorization URL like a browser, and takes the code from the redirect."""

    def __init__(self) -> None:
        self.location = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            self.location = (await client.get(url, follow_redirects=False)).headers.get("location", "")

    async def result(self) -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.location).query).items()}
        return AuthorizationCodeResult(code=query.get("code", ""), state=query.get("state"), iss=query.get("iss"))


def auth_for(url: str) -> httpx2.Auth | None:
    """The SDK's OAuth provider for the scenario."""
    if not SCENARIO.startswith("auth/"):
        return None
    if SCENARIO == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(
            url, Tokens(), CONTEXT["client_id"], CONTEXT["client_secret"], issuer=CONTEXT.get("issuer")
        )
    if SCENARIO == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=CONTEXT["client_id"],
            subject=CONTEXT["client_id"],
            signing_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
            signing_key=CONTEXT["private_key_pem"],
        )
        return PrivateKeyJWTOAuthProvider(
            url, Tokens(), CONTEXT["client_id"], signed.create_assertion_provider(), issuer=CONTEXT.get("issuer")
        )
    browser = Browser()
    known = None
    if "client_id" in CONTEXT:
        secret = CONTEXT.get("client_secret")
        known = OAuthClientInformationFull(
            client_id=CONTEXT["client_id"],
            client_secret=secret,
            redirect_uris=[AnyUrl(CALLBACK)],
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="holdfast conformance",
            redirect_uris=[AnyUrl(CALLBACK)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        Tokens(known),
        redirect_handler=browser.open,
        callback_handler=browser.result,
        client_metadata_url=DOCUMENT,
    )


async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Accept, with the defaults that the schema offers."""
    properties = getattr(params, "requested_schema", {}).get("properties", {})
    return types.ElicitResult(
        action="accept", content={name: each.get("default", _made(each)) for name, each in properties.items()}
    )


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="sampled")
    return types.CreateMessageResult(role="assistant", content=text, model="none")


async def roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///nowhere")])  # type: ignore[arg-type]


def _made(schema: dict[str, Any]) -> Any:
    """A value that fits a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _made(each) for name, each in schema.get("properties", {}).items() if isinstance(each, dict)}
    return {"integer": 5, "number": 5, "boolean": True, "array": []}.get(str(kind), "test")


def calls_for(tools: list[types.Tool]) -> list[tuple[str, dict[str, Any]]]:
    """What to call: what the suite names, else every tool once."""
    named = CONTEXT.get("toolCalls")
    if named:
        return [(each["name"], each.get("arguments") or {}) for each in named]
    calls: list[tuple[str, dict[str, Any]]] = []
    for tool in tools:
        arguments = _made(tool.input_schema) or {}
        if "schema" in arguments:  # an echo of schemas: show what reached us of another tool's
            arguments["schema"] = next((other.input_schema for other in tools if other is not tool), {})
        calls.append((tool.name, arguments))
    return calls


async def main(url: str) -> None:
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    era: Any = "2025" if version and version < "2026" else "2026"  # of a server that offers both, auto takes 2025
    link = Link(HttpTarget(url, auth=auth_for(url)), Options(era=era, limits=Limits(silence=20)), name=SCENARIO)
    async with Client(
        LinkTransport(link), elicitation_callback=elicit, sampling_callback=sample, list_roots_callback=roots
    ) as client:
        tools = (await client.list_tools()).tools
        can = client.server_capabilities
        if can.prompts is not None:
            await client.list_prompts()
        if can.resources is not None:
            await client.list_resources()
        for name, arguments in calls_for(tools):
            try:
                result = await client.call_tool(name, arguments)
                log.info("%s(%s): %s", name, arguments, result.content)
            except MCPError as error:
                log.info("%s(%s) refused: %s", name, arguments, error)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(sys.argv[-1]))
