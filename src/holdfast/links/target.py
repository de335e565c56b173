"""The target of a link: a URL, a program or an object. Targets are declarations, frozen and comparable.

They check URLs, headers and TLS settings, and show no secrets in `repr`.
"""

import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from holdfast.core.sse import LONGEST_ID
from holdfast.errors import ConfigError, UsageError
from holdfast.links.wires.stdio.command import masked

Headers: TypeAlias = Mapping[str, str]
Resolvable: TypeAlias = Callable[[], Awaitable[Headers]]
"""A callable that is called on first use, and again after a 401."""


def _check_text(arg: str, command: str) -> None:
    """Check for lone surrogates that can't be passed to a program; those that stand for bytes of a file name can."""
    try:
        os.fsencode(arg)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the argument {arg!r:.80} of {command!r:.80} has a lone surrogate at position {error.start}",
            phase="resolve",
            remedy="give text without lone surrogates",
        ) from None


@dataclass(frozen=True, slots=True)
class TLS:
    """TLS settings: the CA to trust, and a client certificate. Paths of PEM files."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = field(default=None, repr=False)
    verify: bool = True

    def context(self, server: str) -> ssl.SSLContext:
        """Create the SSL context. Raises a `ConfigError` that names the file."""
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(
                    f"tls {name} of {server!r}: the file {path} does not exist", server=server, phase="resolve"
                )
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"tls settings of {server!r} can't be loaded: {error}",
                server=server,
                phase="resolve",
                remedy="give PEM files: a CA bundle as ca=, certificate and key as cert= and key=",
            ) from error
        return context


@dataclass(frozen=True, repr=False)
class HttpTarget:
    """A server at a URL.

    `url` and `headers` may be async callables: they are resolved on first use, headers again after a 401. `auth` is one
    of the SDK's OAuth providers (an httpx2 auth flow). `proxy` is a URL; None means the environment's proxy variables,
    and "" no proxy.
    """

    url: str | Callable[[], Awaitable[str]]
    headers: Headers | Resolvable | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if isinstance(self.url, str):
            check_url(self.url)
        if isinstance(self.headers, Mapping):
            headers = cast("Headers", self.headers)
            # A copy, because the declaration must not change with the caller's mapping.
            object.__setattr__(self, "headers", dict(check_headers(headers)))

    def __repr__(self) -> str:
        tls = f", tls={self.tls!r}" if self.tls is not None else ""
        return f"HttpTarget({shown_url(self.url)}{tls})"

    @property
    def name(self) -> str:
        """The name of a link without one: the URL without secrets."""
        return public_url(self.url) if isinstance(self.url, str) else "http"


@dataclass(frozen=True)
class ObjectTarget:
    """A server object in this process: an SDK `Server` or `MCPServer`, or a FastMCP server."""

    server: Any

    @property
    def name(self) -> str:
        """The name in errors and statistics: that of the server object."""
        return str(getattr(self.server, "name", None) or type(self.server).__name__)


EnvValue: TypeAlias = str | Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class CommandTarget:
    """A program to start, without a shell.

    `env` is added to a small safe part of this process's environment; its values, or the whole mapping, may be async
    callables, resolved at every start of the program.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, EnvValue] | Resolvable | None = field(default=None, repr=False)
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.command, str) or not self.command.strip() or "\0" in self.command:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"command={self.command!r:.80} is not a program's name or path", phase="resolve")
        if isinstance(self.args, str) or not all(isinstance(arg, str) and "\0" not in arg for arg in self.args):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"args= of {self.command!r:.80} is not a list of strings",
                phase="resolve",
                remedy="give args=['--flag', 'value'], one string each; there is no shell to split them",
            )
        for arg in (self.command, *self.args):
            _check_text(arg, self.command)
        object.__setattr__(self, "args", tuple(self.args))
        if isinstance(self.env, Mapping):
            object.__setattr__(self, "env", dict(cast("Mapping[str, EnvValue]", self.env)))

    def __repr__(self) -> str:
        return f"CommandTarget({masked(self.command, self.args, {})})"

    @property
    def name(self) -> str:
        """The name in errors and statistics: that of the command."""
        return Path(self.command).name or self.command


Target: TypeAlias = HttpTarget | ObjectTarget | CommandTarget


def target_of(target: object) -> Target:
    """The given target, or one made from a URL or a server object."""
    if isinstance(target, HttpTarget | ObjectTarget | CommandTarget):
        return target
    if isinstance(target, str):
        return HttpTarget(target)
    if hasattr(target, "_mcp_server") or hasattr(target, "_lowlevel_server") or hasattr(target, "get_capabilities"):
        return ObjectTarget(target)
    raise ConfigError(
        f"{type(target).__name__} is not a target of a link",
        remedy="give a URL, an HttpTarget, a CommandTarget, or a server object (SDK Server or MCPServer, FastMCP)",
    )


