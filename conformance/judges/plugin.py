"""A pytest plugin for every foreign suite: which tests used a connection of ours, and a bound for each."""
# ruff: noqa: SLF001 (what links know of a URL is forgotten between tests)

import asyncio
import functools
import inspect
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from conformance.judges import ways
from holdfast.links.lifecycle import peer

SECONDS = 50.0  # through two gateways, on a machine that does other things, too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "trio" in item.name:
            item.add_marker(pytest.mark.skip(reason="Holdfast runs on asyncio"))
        test = getattr(item, "obj", None)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(test):
            item.obj = _bounded(test)


def _bounded(test: Any) -> Any:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(SECONDS):
            await test(*args, **kwargs)

    return bounded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    ways.connections = 0
    peer._offers.clear()  # another server may have got the same port
    peer._peers.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if ways.connections:
        report.user_properties.append(("judged", True))
    if call.excinfo is not None and report.failed:
        report.user_properties.append(("why", " | ".join(_leaves(call.excinfo.value))))
    return report


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [f"{type(error).__name__}: {error}"[:2000]]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    results = dict[str, str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if "judged" in properties and (report.when == "call" or report.failed):
                results[report.nodeid] = properties.get("why", "failed") if report.failed else ""
    failed = {test: why for test, why in sorted(results.items()) if why}
    if log := os.environ.get("HOLDFAST_JUDGE_LOG"):
        Path(log).write_text(json.dumps({"way": ways.WAY, "judged": len(results), "failed": failed}, indent=1))
    terminalreporter.write_line(f"{ways.WAY}: {len(results) - len(failed)} of {len(results)} judged tests passed")
