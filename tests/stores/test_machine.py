"""Every store against the memory model, by a machine that looks for a difference."""

import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import holdfast
from holdfast.core.clock import Clock
from holdfast.stores.sealing import new_key
from holdfast.testing.machine import StoreMachine

SETTINGS = settings(
    max_examples=settings().max_examples * 3 // 10,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _machine(url: str, **given: Any) -> type[StoreMachine]:
    class LinkLifecycle(StoreMachine):
        def open(self, clock: Clock):
            return holdfast.open_store(url, clock=clock, **given)

    return LinkLifecycle


@pytest.mark.promise("store.model")
@pytest.mark.parametrize("server", ["postgres", "valkey"])
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_a_store_on_a_server_answers_like_the_memory_store(
    server: str, sealed: bool, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server).sealed_url if sealed else request.getfixturevalue(server).url
    run_state_machine_as_test(_machine(url, keys=[new_key()] if sealed else None), settings=SETTINGS)


@pytest.mark.promise("store.model")
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_the_embedded_store_answers_like_the_memory_store(sealed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/machine.db?synchronous=normal"
        run_state_machine_as_test(_machine(url, keys=[new_key()] if sealed else None), settings=SETTINGS)
