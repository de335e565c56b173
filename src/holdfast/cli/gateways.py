"""The gateway processes that `top` and `tail` read: of a store, or of the store that a gateway's file names."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import click

from holdfast.cli.keys import read_keys
from holdfast.cli.program import Decorated
from holdfast.cli.records import all_records
from holdfast.errors import UsageError
from holdfast.gateway.admin.processes import GatewayProcess, process_of
from holdfast.gateway.backends.ownership import PROCESSES
from holdfast.gateway.config.file import load_config
from holdfast.stores import Store, open_store


def which_options() -> Callable[[Decorated], Decorated]:
    """`--store` and `--config`, of which one is given."""

    def decorate(function: Decorated) -> Decorated:
        function = click.option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The gateway's file, which names its store.",
        )(function)
        return click.option("--store", metavar="URL", help="The gateways' store, e.g. sqlite:///g.db")(function)

    return decorate


def store_url(store: str | None, config: Path | None) -> str:
    """The store that the options name."""
    if (store is None) == (config is None):
        raise UsageError("name the gateways with --store URL or --config FILE", remedy="give one of the two")
    url = store if store is not None else load_config(config or Path()).store_url
    if url.startswith("memory:"):
        raise UsageError(
            "gateways with the store memory: can't be found from another process",
            remedy="serve with a store, e.g. --store sqlite:///g.db",
        )
    return url


@asynccontextmanager
async def opened(url: str, keys_file: Path | None) -> AsyncGenerator[Store]:
    """The gateways' store, which must exist."""
    async with open_store(url, keys=read_keys(keys_file), create=False) as store:
        yield store


async def processes(store: Store) -> list[GatewayProcess]:
    """The gateway processes of a store that are there, in the order of their names."""
    found = await all_records(store, PROCESSES)
    here = [process for record in found.records if (process := process_of(record)) is not None]
    return sorted(here, key=lambda process: (process.name, process.id))
