"""The gateway's file: `mcpServers` JSON as it is, or YAML with the same keys and policy. Every mistake with its line.

It owns reading, lines, and the words of mistakes. It refuses to stop at the first one.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError

from holdfast.client.files import KEYS, Servers, parse_json, server_from
from holdfast.client.server import Server
from holdfast.core.values import members
from holdfast.errors import ConfigError, HoldfastError
from holdfast.gateway.auth import check_bind
from holdfast.gateway.backends.routing import too_many_names
from holdfast.gateway.backends.secret_files import PREFIX, FileHeaders
from holdfast.gateway.config.settings import POLICY_KEYS, SETTINGS_KEYS, Policy, Reuse, Settings
from holdfast.links.target import CommandTarget, HttpTarget, check_headers
from holdfast.links.wires.http.route import proxy_for
from holdfast.links.wires.stdio.command import Missing, environment, located
from holdfast.stores import open_store

SHOWN = 20  # mistakes in one error: a screen
_FILE_WITHIN = re.compile(r"\s" + PREFIX + "/").search
_OUR_KEYS = (KEYS - {"reuse", "stateful"}) | POLICY_KEYS


@dataclass(frozen=True)
class ServerEntry:
    """One server with its policy."""

    server: Server
    policy: Policy


@dataclass(frozen=True)
class Config:
    """A file that was read: settings and servers, in the file's order."""

    settings: Settings
    entries: Mapping[str, ServerEntry]
    path: Path | None = None

    @property
    def store_url(self) -> str:
        """As set, else a file of this configuration's own in the user's state folder."""
        if self.settings.store is not None:
            return self.settings.store
        if self.path is None:
            return "memory:"
        base = os.environ.get("XDG_STATE_HOME") or _home_state()
        digest = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:12]
        return f"sqlite:///{base}/holdfast/{self.path.stem}-{digest}.db"


def _home_state() -> str:
    try:
        return str(Path.home() / ".local" / "state")
    except RuntimeError:
        raise ConfigError(
            "there is no home folder to keep sessions in", remedy="name a store with `store` or --store"
        ) from None


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, where, and what helps."""

    line: int | None
    where: str
    what: str
    remedy: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        thing = f"{self.where}: " if self.where else ""
        return f"{place}{thing}{self.what}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass
class _Reading:
    path: Path
    place: str = "mcpServers"
    lines: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    mistakes: list[Mistake] = field(default_factory=list[Mistake])

    def add(self, at: tuple[str, ...], what: str, remedy: str | None = None) -> None:
        line = next((self.lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self.lines), None)
        self.mistakes.append(Mistake(line, ".".join(at), what, remedy))


_NOT_READ = {
    "auth": "give headers: {authorization: 'Bearer ${TOKEN}'}",
    "limits": "use timeout and silence",
    "tls": "name a private authority in the variable SSL_CERT_FILE",
    "idle": "sessions.idle says it for all servers",
    "max_age": "sessions.max_age says it for all servers",
    "max_links": "sessions.children bounds programs",
    "tool_reuse": "use reuse",
    "callbacks": "clients answer a server's questions",
    "memory": "sessions are kept in `store`",
}
"""Keys of a server that mean something in code, and nothing in this file."""
_NOT_READ_ABOVE = {
    "tls": "the gateway serves plain HTTP; let a proxy in front of it do TLS",
    "limits": "limits stand under `sessions` and `clients`, and a server's under its own name",
}


def load_config(path: str | Path, *, env: Mapping[str, str] | None = None) -> Config:
    """The configuration, or `ConfigError` with every mistake in it."""
    config, mistakes = read_config(path, env=env)
    if config is None:
        more = f"\n  and {len(mistakes) - SHOWN} more" if len(mistakes) > SHOWN else ""
        listed = "\n".join(f"  {mistake}" for mistake in mistakes[:SHOWN])
        raise ConfigError(f"{path} can't be used:\n{listed}{more}", remedy=f"`holdfast check {path}` explains")
    return config


def read_config(
    path: str | Path, *, env: Mapping[str, str] | None = None, here: bool = False, insecure: bool = False
) -> tuple[Config | None, list[Mistake]]:
    """The configuration, or None, and all that is wrong with it. `here`: also what this machine lacks to serve it."""
    reading = _Reading(Path(path))
    document = _parse(reading)
    if document is None:
        return None, reading.mistakes
    values = os.environ if env is None else env
    settings = _settings(reading, document)
    entries = _entries(reading, document, values)
    if settings is not None:
        _check_together(reading, settings, entries)
        if here:
            _check_here(reading, settings, entries, insecure)
    if reading.mistakes or settings is None:
        return None, reading.mistakes
    return Config(settings, entries, reading.path), []


def servers_of(path: str | Path) -> Servers:
    """The servers of a gateway's file for whoever looks at each: those that are wrong are in `wrong`."""
    reading = _Reading(Path(path))
    document = _parse(reading)
    if document is None:
        raise ConfigError(f"{path} can't be used: {reading.mistakes[0]}", remedy=f"`holdfast check {path}` explains")
    entries = _entries(reading, document, os.environ)
    servers = Servers()
    servers.update({name: entry.server for name, entry in entries.items()})
    for name in members(document.get(reading.place)):
        at = f"{reading.place}.{name}"
        found = [each for each in reading.mistakes if each.where == at or each.where.startswith(f"{at}.")]
        if found:
            servers.pop(str(name), None)
            what = "; ".join(str(each) for each in found)
            servers.wrong[str(name)] = ConfigError(f"{path}: {what}", server=str(name))
    if not servers and not servers.wrong and reading.mistakes:
        raise ConfigError(f"{path} can't be used: {reading.mistakes[0]}", remedy=f"`holdfast check {path}` explains")
    return servers


