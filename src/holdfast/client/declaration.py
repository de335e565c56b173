"""The declaration of a server by an agent's author: where it is and how it is used. Frozen and comparable.

It checks itself at creation and rejects contradictory settings. Equal declarations are one server.
"""

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeAlias, cast

from holdfast.client.callbacks import Callbacks
from holdfast.core.models import Principal, check_seconds
from holdfast.core.verdicts import VerdictRule
from holdfast.errors import ConfigError
from holdfast.links.limits import Limits
from holdfast.links.memory.store import Memory
from holdfast.links.options import EraChoice
from holdfast.links.target import (
    TLS,
    CommandTarget,
    Headers,
    HttpTarget,
    ObjectTarget,
    Resolvable,
    Target,
    shown_url,
)
from holdfast.links.wires.stdio.command import masked

Reuse: TypeAlias = Literal["run", "process", "call"]
MemoryFactory: TypeAlias = Callable[[Any, str | None, Principal], Memory | None]
"""Creates the memory of a server's session, given the server, the run's id and the principal."""

PROGRAMS = 16  # at once to one server: each link is a process of its own, perhaps a browser
IDLE = 900.0  # seconds a kept link may idle: half the time after which servers by default drop a session
_SHOWN = frozenset({"name", "url", "command", "args"})  # formatted by `__repr__` separately
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}").fullmatch


def check_memory(factory: object, what: str) -> None:
    """Raise at declaration if the factory can't be called as needed."""
    problem: object = None
    if not callable(factory):
        problem = f"it is a {type(factory).__name__}"
    elif inspect.iscoroutinefunction(factory) or inspect.iscoroutinefunction(getattr(factory, "__call__", None)):  # noqa: B004
        problem = "it is an async function, which is not awaited"
    else:
        try:
            inspect.signature(factory).bind("server", "run", "principal")
        except ValueError:
            return  # a builtin without a signature
        except TypeError as error:
            problem = error
    if problem is not None:
        raise ConfigError(
            f"{what} is not a function that makes a memory: {problem}",
            remedy="write memory=lambda server, run, principal: …, which returns e.g. an IdMemory, or None",
        )


