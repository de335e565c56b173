"""A draft-critique-revise writer on the SDK's MCPServer: its phases and log are kept across calls, restarts and eras.

`python examples/writer_mcpserver.py 8000` serves it at http://127.0.0.1:8000/mcp. STUDIO names the store. It asks the
client's model if the client offers one, which the SDK does as each era requires, and uses a scripted one otherwise.
"""

import sys
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from writer import Studio, Writer, prompt, scripted, sessions, writers

import holdfast

server = MCPServer("studio")
sessions.install(server)
CurrentStudio = Annotated[holdfast.Session[Studio], Resolve(sessions)]
CurrentWriter = Annotated[Writer, Resolve(writers)]


async def _ask(ctx: Context[Any, Any], task: str, topic: str, writer: Writer) -> Sample | CreateMessageResult:
    """A question to the client's model, or the scripted one's answer."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        said = scripted(task, topic, writer.state, (await writer.insight()).iteration)
        content = TextContent(type="text", text=said)
        return CreateMessageResult(role="assistant", content=content, model="scripted")
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt(task, topic, writer.state)))
    return Sample([message], max_tokens=writer.options.max_tokens)


async def drafted(ctx: Context[Any, Any], topic: str, writer: CurrentWriter) -> Sample | CreateMessageResult:
    await writers.check(writer, "draft")  # before the model is asked
    return await _ask(ctx, "draft", topic, writer)


async def criticised(
    ctx: Context[Any, Any], studio: CurrentStudio, writer: CurrentWriter
) -> Sample | CreateMessageResult:
    await writers.check(writer, "critique")
    return await _ask(ctx, "critique", studio.state.topic, writer)


async def revised(ctx: Context[Any, Any], studio: CurrentStudio, writer: CurrentWriter) -> Sample | CreateMessageResult:
    await writers.check(writer, "revise")
    return await _ask(ctx, "revise", studio.state.topic, writer)


@server.tool()
@writers.requires("empty", "done")
async def draft(
    topic: str,
    studio: CurrentStudio,
    writer: CurrentWriter,
    said: Annotated[CreateMessageResult, Resolve(drafted)],
    studio_id: str = "",
) -> str:
    """Write a first draft."""
    text = str(said.content.text)
    await studio.update(lambda state: setattr(state, "topic", topic), "topic")
    async with writer.step("draft", to="drafted") as turn:
        turn.note("query", topic)
        turn.state.text, turn.state.points = text, []
        turn.record(text)
    return text


@server.tool()
@writers.requires("drafted", "revised")
async def critique(
    writer: CurrentWriter, said: Annotated[CreateMessageResult, Resolve(criticised)], studio_id: str = ""
) -> list[str]:
    """Name the faults of the text."""
    points = str(said.content.text).splitlines()
    async with writer.step("critique", to="criticised") as turn:
        turn.state.points = points
        turn.record(points)
    return points


@server.tool()
@writers.requires("criticised", when=lambda writer: writer.state.text)
async def revise(
    writer: CurrentWriter, said: Annotated[CreateMessageResult, Resolve(revised)], studio_id: str = ""
) -> str:
    """Rewrite the text without the faults that the critique named."""
    text = str(said.content.text)
    async with writer.step("revision", to="revised") as turn:
        turn.state.text = text
        turn.record(text)
    return text


@server.tool()
async def progress(
    known: Annotated[holdfast.state.Insight, Resolve(writers.insight)], studio_id: str = ""
) -> dict[str, object]:
    """The phase and the progress of the work."""
    return {"phase": known.phase, "iteration": known.iteration, "converged": known.convergence.reached}


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000))
