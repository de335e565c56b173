"""The gateway's file: `mcpServers` JSON as it is, or YAML with the same keys and policy.

Every mistake is reported with its line, not only the first one.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError

from holdfast.client.files import KEYS, Servers, server_from
from holdfast.client.server import Server
from holdfast.core.values import members
from holdfast.errors import ConfigError, HoldfastError
from holdfast.gateway.auth import check_bind, check_tokens
from holdfast.gateway.backends.links.secret_files import PREFIX, FileHeaders
from holdfast.gateway.config.reading import Mistake, Reading
from holdfast.gateway.config.settings import POLICY_KEYS, SETTINGS_KEYS, Policy, Reuse, Settings
from holdfast.gateway.names.routing import too_many_names
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
    """What a file says: settings and servers, in the file's order."""

    settings: Settings
    entries: Mapping[str, ServerEntry]
    path: Path | None = None

    @property
    def store_url(self) -> str:
        """The store as set, else a file for this configuration in the user's state folder."""
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


_NOT_READ = {
    "auth": "give headers: {authorization: 'Bearer ${TOKEN}'}",
    "limits": "use timeout and silence",
    "tls": "name a private authority in the variable SSL_CERT_FILE",
    "idle": "set sessions.idle, which is for all servers",
    "max_age": "set sessions.max_age, which is for all servers",
    "max_links": "set sessions.children, which limits programs",
    "tool_reuse": "use reuse",
    "callbacks": "leave it out: clients answer a server's questions",
    "memory": "set `store`, where sessions are kept",
}
"""Keys of a server that exist in code, and are not read from this file; and what to write instead."""
_NOT_READ_ABOVE = {
    "tls": "the gateway serves plain HTTP; let a proxy in front of it do TLS",
    "limits": "set limits under `sessions` and `clients`, and a server's own under its name",
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
    """The configuration, or None, and every mistake in it. `here`: check this machine, too, as `serve` would."""
    reading = Reading(path)
    document = reading.parse()
    if document is None:
        return None, reading.mistakes
    values = os.environ if env is None else env
    place = _place(document)
    settings = _settings(reading, document)
    entries = _entries(reading, document, values)
    if settings is not None:
        _check_together(reading, place, settings, entries)
        if here:
            _check_here(reading, place, settings, entries, insecure)
    if reading.mistakes or settings is None:
        return None, reading.mistakes
    return Config(settings, entries, reading.path), []


def servers_of(path: str | Path) -> Servers:
    """The servers of a gateway's file. Those whose entry has a mistake are in `wrong`."""
    reading = Reading(path)
    document = reading.parse()
    if document is None:
        raise ConfigError(f"{path} can't be used: {reading.mistakes[0]}", remedy=f"`holdfast check {path}` explains")
    entries = _entries(reading, document, os.environ)
    servers, place = Servers(), _place(document)
    servers.update({name: entry.server for name, entry in entries.items()})
    for name in members(document.get(place)):
        at = f"{place}.{name}"
        mistakes = [each for each in reading.mistakes if each.where == at or each.where.startswith(f"{at}.")]
        if mistakes:
            servers.pop(str(name), None)
            what = "; ".join(str(each) for each in mistakes)
            servers.wrong[str(name)] = ConfigError(f"{path}: {what}", server=str(name))
    if not servers and not servers.wrong and reading.mistakes:
        raise ConfigError(f"{path} can't be used: {reading.mistakes[0]}", remedy=f"`holdfast check {path}` explains")
    return servers


def is_ours(path: str | Path) -> bool:
    """Is this a gateway's file: YAML, with settings, or with policy of a server?"""
    if Path(path).suffix.lower() in (".yaml", ".yml"):
        return True
    document = Reading(path).parse() or {}
    if SETTINGS_KEYS & document.keys():
        return True
    listed = members(document.get("mcpServers", document.get("servers")))
    ours = get_args(Reuse)
    return any(
        (POLICY_KEYS - KEYS) & entry.keys() or entry.get("reuse") in ours for entry in map(members, listed.values())
    )


def _guess(reading: Reading, at: tuple[str, ...], key: str, known: frozenset[str]) -> None:
    near = difflib.get_close_matches(key, sorted(known), 1, 0.6)
    what = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    reading.add((*at, key), "there is no such setting", what)


def _settings(reading: Reading, document: dict[str, Any]) -> Settings | None:
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


def _model(reading: Reading, at: tuple[str, ...], model: type[Any], given: dict[str, Any]) -> Any:
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
"""Remedies for values of a wrong type."""


def _explain(reading: Reading, at: tuple[str, ...], wrong: Mapping[str, Any], fields: frozenset[str]) -> None:
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
        field = model.model_fields.get(part)
        if field is None:
            continue
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            inner = [kind, *getattr(kind, "__args__", ())]
            for each in inner:
                if isinstance(each, type) and issubclass(each, BaseModel):
                    model = each
    return frozenset(model.model_fields)


def _place(document: Mapping[str, Any]) -> str:
    """The key under which the file has its servers."""
    return "mcpServers" if "mcpServers" in document else "servers"


def _entries(reading: Reading, document: dict[str, Any], env: Mapping[str, str]) -> dict[str, ServerEntry]:
    place = _place(document)
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
    """The server, with header values like `file:/run/secrets/token` read from that file at each use."""
    headers = server.headers
    if headers is None or callable(headers):
        return server
    for name, value in headers.items():
        if _FILE_WITHIN(value):
            raise ConfigError(
                f"headers.{name}: a file is the whole of a value, never a part of it",
                remedy="write file:… alone, and the rest of the value into the file",
            )
    if not any(value.startswith(PREFIX) for value in headers.values()):
        return server
    files = FileHeaders(tuple(headers.items()))
    check_headers(files.read())
    return server.with_(headers=files)


def _check_together(reading: Reading, place: str, settings: Settings, entries: dict[str, ServerEntry]) -> None:
    """Refuse combinations of settings that can't work."""
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
            reading.add((place, name, "pass_headers"), "a program takes no headers", "use env instead")
        elif entry.policy.pass_headers and entry.policy.reuse == "shared":
            what = "reuse: shared is one session for all callers, so no caller's headers can go with it"
            reading.add((place, name, "pass_headers"), what, "use reuse: session or principal, or leave it out")
        if entry.policy.warm and (entry.policy.reuse != "session" or entry.server.command is None):
            reading.add((place, name, "warm"), "spares are for programs with reuse: session", "leave it out")
    if settings.store is not None:
        try:
            open_store(settings.store)  # constructed, not opened: a wrong URL is reported here
        except HoldfastError as error:
            reading.add(("store",), error.what, error.remedy)
    for name, entry in entries.items():
        if not settings.sessions.children and isinstance(entry.server.target, CommandTarget):
            reading.add((place, name), "sessions.children is 0, so no program may run", "raise it")
        if entry.server.proxy:
            try:
                proxy_for("", entry.server.proxy)
            except HoldfastError as error:
                reading.add((place, name, "proxy"), error.what, "write it like http://proxy.example:3128")
    if settings.sessions.handles and "holdfast" in entries:
        reading.add((place, "holdfast"), "the tools for handles have this name", "rename the server")
    if settings.naming.mode == "prefix" and (clash := too_many_names(entries)):
        reading.add((place, clash[0]), f"its tools would be named like those of {clash[1]!r}", "rename one")


def _check_here(
    reading: Reading, place: str, settings: Settings, entries: dict[str, ServerEntry], insecure: bool
) -> None:
    """Refuse what `serve` would refuse on this machine as it is now, and programs that can't be started here."""
    try:
        check_bind(settings, insecure)
    except ConfigError as error:
        reading.add(("listen", "host"), error.what, error.remedy)
    try:
        check_tokens(settings)
    except ConfigError as error:
        reading.add(("auth", "tokens"), error.what, error.remedy)
    for name, entry in entries.items():
        target = entry.server.target
        if isinstance(target, CommandTarget):
            env = environment(cast("dict[str, str]", target.env or {}))
            try:
                located(target.command, env, target.cwd)
            except Missing as missing:
                key = "cwd" if target.cwd is not None and not Path(target.cwd).is_dir() else "command"
                reading.add((place, name, key), missing.why, missing.remedy)