def is_ours(path: str | Path) -> bool:
    """Does a file say what only the gateway reads: YAML, settings, or policy of a server?"""
    if Path(path).suffix.lower() in (".yaml", ".yml"):
        return True
    document = _parse(_Reading(Path(path))) or {}
    if SETTINGS_KEYS & document.keys():
        return True
    listed = members(document.get("mcpServers", document.get("servers")))
    ours = get_args(Reuse)
    return any(
        (POLICY_KEYS - KEYS) & entry.keys() or entry.get("reuse") in ours for entry in map(members, listed.values())
    )


def _parse(reading: _Reading) -> dict[str, Any] | None:
    try:
        text = reading.path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reading.add((), f"the file can't be read: {(error.strerror or str(error)).lower()}")
        return None
    except UnicodeDecodeError:
        reading.add((), "the file is not UTF-8 text")
        return None
    document: object
    try:
        if reading.path.suffix.lower() in (".yaml", ".yml"):
            document = yaml.safe_load(text)
            node = _compose(text)
        else:
            document, blanked = parse_json(text, reading.path)
            node = _compose(blanked.replace("\t", " "))
    except ConfigError as error:
        reading.mistakes.append(Mistake(None, "", error.what, error.remedy))
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        what = f"this is not YAML: {error.problem or error}"
        reading.mistakes.append(Mistake(mark.line + 1 if mark else None, "", what, "mend it there"))
        return None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reading.add((), f"this can't be read: {str(error)[:200]}")
        return None
    _note_lines(reading, node, ())
    if not isinstance(document, dict):
        reading.add((), "the file is not a mapping", 'write {"mcpServers": {…}}, or the same as YAML')
        return None
    return cast("dict[str, Any]", document)


def _compose(text: str) -> Any:
    return cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)


def _note_lines(reading: _Reading, node: Any, at: tuple[str, ...]) -> None:
    if len(at) > 12 or not isinstance(node, yaml.MappingNode):
        if isinstance(node, yaml.SequenceNode) and len(at) <= 12:
            for number, item in enumerate(node.value):
                reading.lines[*at, str(number)] = item.start_mark.line + 1
                _note_lines(reading, item, (*at, str(number)))
        return
    for key, value in node.value:
        path = (*at, str(key.value))
        first = reading.lines.get(path)
        reading.lines[path] = key.start_mark.line + 1
        if first is not None:
            reading.add(path, f"the key stands here twice, first in line {first}", "keep one")
        _note_lines(reading, value, path)


def _guess(reading: _Reading, at: tuple[str, ...], key: str, known: frozenset[str]) -> None:
    near = difflib.get_close_matches(key, sorted(known), 1, 0.6)
    what = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    reading.add((*at, key), "there is no such setting", what)


