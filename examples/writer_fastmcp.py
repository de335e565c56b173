"""A draft-critique-revise writer on FastMCP: its phases and log are kept across calls, restarts, replicas and eras.

`python examples/writer_fastmcp.py 8000` serves it at http://127.0.0.1:8000/mcp. STUDIO names the store. It asks the
client's model if the client offers one, as its era requires, and uses a scripted one otherwise.
"""

import sys

from fastmcp import Context, FastMCP
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from writer import Draft, Studio, Writer, prompt, scripted, sessions, writers

from holdfast.state import Insight, Step

server = FastMCP("studio")
sessions.install(server)
Question = InputRequiredResult


async def ask(ctx: Context, task: str, topic: str, writer: Writer, iteration: int) -> str | Question:
    """The client's model, if there is one; in 2026 its answer comes with the next round of the same call."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        return scripted(task, topic, writer.state, iteration)
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt(task, topic, writer.state)))
    options = writer.options
    request = ctx.request_context
    if request is not None and request.protocol_version >= "2026-07-28":
        answer = (ctx.input_responses or {}).get("text")
        if answer is None:
            params = CreateMessageRequestParams(messages=[message], max_tokens=options.max_tokens)
            return InputRequiredResult(input_requests={"text": CreateMessageRequest(params=params)})
        return str(CreateMessageResult.model_validate(answer, from_attributes=True).content.text)
    result = await ctx.session.create_message(
        [message], max_tokens=options.max_tokens, temperature=options.temperature, related_request_id=ctx.request_id
    )
    return str(result.content.text)


@server.tool
@sessions.writes  # one transaction over the studio and the step of its writer
@writers.step("draft", to="drafted")
@writers.requires("empty", "done")
async def draft(topic: str, ctx: Context, studio: Studio, writer: Writer, step: Step[Draft]) -> str | Question:
    """Write a first draft."""
    text = await ask(ctx, "draft", topic, writer, 0)
    if isinstance(text, str):
        studio.topic = topic
        step.note("query", topic)
        step.state.text, step.state.points = text, []
    return text  # which the step records


@server.tool
@sessions.reads
@writers.step("critique", to="criticised")
@writers.requires("drafted", "revised")
async def critique(ctx: Context, studio: Studio, writer: Writer, step: Step[Draft]) -> list[str] | Question:
    """Name the faults of the text."""
    said = await ask(ctx, "critique", studio.topic, writer, step.insight.iteration)
    if not isinstance(said, str):
        return said
    step.state.points = said.splitlines()
    return step.state.points


@server.tool
@sessions.reads
@writers.step("revision", to="revised")
@writers.requires("criticised", when=lambda writer: writer.state.text)
async def revise(ctx: Context, studio: Studio, writer: Writer, step: Step[Draft]) -> str | Question:
    """Rewrite the text without the faults that the critique named."""
    text = await ask(ctx, "revise", studio.topic, writer, step.insight.iteration)
    if isinstance(text, str):
        step.state.text = text
    return text


@server.tool
@writers.reads
async def progress(known: Insight) -> dict[str, object]:
    """The phase and the progress of the work."""
    return {"phase": known.phase, "iteration": known.iteration, "converged": known.convergence.reached}


if __name__ == "__main__":
    server.run(transport="http", port=int(sys.argv[1] if len(sys.argv) > 1 else 8000), show_banner=False)
