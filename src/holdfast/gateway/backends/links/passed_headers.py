"""Headers of a caller's request that go on to a server, with every request of a link, the handshake included.

It owns how they join the server's own headers. They are kept no longer than the link.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from holdfast.links.target import HttpTarget


class HasHeaders(Protocol):
    """The headers of a request, read by name."""

    def get(self, name: str) -> str | None: ...


def passed(headers: HasHeaders | None, names: Sequence[str]) -> dict[str, str]:
    """Those of a request's headers that go on."""
    if headers is None:
        return {}
    values = {name: headers.get(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def with_passed(target: HttpTarget, latest: Callable[[], Mapping[str, str]]) -> HttpTarget:
    """The server with its own headers and the caller's: found out when the link comes up, and again after a 401."""

    async def headers() -> Mapping[str, str]:
        own = target.headers
        return {**(await own() if callable(own) else own or {}), **latest()}

    return replace(target, headers=headers)
