"""Headers whose values are in files, as secrets are mounted: read when a link comes up, and again after a 401.

It owns the reading; a rotated secret is used without a signal, a reload or the loss of a session. The values are
neither kept nor shown. Two with the same files are equal: a reload changes nothing for the server.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import ConfigError

PREFIX = "file:"


@dataclass(frozen=True)
class FileHeaders:
    """The headers of a server, read from their files whenever a link asks for them."""

    given: tuple[tuple[str, str], ...] = field(repr=False)

    async def __call__(self) -> Mapping[str, str]:
        return await asyncio.to_thread(self.read)

    def read(self) -> dict[str, str]:
        """The headers as they are now, or `ConfigError` that names the header."""
        headers: dict[str, str] = {}
        for name, value in self.given:
            if value.startswith(PREFIX):
                try:
                    value = Path(value.removeprefix(PREFIX)).read_text(encoding="utf-8").strip()
                except (OSError, ValueError) as error:
                    raise ConfigError(
                        f"headers.{name}: the file can't be read: {error}", remedy="check its path and mode"
                    ) from None
            headers[name] = value
        return headers
