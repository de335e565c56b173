"""A draft-critique-revise writer on the SDK's MCPServer: its phases and log are kept across calls, restarts and eras.

`python examples/writer_mcpserver.py 8000` serves it at http://127.0.0.1:8000/mcp. STUDIO names the store. It asks the
client's model if the client offers one, which the SDK does as each era requires, and uses a scripted one otherwise.
"""

import sys
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from writer import Draft, Studio, Writer, prompt, scripted, sessions, writers

from holdfast.state import Insight, Step

server = MCPServer("studio")
sessions.install(server)


async def _ask(ctx: Context[Any, Any], task: str, topic: str, writer: Writer) -> Sample | CreateMessageResult:
    """A question to the client's model, or the scripted one's answer."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        said = scripted(task, topic, writer.state, (await writer.insight()).iteration)
        content = TextContent(type="text", text=said)
        return CreateMessageResult(role="assistant", content=content, model="scripted")
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt(task, topic, writer.state)))
    return Sample([message], max_tokens=writer.options.max_tokens)


async def drafted(ctx: Context[Any, Any], topic: str, studio_id: str) -> Sample | CreateMessageResult:
    writer = await writers(ctx, studio_id=studio_id)
    await writers.check(writer, "draft")  # before the model is asked
    return await _ask(ctx, "draft", topic, writer)


async def criticised(ctx: Context[Any, Any], studio_id: str) -> Sample | CreateMessageResult:
    return await _of_topic(ctx, "critique", studio_id)


async def revised(ctx: Context[Any, Any], studio_id: str) -> Sample | CreateMessageResult:
    return await _of_topic(ctx, "revise", studio_id)


async def _of_topic(ctx: Context[Any, Any], task: str, studio_id: str) -> Sample | CreateMessageResult:
    studio, writer = await sessions(ctx, studio_id=studio_id), await writers(ctx, studio_id=studio_id)
    await writers.check(writer, task)
    return await _ask(ctx, task, studio.state.topic, writer)


Drafted = Annotated[CreateMessageResult, Resolve(drafted)]
Criticised = Annotated[CreateMessageResult, Resolve(criticised)]
Revised = Annotated[CreateMessageResult, Resolve(revised)]


@server.tool()
@sessions.writes  # one transaction over the studio and the step of its writer
@writers.step("draft", to="drafted")
@writers.requires("empty", "done")
async def draft(topic: str, studio: Studio, writer: Writer, step: Step[Draft], said: Drafted) -> str:
    """Write a first draft."""
    studio.topic = topic
    step.note("query", topic)
    step.state.text, step.state.points = str(said.content.text), []
    return step.state.text  # which the step records


@server.tool()
@writers.step("critique", to="criticised")
@writers.requires("drafted", "revised")
async def critique(writer: Writer, draft: Draft, said: Criticised) -> list[str]:
    """Name the faults of the text."""
    draft.points = str(said.content.text).splitlines()
    return draft.points


@server.tool()
@writers.step("revision", to="revised")
@writers.requires("criticised", when=lambda writer: writer.state.text)
async def revise(writer: Writer, draft: Draft, said: Revised) -> str:
    """Rewrite the text without the faults that the critique named."""
    draft.text = str(said.content.text)
    return draft.text


@server.tool()
@writers.reads
async def progress(known: Insight) -> dict[str, object]:
    """The phase and the progress of the work."""
    return {"phase": known.phase, "iteration": known.iteration, "converged": known.convergence.reached}


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000))
