"""Calls that a 2026 server wants again: with the headers of its tool as it is now, or with a 2025 client's answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from holdfast.core.eras import HEADER_MISMATCH, Era
from holdfast.core.exact import plain
from holdfast.core.questions import has, required
from holdfast.core.values import members
from holdfast.errors import ErrorAnswer, LimitReached, QuestionRefused
from holdfast.gateway.backends.links.link import BackendLink
from holdfast.gateway.backends.lists.catalogue import fetch_list
from holdfast.gateway.backends.lists.fetching import FETCH_SECONDS
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.links.calls.handlers import CallHandlers, RawProgress

ROUNDS = 10  # of input that a 2026 server may ask of a 2025 client for one call


def headers_of(tool: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a 2026 tool wants in headers, too."""
    mapped = x_mcp_header_map(tool.get("inputSchema"))
    return mcp_param_headers(mapped, plain(params.get("arguments") or {})) if mapped else {}


@dataclass(slots=True)
class RepeatableCall:
    """One call over one link, as it is sent each time."""

    context: RequestContext
    backend_link: BackendLink
    method: str
    safe: bool
    on_progress: RawProgress | None
    handlers: CallHandlers | None

    async def _send(self, params: Mapping[str, Any], headers: Mapping[str, str] | None) -> dict[str, Any]:
        server = self.backend_link.backend.entry.server
        return await self.backend_link.link.request(
            self.method,
            params,
            safe=self.safe,
            headers=headers,
            timeout=server.timeout,
            silence=server.silence,
            on_progress=self.on_progress,
            handlers=self.handlers,
        )

    def was_refused_for_headers(self, error: ErrorAnswer) -> bool:
        """Nothing was executed: the tool wants other parameters in headers than was known."""
        is_2026 = self.backend_link.link.era is Era.Y2026
        return error.code == HEADER_MISMATCH and self.method == "tools/call" and is_2026

    async def with_new_headers(
        self, params: Mapping[str, Any], headers: Mapping[str, str] | None, error: ErrorAnswer
    ) -> dict[str, Any]:
        """The call once more, after the tools were listed again; the same error if they want nothing else."""
        backend_link = self.backend_link
        found = await fetch_list(backend_link.link, "tools", backend_link.backend.catalogue, timeout=FETCH_SECONDS)
        tool = next((item for item in found.items if item.get("name") == params.get("name")), None)
        if tool is None:
            raise error
        kept = {name: value for name, value in (headers or {}).items() if not name.lower().startswith("mcp-param-")}
        return await self._send(params, {**kept, **headers_of(tool, params)})

    async def with_answers(
        self, params: Mapping[str, Any], result: dict[str, Any], headers: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """The call again for as long as its server asks inside its result: a 2025 client is asked on the call's
        stream."""
        server = self.backend_link.backend.name
        for _ in range(ROUNDS):
            if result.get("resultType") != "input_required":
                return result
            answers = {
                key: await self._ask(members(question), server)
                for key, question in members(result.get("inputRequests")).items()
            }
            again: dict[str, Any] = {**params, "inputResponses": answers} if answers else dict(params)
            if isinstance(result.get("requestState"), str):
                again["requestState"] = result["requestState"]
            result = await self._send(again, headers)
        if result.get("resultType") != "input_required":
            return result
        raise LimitReached(
            f"{self.method}: {server!r} asked for input {ROUNDS} times in a row", limit=ROUNDS, server=server
        )

    async def _ask(self, question: Mapping[str, Any], server: str) -> dict[str, Any]:
        context, method = self.context, str(question.get("method"))
        params = members(question["params"]) if isinstance(question.get("params"), dict) else None
        session, needed = context.session, required(method, params)
        if session is None or needed is None or not has(context.client.capabilities, needed):
            raise QuestionRefused(
                f"{method} from {server!r} was refused: the client has not declared what it needs",
                server=server,
                phase="call",
            )
        return await session.questions.ask(method, params, context.reply_channel)
