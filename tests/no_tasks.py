"""A fixture for whole folders: no test leaves a task behind. Imported by their conftest."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.deadlines import until


def _tasks() -> set[asyncio.Task[object]]:
    """Every task but the two in which the test runner runs us."""
    return {task for task in asyncio.all_tasks() if "TestRunner" not in getattr(task.get_coro(), "__qualname__", "")}


@pytest.fixture(autouse=True)
async def no_tasks_left(anyio_backend: str) -> AsyncIterator[None]:
    before = _tasks()
    yield
    await until(lambda: not _tasks() - before)
