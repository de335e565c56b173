"""The table: names, clashes, allow and deny lists, pages, resources and templates. Pure, but for one test."""

import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.gateway.backends.lists.catalogue import Catalogue
from holdfast.gateway.config.settings import Naming, Policy
from holdfast.gateway.names.routing import BadCursor, Offer, Pattern, build, page, too_many_names
from holdfast.testing import FaultServer
from tests.deadlines import until
from tests.gateway.clients import RawClient
from tests.gateway.gateways import gateway
from tests.gateway.raw_backend import raw_program


def offer(name: str, tools: list[str], policy: Policy | None = None, **more: Any) -> Offer:
    items = tuple({"name": tool, "description": tool, "inputSchema": {"type": "object"}} for tool in tools)
    return Offer(name, policy or Policy(), Catalogue(tools=items, **more))


@pytest.mark.promise("gateway.routing")
def test_names_are_prefixed_whoever_else_is_there() -> None:
    alone = build(Naming(), [offer("a", ["x", "y"])])
    both = build(Naming(), [offer("a", ["x", "y"]), offer("b", ["x"])])
    assert list(alone.tools) == ["a__x", "a__y"]
    assert list(both.tools) == ["a__x", "a__y", "b__x"]
    assert both.tools["b__x"].name == "x"
    assert both.changed_from(alone) == ("tools",)
    assert alone.changed_from(both) == ("tools",)  # removals, too
    assert not both.clashes


@pytest.mark.promise("gateway.routing")
def test_other_ways_to_name() -> None:
    offers = [offer("a", ["x"]), offer("b", ["x", "z"])]
    first = build(Naming(mode="priority"), offers)
    assert {name: route.backend for name, route in first.tools.items()} == {"x": "a", "z": "b"}
    assert [(clash.winner, clash.loser) for clash in first.clashes] == [("a", "b")]
    renamed = build(Naming(mode="none", rename={"b.x": "bx"}), offers)
    assert not renamed.clashes
    assert renamed.tools["bx"].name == "x"
    long = build(Naming(), [offer("server" * 8, ["tool" * 20])])
    assert all(len(name) <= 48 for name in long.tools)
    assert too_many_names(["a", "a__b"]) == ("a__b", "a")
    assert too_many_names(["a", "b"]) is None


@pytest.mark.promise("gateway.routing")
def test_allow_deny_and_descriptions() -> None:
    policy = Policy(allow=("read_*", "write"), deny=("*_secret",), descriptions={"write": "Write it."})
    table = build(Naming(mode="none"), [offer("a", ["read_a", "read_secret", "write", "drop"], policy)])
    assert list(table.tools) == ["read_a", "write"]
    assert table.tools["write"].item["description"] == "Write it."
    assert table.tools["read_a"].item["description"] == "read_a"


@pytest.mark.promise("gateway.routing")
def test_resources_are_found_by_uri_and_by_template() -> None:
    one = Catalogue(resources=({"uri": "file:///a"},), templates=({"uriTemplate": "db://{table}/{row}"},))
    two = Catalogue(resources=({"uri": "file:///a"},), templates=({"uriTemplate": "web:{+path}"},))
    table = build(Naming(), [Offer("one", Policy(), one), Offer("two", Policy(), two)])
    assert table.backend_of_uri("file:///a") == "one"
    assert table.backend_of_uri("db://t/7") == "one"
    assert table.backend_of_uri("db://t/7/x") is None
    assert table.backend_of_uri("web:a/b/c") == "two"
    assert table.backend_of_uri("nothing") is None
    assert len(table.clashes) == 1


@pytest.mark.promise("gateway.routing")
def test_pages_follow_each_other_and_survive_a_change() -> None:
    table = build(Naming(), [offer("a", [f"t{n}" for n in range(7)]), offer("b", ["u", "v"])])
    seen, cursor = [], None
    while True:
        items, cursor = page(table.tools, cursor, size=4)
        seen += [item["name"] for item in items]
        if cursor is None:
            break
    assert seen == list(table.tools)
    _, cursor = page(table.tools, None, size=4)
    smaller = build(Naming(), [offer("a", [f"t{n}" for n in range(1, 7)]), offer("b", ["u", "v"])])
    items, _ = page(smaller.tools, cursor, size=4)
    assert [item["name"] for item in items] == ["a__t4", "a__t5", "a__t6", "b__u"]
    for wrong in ("bm9uZQ==", "%%", 7, ""):
        with pytest.raises(BadCursor):
            page(table.tools, wrong)


