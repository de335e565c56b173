"""Encryption keys for the command line, read from a file or the environment, never from an argument."""

import os
from pathlib import Path

import click

from holdfast.errors import ConfigError

VARIABLE = "HOLDFAST_KEYS"

keys_option = click.option(
    "--keys-file",
    "--keys",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help=f"A file of keys, one per line; the first one encrypts. Default: ${VARIABLE}.",
)


def read_keys(file: Path | None) -> list[str] | None:
    """The key ring, or None if there are no keys."""
    if file is not None:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the keys file {file} can't be read: {error}", remedy="check the path") from None
    else:
        text = os.environ.get(VARIABLE, "")
    ring = text.replace(",", " ").split()
    if file is not None and not ring:
        raise ConfigError(f"the keys file {file} is empty", remedy="write one with `holdfast store key`")
    return ring or None
