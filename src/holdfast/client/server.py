"""`Server`: a declaration, and the calls on it. They use the current run's link, or outside a run one of their own.

The work is done in `client/calls`, which is imported with the first call: it brings the SDK's types with it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.client.declaration import Reuse, ServerDeclaration
from holdfast.client.tracebacks import shortened

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import ClientSession

    from holdfast.links.calls.handlers import OnProgress
    from holdfast.links.calls.watch import Watch


class Server(ServerDeclaration):
    """`Server("github", url="https://…/mcp")`, `Server("browser", command="npx", args=[…])`, `Server("app", app=mcp)`.

    `url`, `headers` and `env` may be async callables; none is called before first use.
    """

    @shortened
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotent: bool | None = None,
        timeout: float | None = None,
        silence: float | None = None,
        on_progress: "OnProgress | None" = None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        reuse: Reuse | None = None,
        definition: "types.Tool | None" = None,
    ) -> "types.CallToolResult":
        """Call a tool.

        `idempotent` says whether the call may be repeated after a fault; by default the tool's annotations decide, if
        they are known. `timeout` is the total limit in seconds, `silence` the limit between two signs of life: giving
        it, or `on_progress`, requests progress from the server. `meta` becomes the request's `_meta`. `definition` is
        the tool's saved definition, whose annotations are used where the server was not listed.
        """
        from holdfast.client.calls import calls

        return await calls.call_tool(
            self,
            name,
            arguments,
            idempotent=idempotent,
            timeout=timeout,
            silence=silence,
            on_progress=on_progress,
            meta=meta,
            headers=headers,
            reuse=reuse,
            definition=definition,
        )

    @shortened
    async def list_tools(self) -> "list[types.Tool]":
        """List all tools, from all pages."""
        from holdfast.client.calls import calls

        return await calls.list_tools(self)

    @shortened
    async def list_resources(self) -> "list[types.Resource]":
        """List all resources, from all pages."""
        from holdfast.client.calls import calls

        return await calls.list_resources(self)

    @shortened
    async def list_resource_templates(self) -> "list[types.ResourceTemplate]":
        """List all resource templates, from all pages."""
        from holdfast.client.calls import calls

        return await calls.list_resource_templates(self)

    @shortened
    async def read_resource(self, uri: str, *, timeout: float | None = None) -> "types.ReadResourceResult":
        """Read one resource."""
        from holdfast.client.calls import calls

        return await calls.read_resource(self, uri, timeout)

    @shortened
    async def list_prompts(self) -> "list[types.Prompt]":
        """List all prompts, from all pages."""
        from holdfast.client.calls import calls

        return await calls.list_prompts(self)

    @shortened
    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> "types.GetPromptResult":
        """Get the messages of a prompt, filled with the arguments."""
        from holdfast.client.calls import calls

        return await calls.get_prompt(self, name, arguments, timeout)

    @shortened
    async def complete(
        self, ref: "types.PromptReference | types.ResourceTemplateReference", argument: str, value: str = ""
    ) -> "types.CompleteResult":
        """Get completions for one argument of a prompt or resource template."""
        from holdfast.client.calls import calls

        return await calls.complete(self, ref, argument, value)

    @shortened
    async def ping(self, *, timeout: float | None = 10.0) -> None:
        """Check that the server answers, with `ping`, in 2026 with `server/discover`."""
        from holdfast.client.calls import calls

        await calls.ping(self, timeout)

    @shortened
    async def watch(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Sequence[str] = ()
    ) -> "Watch":
        """Receive change notifications through the callbacks' `on_notification`, in either era. Needs a run."""
        from holdfast.client.calls import calls

        return await calls.watch(self, tools=tools, prompts=prompts, resources=resources, uris=uris)

    @shortened
    async def session(self) -> "ClientSession":
        """The SDK's live `ClientSession` over this run's link, for everything else. It lives as long as the link."""
        from holdfast.client.calls import sdk_session

        return await sdk_session.session(self)