def shown_url(url: object) -> str:
    """A URL for `repr`, with its query hidden."""
    if not isinstance(url, str):
        return "<resolved at first use>"
    return repr(public_url(url) + ("?•••" if "?" in url else ""))


_TOKEN = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])([A-Za-z0-9_~.-]{4})[A-Za-z0-9_~.-]{16,}")


def public_url(url: str) -> str:
    """The URL for logs: without user, password, query, fragment, and keys in its path."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        # Hosted servers use URLs with a key in the path.
        path = "/".join(_public_part(part) for part in parts.path.split("/"))
    except ValueError:
        return "a malformed URL"
    if not host or "@" in path:
        # A malformed URL: user and password may be anywhere in it.
        return f"{parts.scheme if parts.scheme in ('http', 'https') else ''}://…"
    scheme = f"{parts.scheme}:" if parts.scheme else ""
    return f"{scheme}//{f'[{host}]' if ':' in host else host}{port}{path}"


_BARE = re.compile(r"(?P<host>localhost|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::\d+)?(?:[/?#].*)?")
"""Whether it is a host without a scheme, as people often copy it."""


def _public_part(part: str) -> str:
    """A part of a path without its parameters, which may contain a key."""
    name, semicolon, _ = part.partition(";")
    shown = _TOKEN.sub(r"\1…", name) if _TOKEN.fullmatch(name) else name
    return f"{shown};…" if semicolon else shown


def check_url(url: str) -> str:
    """Return the URL unchanged, or raise a `ConfigError` that says what is wrong with it."""

    def wrong(what: str, remedy: str = "write it like https://example.com/mcp") -> ConfigError:
        return ConfigError(f"the URL {public_url(url)[:200]!r} {what}", phase="resolve", remedy=remedy)

    if bare := _BARE.fullmatch(url):
        local = bare["host"] == "localhost" or bare["host"][0] in "[0123456789"
        scheme, shown = ("http://" if local else "https://"), public_url(f"http://{url}").removeprefix("http://")
        raise ConfigError(
            f"the URL {shown[:200]!r} does not begin with http:// or https://",
            phase="resolve",
            remedy=f"write {(scheme + shown)[:200]!r}",
        )
    if any(character <= " " or character == "\x7f" for character in url):
        raise wrong("has a space or control character")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise wrong("is malformed") from None
    try:
        port = parts.port
    except ValueError:  # whose text repeats the input, perhaps with a password
        raise wrong("has a port that is not a number from 1 to 65535") from None
    if parts.scheme not in ("http", "https"):
        raise wrong("does not begin with http:// or https://")
    if not host:
        raise wrong("has no host")
    if port == 0:
        raise wrong("has port 0")
    if parts.username or parts.password:
        raise wrong("carries a user or password", "give them as headers={'authorization': …}")
    return url


_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]+").fullmatch
RESERVED = frozenset({"mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "content-length", "host"})
"""Headers that only the link itself sets."""


def check_headers(headers: Headers) -> Headers:
    """Return the headers unchanged, or raise a `ConfigError` that names the header, never its value."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"header {str(name)[:80]!r}: name and value must be str", phase="resolve")
        if name.lower() in RESERVED:
            raise ConfigError(f"header {name!r} is set by the link", phase="resolve", remedy="leave it out of headers=")
        if not name or not name.isascii() or any(c <= " " or c in '()<>@,;:\\"/[]?={}\x7f' for c in name):
            raise ConfigError(f"header {name[:80]!r} is not a header name", phase="resolve")
        if any(c in "\r\n\0" for c in value):
            raise ConfigError(f"header {name!r} has a line break in its value", phase="resolve")
    return headers


def check_resume_token(token: object, server: str) -> None:
    """Raise if the token can't be sent in a header."""
    if not isinstance(token, str) or not 0 < len(token) <= LONGEST_ID or not _HEADER_VALUE(token):
        raise UsageError(
            f"the resume token for {server!r} is not 1 to {LONGEST_ID} characters that a header can carry",
            server=server,
            phase="call",
            remedy="give a token that on_resume_token= was called with",
        )


def check_env(env: object, command: str) -> dict[str, str]:
    """Return the environment variables unchanged, or raise a `ConfigError` that names one, never its value."""
    if not isinstance(env, Mapping):
        raise ConfigError(f"env of {command!r} is {type(env).__name__}, not a mapping", phase="resolve")
    checked: dict[str, str] = {}
    for name, value in cast("Mapping[Any, Any]", env).items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ConfigError(f"env of {command!r}: {name!r:.80} is not a variable's name", phase="resolve")
        if not isinstance(value, str) or "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise ConfigError(
                f"env of {command!r}: the value of {name} is not text", phase="resolve", remedy="give a str"
            )
        checked[name] = value
    return checked
