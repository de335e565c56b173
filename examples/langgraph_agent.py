"""A LangGraph agent whose tool calls share one MCP session for the whole graph run. The model is scripted.

`python examples/langgraph_agent.py` needs `pip install "holdfast[langchain]" langgraph`.
"""

import asyncio
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import holdfast
from holdfast.integrations.langchain import tools
from holdfast.testing import FaultServer


def think(state: MessagesState) -> dict[str, Any]:
    """In place of a model: call the counter three times, then report the results."""
    seen = [message.content for message in state["messages"] if isinstance(message, ToolMessage)]
    if len(seen) < 3:
        call = {"name": "counter__count", "args": {}, "id": str(len(seen))}
        return {"messages": [AIMessage(content="", tool_calls=[call])]}
    return {"messages": [AIMessage(content=f"I counted {', '.join(seen)}.")]}


def after_thinking(state: MessagesState) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


async def main() -> None:
    async with FaultServer() as counter, holdfast.run():
        server = holdfast.Server("counter", url=counter.url)
        graph = StateGraph(MessagesState)
        graph.add_node("model", think)
        graph.add_node("tools", ToolNode(await tools([server])))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", after_thinking)
        graph.add_edge("tools", "model")
        result = await graph.compile().ainvoke({"messages": [("user", "count to three")]})
        print(result["messages"][-1].content)


asyncio.run(main())
