"""Every example runs and says what it should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.promise("run.examples")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sub_agents.py", "apples, bread, cheese\nsessions opened: 1"),
        ("durable_conversation.py", "1 2 3\nsessions left at the server: 0"),
        ("langgraph_agent.py", "I counted 1, 2, 3."),
    ],
)
def test_an_example_runs(name: str, says: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