@pytest.mark.promise("gateway.routing")
async def test_a_clash_is_refused_at_start_where_nobody_said_who_wins(tmp_path: Path) -> None:
    async with FaultServer() as one, FaultServer() as other:
        servers = {"one": {"url": one.url}, "other": {"url": other.url}}
        with pytest.raises(holdfast.errors.ConfigError, match="is offered by 'one' and by 'other'"):
            async with gateway(tmp_path, servers, naming={"mode": "none"}, sessions={"start": 20}):
                pass
        # In whatever order they came up: where lists are known of `other` alone, it holds the names at first.
        store = f"sqlite:///{tmp_path}/s.db"
        async with gateway(tmp_path, {"other": servers["other"]}, store=store) as program:
            gate = program.gateway
            assert gate is not None
            await until(lambda: gate.checks.done and gate.backends["other"].catalogue is not None)
        with pytest.raises(holdfast.errors.ConfigError, match="is offered by 'one' and by 'other'"):
            async with gateway(tmp_path, servers, naming={"mode": "none"}, store=store, sessions={"start": 20}):
                pass
        async with gateway(tmp_path, servers, naming={"mode": "priority"}) as program, RawClient(program.url) as client:
            await client.initialize()
            assert "count" in await client.tools()
            assert (await client.call("count")).text == "1"


@pytest.mark.promise("gateway.routing")
def test_a_catalogue_comes_back_from_its_json_and_odd_data_does_not_hurt() -> None:
    whole = Catalogue(tools=({"name": "a"},), resources=({"uri": "x:y"},), instructions="hi", era="2025")
    assert Catalogue.from_json(whole.to_json()) == whole
    odd = '{"tools":[{"name":7},3,{"name":"a"},{"name":"a"}]}'
    assert Catalogue.from_json({"text": odd}) == Catalogue(tools=({"name": "a"},))
    for wrong in ({"text": "{"}, {"text": "[]"}, {"text": 7}, {"tools": [{"name": "a"}]}):
        assert Catalogue.from_json(wrong) is None
    assert Catalogue.from_json("nonsense") is None


@pytest.mark.promise("gateway.routing")
async def test_a_resource_that_two_servers_have_is_no_clash_of_names(tmp_path: Path) -> None:
    said = {
        "capabilities": '{"tools":{},"resources":{}}',
        "resources/list": '{"resources":[{"uri":"note://one","name":"one"}]}',
        "resources/templates/list": '{"resourceTemplates":[]}',
    }
    servers = {name: {**raw_program(said), "deny": ["*"]} for name in ("one", "other")}
    naming, sessions = {"mode": "none"}, {"start": 20}
    async with gateway(tmp_path, servers, naming=naming, sessions=sessions) as program:
        assert program.gateway is not None
        assert [clash.winner for clash in program.gateway.table.clashes] == ["one"]


@pytest.mark.promise("gateway.hostile")
def test_no_uri_takes_long_to_route() -> None:
    began = time.process_time()
    for template, uri in (
        ("db://{schema}.{table}.{column}", "db://" + "." * 8000 + "/"),
        ("git://{+path}@{rev}", "git://" + "@" * 8000 + "/"),
        ("x:{a}{b}{c}{d}y", "x:" + "y" * 8000 + "z"),
    ):
        Pattern.of(template).fits(uri)
    assert time.process_time() - began < 0.5
    assert Pattern.of("a{x}").fits("ab")
    assert not Pattern.of("a{x}b").fits("a/b")
    assert Pattern.of("a{+x}b").fits("a/b")
    assert not Pattern.of("aba{x}aba").fits("aba")
    assert Pattern.of("plain").fits("plain")


@pytest.mark.promise("gateway.routing")
def test_in_mode_none_a_name_keeps_its_holder() -> None:
    late, early = offer("late", ["x"]), offer("early", ["x"])
    before = build(Naming(mode="none"), [early])
    after = build(Naming(mode="none"), [late, early], before)
    assert after.tools["x"].backend == "early"
    assert [(clash.winner, clash.loser) for clash in after.clashes] == [("early", "late")]
    assert build(Naming(mode="priority"), [late, early], before).tools["x"].backend == "late"
