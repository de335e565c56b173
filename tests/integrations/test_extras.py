"""An adapter without its framework says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.promise("integrations.extras")
@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("holdfast.integrations.langchain", "langchain_core", "langchain"),
        ("holdfast.integrations.fastmcp", "fastmcp", "fastmcp"),
        ("holdfast.testing.machine", "hypothesis", "testing"),
    ],
)
def test_a_missing_framework_is_named_with_the_extra_that_brings_it(module: str, package: str, extra: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None\nimport holdfast\nimport {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert f"pip install 'holdfast[{extra}]'" in done.stderr
    assert f"needs the package '{package}'" in done.stderr
    assert done.stderr.count("Traceback") == 1