@dataclass(frozen=True, eq=False, repr=False)
class ServerDeclaration:
    """The declaration in a `Server`, without its calls.
    The type of parameters for which only the declaration matters; pass a `Server`.
    """

    name: str
    url: str | Callable[[], Awaitable[str]] | None = None
    command: str | None = None
    args: Sequence[str] = ()
    env: Any = field(default=None, repr=False)
    cwd: str | None = None
    app: Any = field(default=None, repr=False)
    headers: Headers | Resolvable | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)
    era: EraChoice = "auto"
    reuse: Reuse = "run"
    """The lifetime of a link: the run's, the process's, or one call's."""
    tool_reuse: Mapping[str, Reuse] = field(default_factory=dict[str, Reuse])
    """The same for single tools."""
    stateful: bool = True
    memory: MemoryFactory | None = field(default=None, repr=False)
    disabled: bool = False
    proxy: str | None = field(default=None, repr=False)
    tls: TLS | None = None
    timeout: float | None = None
    """Total seconds for a call that sets none, including replays; None: no limit while it shows signs of life."""
    silence: float | None = None
    """Seconds between two signs of life of a call that sets none; None: `Limits.silence`."""
    idle: float = IDLE
    max_age: float | None = None
    """Seconds after which a kept link is replaced, once it is idle."""
    max_links: int | None = None
    """The maximum number of links at once.
    By default 16 to a program, since each is a process; no limit over HTTP and to an object.
    """
    limits: Limits = field(default_factory=Limits)
    verdict_rules: Sequence[VerdictRule] = ()
    callbacks: Callbacks | None = field(default=None, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME(self.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            if isinstance(self.name, str) and re.search(r"[/@?]", self.name):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    "the first argument of Server is its name, and this one looks like a URL",
                    remedy="write Server('name', url='https://…')",
                )
            raise ConfigError(
                f"Server: {self.name!r:.80} is not a valid name",
                remedy="use letters, digits, '_', '.' and '-', at most 64, beginning with a letter or digit",
            )
        named = [name for name in ("url", "command", "app") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ConfigError(
                f"Server {self.name!r} has {' and '.join(named) if named else 'neither url, command nor app'}",
                server=self.name,
                remedy="give exactly one of url=, command= and app=",
            )
        for reuse in (self.reuse, *self.tool_reuse.values()):
            if reuse not in ("run", "process", "call"):
                raise ConfigError(f"Server {self.name!r}: reuse must be 'run', 'process' or 'call', not {reuse!r:.40}")
        if self.era not in ("auto", "2025", "2026"):
            raise ConfigError(f"Server {self.name!r}: era must be 'auto', '2025' or '2026', not {self.era!r:.40}")
        for setting, kind, example in (
            ("callbacks", Callbacks, "Callbacks(elicit=…)"),
            ("limits", Limits, "Limits(silence=…)"),
            ("stateful", bool, "True or False"),
        ):
            if (given := getattr(self, setting)) is not None and not isinstance(given, kind):
                raise ConfigError(
                    f"Server {self.name!r}: {setting}= is a {type(given).__name__}", remedy=f"give {example}"
                )
        if self.memory is not None:
            check_memory(self.memory, f"Server {self.name!r}: memory=")
        for span in ("timeout", "silence", "idle", "max_age"):
            if (value := getattr(self, span)) is not None:
                check_seconds(value, f"Server {self.name!r}: {span}")
        if self.max_links is not None and (type(self.max_links) is not int or self.max_links < 1):
            raise ConfigError(
                f"Server {self.name!r}: max_links={self.max_links!r:.40} is not a positive number",
                remedy="give a number of links, or leave it out",
            )
        if self.proxy is not None and not isinstance(self.proxy, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Server {self.name!r}: proxy is not a URL")
        self._refuse_what_does_not_go_together(named[0])
        # Derived from the fields.
        self.__dict__["_target"] = self._make_target()
        self.__dict__["_key"] = self._make_key()

    def _refuse_what_does_not_go_together(self, kind: str) -> None:
        of_http = {"headers": self.headers, "auth": self.auth, "proxy": self.proxy, "tls": self.tls}
        of_command = {"args": self.args or None, "env": self.env, "cwd": self.cwd}
        strange = [] if kind == "url" else [name for name, value in of_http.items() if value is not None]
        strange += [] if kind == "command" else [name for name, value in of_command.items() if value is not None]
        if strange:
            raise ConfigError(
                f"Server {self.name!r} has {kind}= and {', '.join(f'{name}=' for name in strange)}",
                server=self.name,
                remedy=f"leave out what does not belong to {kind}=",
            )

    def _make_target(self) -> Target:
        if self.url is not None:
            return HttpTarget(self.url, self.headers, self.auth, self.proxy, self.tls)
        if self.command is not None:
            return CommandTarget(self.command, self.args, self.env, self.cwd)
        return ObjectTarget(self.app)

    def _make_key(self) -> tuple[object, ...]:
        def plain(value: Any) -> object:
            if isinstance(value, Mapping):
                return frozenset((name, plain(each)) for name, each in cast("Mapping[str, Any]", value).items())
            if isinstance(value, list | tuple):
                return tuple(plain(each) for each in cast("list[Any]", value))
            try:
                hash(value)
            except TypeError:
                return id(value)
            return value

        return tuple(plain(getattr(self, name)) for name in self.__dataclass_fields__)

    def __repr__(self) -> str:
        """The settings that differ from the defaults; secrets are masked."""
        shown = [repr(self.name)]
        if self.url is not None:
            shown.append(f"url={shown_url(self.url)}")
        if self.command is not None:
            shown.append(f"command={masked(self.command, self.args, {})!r}")
        if self.app is not None:
            shown.append(f"app=<{type(self.app).__name__}>")
        for each in fields(self):
            value = getattr(self, each.name)
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.repr and each.name not in _SHOWN and value != default:
                shown.append(f"{each.name}={value!r}")
        if self.bound_to is not None:
            shown.append(f"bound to {self.bound_to!r}")
        return f"Server({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerDeclaration) and self.__dict__["_key"] == other.__dict__["_key"]

    def __hash__(self) -> int:
        return hash(self.__dict__["_key"])

    @property
    def target(self) -> Target:
        """The server's target, as a link takes it."""
        return self.__dict__["_target"]

    @property
    def link_cap(self) -> int | None:
        """The maximum number of links at once; None: no limit."""
        if self.max_links is None and isinstance(self.target, CommandTarget):
            return PROGRAMS
        return self.max_links

    def with_(self, **changes: Any) -> Self:
        """A copy of the declaration with changes."""
        changed = replace(self, **changes)
        return changed if self.bound_to is None else changed.bound(self.bound_to)

    @property
    def bound_to(self) -> object | None:
        """The run that `Run.bind` bound it to."""
        return self.__dict__.get("_bound_to")

    @property
    def plain(self) -> Self:
        """The declaration itself, bound to no run."""
        return self.__dict__.get("_plain", self)

    def bound(self, run: object) -> Self:
        """`run.bind(server)`; equal to the declaration, since it is the same server."""
        bound = copy.copy(self.plain)
        bound.__dict__.update(_bound_to=run, _plain=self.plain)
        return bound


def check_enabled(server: ServerDeclaration) -> None:
    if server.disabled:
        raise ConfigError(
            f"server {server.name!r} is disabled",
            server=server.name,
            remedy="set disabled=False, or `disabled` to false in the server file",
        )
