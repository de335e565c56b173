"""Every store against the memory model, by a machine that looks for a difference."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import holdfast
from holdfast.core.clock import Clock
from holdfast.testing.machine import StoreMachine


class SqliteMachine(StoreMachine):
    def open(self, clock: Clock):
        self.folder = tempfile.TemporaryDirectory()
        return holdfast.open_store(f"sqlite:///{self.folder.name}/machine.db?synchronous=normal", clock=clock)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()
        assert not Path(self.folder.name).exists()


TestSqliteMachine = pytest.mark.promise("store.model")(SqliteMachine.TestCase)
TestSqliteMachine.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
