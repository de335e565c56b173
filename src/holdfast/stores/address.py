"""The URL of a store, taken apart: its settings, and a form without secrets for messages.

Unknown settings are refused unless the query goes on to a driver. A password is never shown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import ConfigError

# What such a URL holds is never shown: the part that is out of place may be half of a password.
_ESCAPE = "write %2F, %23, %3F and %40 for / # ? and @ in a password"


@dataclass
class Address:
    """A parsed URL. `take` removes our settings from its query; what is left goes to the driver."""

    parts: SplitResult
    query: list[tuple[str, str]]

    @classmethod
    def parse(cls, url: str) -> Self:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            raise ConfigError("the URL of the store can't be read", remedy=f"check host and port; {_ESCAPE}") from None
        if parts.scheme not in ("memory", "sqlite", "unix") and (
            "@" in parts.path or "@" in parts.fragment or parts.fragment or "@" in parts.query
        ):
            raise ConfigError(f"the URL of the store ({parts.scheme}:) has a part that is out of place", remedy=_ESCAPE)
        return cls(parts, parse_qsl(parts.query, keep_blank_values=True))

    @property
    def scheme(self) -> str:
        return self.parts.scheme

    def take(self, *names: str, pass_on: bool = False) -> dict[str, str]:
        """Our settings by name. With `pass_on` the rest is the driver's; without, there must be no rest."""
        ours = {name: value for name, value in self.query if name in names}
        self.query = [(name, value) for name, value in self.query if name not in names]
        if self.query and not pass_on:
            known = " and ".join(names) or "none"
            raise ConfigError(f"{self.shown()}: no setting {self.query[0][0]!r}", remedy=f"known are {known}")
        return ours

    def seconds(self, settings: dict[str, str], name: str, default: float) -> float:
        value = settings.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number <= 60:
            raise ConfigError(
                f"{self.shown()}: {name}={value} is not a number of seconds from 0 to 60",
                remedy=f"write e.g. {name}={default:g}",
            )
        return number

    def number(self, settings: dict[str, str], name: str, default: int) -> int:
        value = settings.get(name)
        if value is None:
            return default
        if not value.isdecimal() or not 1 <= int(value) <= 1000:
            raise ConfigError(f"{self.shown()}: {name}={value} is not a number from 1 to 1000")
        return int(value)

    def choice(self, settings: dict[str, str], name: str, *known: str) -> str:
        value = settings.get(name, known[0]).lower()
        if value not in known:
            raise ConfigError(f"{self.shown()}: {name}={value} is unknown", remedy=f"write {' or '.join(known)}")
        return value

    def file(self) -> Path:
        """The file of a `sqlite:` URL, relative or absolute, without a host."""
        host, path = self.parts.netloc, self.parts.path
        shown = self.shown()
        if host:
            raise ConfigError(
                f"{shown}: sqlite: takes no host, and something stands where one would",
                remedy="write sqlite:///file.db for a relative path",
            )
        if not path.startswith("/"):
            raise ConfigError(f"{shown} has no slashes", remedy=f"write sqlite:///{path or 'file.db'}")
        if self.parts.fragment:
            raise ConfigError(f"{shown} has a # in it", remedy="write %23 for a # in the name of a file")
        file = Path(unquote(path[1:]))
        if file.name in ("", ":memory:"):
            raise ConfigError(
                f"{shown} names no file", remedy="write sqlite:///file.db, or memory: for a store in memory"
            )
        if file.parts[0].startswith("~"):
            raise ConfigError(f"{shown} begins with ~, which only a shell understands", remedy="write the whole path")
        return file

    def dsn(self) -> str:
        """For the driver: everything but our settings."""
        return urlunsplit(self.parts._replace(query=urlencode(self.query, quote_via=quote)))

    def shown(self) -> str:
        """For people: no password, no settings."""
        parts = self.parts
        host = parts.netloc.rpartition("@")[2]
        user = f"{parts.username}@" if parts.username else ""
        slashes = "//" if parts.netloc or parts.path.startswith("/") else ""
        return f"{parts.scheme}:{slashes}{user}{host}{parts.path}"