def _settings(reading: _Reading, document: dict[str, Any]) -> Settings | None:
    given = {key: value for key, value in document.items() if key in SETTINGS_KEYS}
    if "mcpServers" not in document and "servers" not in document:
        near = difflib.get_close_matches("mcpServers", [str(key) for key in document], 1, 0.5)
        remedy = f"rename {near[0]!r}" if near else "write mcpServers: {name: {command: …}}"
        reading.add((near[0],) if near else (), "there is no 'mcpServers'", remedy)
    if "mcpServers" in document and "servers" in document:
        reading.add(("servers",), "is not read beside 'mcpServers'", "keep one of them")
    known = SETTINGS_KEYS | {"mcpServers", "servers", "inputs", "$schema"}
    for key in document:
        if key in _NOT_READ_ABOVE:
            reading.add((str(key),), "is not read here", _NOT_READ_ABOVE[key])
        elif key not in known and difflib.get_close_matches(str(key), sorted(known), 1, 0.6):
            _guess(reading, (), str(key), known)
    return _model(reading, (), Settings, given)


def _model(reading: _Reading, at: tuple[str, ...], model: type[Any], given: dict[str, Any]) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        for each in error.errors():
            place = [str(part) for part in each["loc"] if not str(part).startswith(("Auth", "literal", "function-"))]
            path = (*at, *place)
            if each["type"] == "extra_forbidden":
                _guess(reading, path[:-1], path[-1], _fields_at(model, place[:-1]))
            elif "auth" in place and each["type"] == "literal_error":
                if not isinstance(given.get("auth"), dict):
                    reading.add(path, "is neither 'none' nor a mapping with tokens")
            elif not ("auth" in place and each["type"] == "model_type"):
                _explain(reading, path, each, _fields_at(model, place))
        return None


_WRITE = {
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes or a unit; times are seconds",
    "bool_type": "write true or false",
    "string_type": "write it in quotes",
    "datetime_from_date_parsing": "write it like 2027-01-31T12:00:00Z",
    "datetime_parsing": "write it like 2027-01-31T12:00:00Z",
    "datetime_type": "write it like 2027-01-31T12:00:00Z",
    "string_pattern_mismatch": "write it like /mcp",
}
"""What helps where the kind of a value is wrong."""


def _explain(reading: _Reading, at: tuple[str, ...], wrong: Mapping[str, Any], fields: frozenset[str]) -> None:
    kind, words = str(wrong["type"]), str(wrong["msg"])
    if kind == "tuple_type":
        reading.add(at, "is not a list", "write [one] or [one, another]")
    elif kind in ("model_type", "dict_type"):
        reading.add(at, "is not a mapping", f"it has {', '.join(sorted(fields))}" if kind == "model_type" else None)
    elif kind == "missing":
        reading.add(at, "is missing")
    elif kind == "string_pattern_mismatch":
        reading.add(at, "is not a path", _WRITE[kind])
    else:
        words = words.removeprefix("Value error, ")
        reading.add(at, words[:1].lower() + words[1:], _WRITE.get(kind))


def _fields_at(model: type[BaseModel], place: list[str]) -> frozenset[str]:
    for part in place:
        found = model.model_fields.get(part)
        if found is None:
            continue
        kinds = [found.annotation, *getattr(found.annotation, "__args__", ())]
        for kind in kinds:
            inner = [kind, *getattr(kind, "__args__", ())]
            for each in inner:
                if isinstance(each, type) and issubclass(each, BaseModel):
                    model = each
    return frozenset(model.model_fields)


