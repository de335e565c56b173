"""Tools for LangChain: definitions, results, errors, and one session for a whole graph run."""

import sys
from typing import Any

import mcp_types as types
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import ToolException
from langgraph.prebuilt import ToolNode
from mcp.server.mcpserver import MCPServer

import holdfast
from holdfast import Server
from holdfast.integrations.langchain import definitions, tools
from holdfast.testing import FaultServer
from tests.client.servers import FASTER
from tests.links.quick_links import FAST

pytestmark = pytest.mark.anyio


def app() -> MCPServer:
    made = MCPServer("app")

    @made.tool(title="Add", annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @made.tool()
    def fail() -> str:
        raise ValueError("no such thing")

    return made


@pytest.mark.promise("integrations.langchain")
async def test_tools_carry_definitions_results_and_where_they_come_from() -> None:
    server = Server("calc", app=app(), labels={"team": "a"})
    async with holdfast.run():
        add, fail = await tools([server, Server("off", app=app(), disabled=True)])
        assert (add.name, add.description) == ("calc__add", "Add two numbers.")
        assert add.metadata == {
            "server": "calc", "tool": "add", "title": "Add", "kind": "mcp", "team": "a",
            "annotations": {"readOnlyHint": True},
        }  # fmt: skip
        message = await add.ainvoke({"type": "tool_call", "id": "1", "name": add.name, "args": {"a": 1, "b": 2}})
        assert isinstance(message, ToolMessage)
        assert message.content == "3"
        assert message.artifact["structured_content"] == {"result": 3}
        failed = await fail.ainvoke({"type": "tool_call", "id": "2", "name": fail.name, "args": {}})
        assert failed.status == "error"


@pytest.mark.promise("integrations.langchain")
async def test_saved_definitions_need_no_connection() -> None:
    server = Server("calc", app=app())
    async with holdfast.run():
        saved = await definitions([server])
    unreachable = Server("calc", url="http://127.0.0.1:1/mcp", limits=FAST)
    built = await tools([unreachable], definitions=saved)
    assert [tool.name for tool in built] == ["calc__add", "calc__fail"]
    async with holdfast.run():
        told = await built[0].ainvoke({"type": "tool_call", "id": "1", "name": "calc__add", "args": {"a": 1, "b": 2}})
        assert told.status == "error"
        assert "could not be reached" in told.content
        [raising, _] = await tools([unreachable], definitions=saved, errors="raise")
        with pytest.raises(holdfast.Unavailable):
            await raising.ainvoke({"a": 1, "b": 2})


@pytest.mark.promise("integrations.langchain")
async def test_a_model_reads_kind_server_and_remedy_and_the_log_has_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    script = "import sys; sys.stderr.write('password is hunter2'); sys.exit(3)"
    crashing = Server("db", command=sys.executable, args=["-c", script, "secret-argument"], limits=FAST)
    saved = {"db": [{"name": "query", "inputSchema": {"type": "object"}}]}
    [query] = await tools([crashing], definitions=saved)
    async with holdfast.run():
        told = await query.ainvoke({"type": "tool_call", "id": "1", "name": query.name, "args": {}})
    assert told.status == "error"
    assert told.content.startswith("ConnectFailed: 'db' could not be reached or started; nothing was executed")
    for secret in ("hunter2", "secret-argument", sys.executable):
        assert secret not in told.content
    assert "hunter2" in caplog.text


class Scripted(BaseChatModel):
    """A model that calls a tool so many times, and then says what it saw."""

    calls: int = 3

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        seen = [message for message in messages if isinstance(message, ToolMessage)]
        if len(seen) < self.calls:
            call = {"name": "it__count", "args": {}, "id": str(len(seen))}
            answer = AIMessage(content="", tool_calls=[call])
        else:
            answer = AIMessage(content=",".join(str(message.content) for message in seen))
        return ChatResult(generations=[ChatGeneration(message=answer)])


@pytest.mark.promise("integrations.langchain")
async def test_a_graph_keeps_one_session_for_its_whole_run() -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    async with FaultServer() as http:
        server = Server("it", url=http.url, limits=FAST)
        async with holdfast.run():
            bound = await tools([server])
            model = Scripted()

            async def think(state: MessagesState) -> dict[str, Any]:
                return {"messages": [await model.ainvoke(state["messages"])]}

            def more(state: MessagesState) -> str:
                return "tools" if state["messages"][-1].tool_calls else END  # type: ignore[union-attr]

            graph = StateGraph(MessagesState)
            graph.add_node("model", think)
            graph.add_node("tools", ToolNode(bound))
            graph.add_edge(START, "model")
            graph.add_conditional_edges("model", more)
            graph.add_edge("tools", "model")
            result = await graph.compile().ainvoke({"messages": [("user", "count to three")]})
        assert result["messages"][-1].content == "1,2,3"
        assert http.sessions.handshakes == 1


@pytest.mark.promise("integrations.langchain")
@pytest.mark.filterwarnings("ignore")  # LangGraph says that its prebuilt agent moves to another package
async def test_the_prebuilt_agent_keeps_one_session_for_its_whole_run() -> None:
    from langgraph.prebuilt import create_react_agent

    async with FaultServer() as http:
        server = Server("it", url=http.url, limits=FAST)
        async with holdfast.run():
            agent = create_react_agent(Scripted(calls=4), await tools([server]))
            result = await agent.ainvoke({"messages": [("user", "count to four")]})
        assert result["messages"][-1].content == "1,2,3,4"
        assert http.sessions.handshakes == 1
        assert not http.sessions.sessions


@pytest.mark.promise("integrations.langchain")
async def test_langchain_arguments_of_any_name_arrive_and_errors_raise_if_asked() -> None:
    app, seen = MCPServer("app"), list[dict[str, Any]]()

    @app.tool()
    def take(config: str = "", run_manager: str = "", name: str = "") -> str:
        seen.append({"config": config, "run_manager": run_manager, "name": name})
        return "taken"

    @app.tool()
    def boom() -> str:
        raise ValueError("boom")

    server = Server("app", app=app, limits=FASTER)
    async with holdfast.run():
        taking, booming = await tools([server], errors="raise")
        given = {"config": "c", "run_manager": "r", "name": "n"}
        assert await taking.ainvoke(given) == "taken"
        assert seen == [given]
        assert set(booming.args) == set()
        with pytest.raises(ToolException):
            await booming.ainvoke({})
