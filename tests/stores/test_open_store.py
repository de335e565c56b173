"""From a URL to a store: addresses that can't be read, and drivers that are not installed."""

import sys

import pytest

import holdfast
from tests.stores.refusals import refused, use_once

pytestmark = pytest.mark.anyio


@pytest.mark.promise("server.bad-address")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://app:123/hunter2@db/x", ("out of place", "%2F")),
        ("postgresql:/app:hunter2@db/x", ("out of place", "%40")),
        ("redis:/:hunter2@h/0", ("out of place",)),
        ("postgresql://app:hunter2/et@db/x", ("can't be read", "%2F")),
        ("redis://:hun#ter2@h/0", ("can't be read", "%23")),
        ("redis://h/0#hunter2", ("out of place", "%23")),
        ("//app:hunter2@db/x", ("not the URL",)),
        ("sqlite://app:hunter2@x/y", ("no host",)),
        ("postgresql://127.0.0.1:99999/x", ("can't be read", "port")),
        ("redis://127.0.0.1:abc", ("can't be read", "port")),
        ("redis://127.0.0.1?connections=many", ("connections=many",)),
        ("postgresql://127.0.0.1/x?timeout=-1", ("timeout=-1",)),
        ("redis://127.0.0.1?prefix=a b", ("prefix", "plain word")),
        ("redis://127.0.0.1?no_such_option=7", ("can't be read",)),
    ],
)
async def test_an_address_that_can_not_be_read(url: str, words: tuple[str, ...]) -> None:
    with refused(holdfast.errors.ConfigError, *words, never="hunter2"):
        await use_once(url)


@pytest.mark.promise("server.extra")
@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("postgresql", "asyncpg", "postgres"), ("redis", "redis", "redis")]
)
async def test_a_missing_extra_is_named_with_its_install_line(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == package or n.startswith("holdfast.stores.")]:
        if package in name or extra in name:
            monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with refused(holdfast.errors.ConfigError, f"needs the package {package}", f'pip install "holdfast[{extra}]"'):
        holdfast.open_store(f"{scheme}://127.0.0.1/x")