def _entries(reading: _Reading, document: dict[str, Any], env: Mapping[str, str]) -> dict[str, ServerEntry]:
    place = reading.place = "mcpServers" if "mcpServers" in document else "servers"
    listed = document.get(place)
    entries: dict[str, ServerEntry] = {}
    if not isinstance(listed, dict):
        if place in document:
            reading.add((place,), "is not a mapping of names to servers")
        return entries
    for name, entry in cast("dict[Any, Any]", listed).items():
        at = (place, str(name))
        if not isinstance(entry, dict):
            reading.add(at, "is not a mapping")
            continue
        known = {str(key): value for key, value in cast("dict[Any, Any]", entry).items()}
        plain = {key: value for key, value in known.items() if key not in POLICY_KEYS}
        given = {key: value for key, value in known.items() if key in POLICY_KEYS}
        for key in [key for key in plain if key in _NOT_READ]:
            reading.add((*at, key), "is not read from this file", _NOT_READ[key])
            plain.pop(key)
        strange = [
            key for key in plain if key not in KEYS and difflib.get_close_matches(key, sorted(_OUR_KEYS), 1, 0.7)
        ]
        for key in strange:
            _guess(reading, at, key, _OUR_KEYS)
            plain.pop(key)
        policy = _model(reading, at, Policy, given)
        try:
            server = _with_files(server_from(str(name), plain, "", env))
        except ConfigError as error:
            reading.add(at, error.what.removeprefix(": "), error.remedy)
            continue
        if policy is not None and not server.disabled:
            entries[str(name)] = ServerEntry(server.with_(stateful=policy.stateful), policy)
    return entries


def _with_files(server: Server) -> Server:
    """Header values like `file:/run/secrets/token` are what stands in that file, whenever it is asked for."""
    headers = server.headers
    if headers is None or callable(headers):
        return server
    for name, value in headers.items():
        if _FILE_WITHIN(value):
            raise ConfigError(
                f"headers.{name}: a file is all of a value, never a part of it",
                remedy="write file:… alone, and what stands before it into the file",
            )
    if not any(value.startswith(PREFIX) for value in headers.values()):
        return server
    files = FileHeaders(tuple(headers.items()))
    check_headers(files.read())
    return server.with_(headers=files)


def _check_together(reading: _Reading, settings: Settings, entries: dict[str, ServerEntry]) -> None:
    for key in settings.naming.rename:
        server = key.partition(".")[0]
        if server not in entries:
            near = difflib.get_close_matches(server, sorted(entries), 1, 0.6)
            reading.add(
                ("naming", "rename", key),
                f"there is no server {server!r}",
                f"did you mean {near[0]!r}?" if near else None,
            )
    for name, entry in entries.items():
        if entry.policy.pass_headers and not isinstance(entry.server.target, HttpTarget):
            reading.add((reading.place, name, "pass_headers"), "a program takes no headers", "use env instead")
        if entry.policy.warm and (entry.policy.reuse != "session" or entry.server.command is None):
            reading.add((reading.place, name, "warm"), "spares are for programs with reuse: session", "leave it out")
    if settings.store is not None:
        try:
            open_store(settings.store)  # made, not opened: a wrong URL is told here
        except HoldfastError as error:
            reading.add(("store",), error.what, error.remedy)
    for name, entry in entries.items():
        if not settings.sessions.children and isinstance(entry.server.target, CommandTarget):
            reading.add((reading.place, name), "sessions.children is 0, so no program may run", "raise it")
        if entry.server.proxy:
            try:
                proxy_for("", entry.server.proxy)
            except HoldfastError as error:
                reading.add((reading.place, name, "proxy"), error.what, "write it like http://proxy.example:3128")
    if settings.sessions.handles and "holdfast" in entries:
        reading.add((reading.place, "holdfast"), "the handle tools have this name", "rename the server")
    if settings.naming.mode == "prefix" and (clash := too_many_names(entries)):
        reading.add((reading.place, clash[0]), f"its tools would be named like those of {clash[1]!r}", "rename one")


def _check_here(reading: _Reading, settings: Settings, entries: dict[str, ServerEntry], insecure: bool) -> None:
    """What `serve` would refuse, and programs that can't be started, on this machine as it is now."""
    try:
        check_bind(settings, insecure)
    except ConfigError as error:
        reading.add(("listen", "host"), error.what, error.remedy)
    for name, entry in entries.items():
        target = entry.server.target
        if isinstance(target, CommandTarget):
            env = environment(cast("dict[str, str]", target.env or {}))
            try:
                located(target.command, env, target.cwd)
            except Missing as missing:
                key = "cwd" if target.cwd is not None and not Path(target.cwd).is_dir() else "command"
                reading.add((reading.place, name, key), missing.why, missing.remedy)
