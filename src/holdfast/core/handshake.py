"""What both sides declared at the handshake, frozen, and its JSON form in which a memory stores it.

It also decides whether a saved handshake can still be used. JSON that was not written by `to_json` is rejected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.core.eras import SERVER_INFO, Era
from holdfast.core.models import ANONYMOUS, BackendSessionId, Principal
from holdfast.core.values import JSON, members


def _empty() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Ours:
    """What the client declares at a handshake: its info, and what the server may request."""

    info: Mapping[str, Any]
    capabilities: Mapping[str, Any] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class Handshake:
    """What the server declared: its whole `initialize` or `server/discover` result, and what was agreed."""

    era: Era
    version: str
    result: Mapping[str, Any]

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return members(self.result.get("capabilities"))

    @property
    def server_info(self) -> Mapping[str, Any] | None:
        if self.era is Era.Y2025:
            return _members_or_none(self.result.get("serverInfo"))
        return _members_or_none(members(self.result.get("_meta")).get(SERVER_INFO))

    @property
    def instructions(self) -> str | None:
        text = self.result.get("instructions")
        return text if isinstance(text, str) else None


def _members_or_none(value: object) -> Mapping[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as a memory stores it: enough to continue it without a round trip."""

    session: BackendSessionId | None = field(repr=False)
    handshake: Handshake
    ours: Ours
    principal: Principal = ANONYMOUS
    log_level: str | None = None
    subscriptions: tuple[str, ...] = ()
    unreported_loss: bool = False
    """It replaced a session that held state, and no caller has received the report of that yet."""
    second_choice: bool = False
    """The preferred era was not available."""
    shared: bool = False
    """A link that did not begin it has adopted it, and may have left state in it."""

    def to_json(self) -> dict[str, JSON]:
        return {
            "session": self.session,
            "era": self.handshake.era.value,
            "version": self.handshake.version,
            "greeting": cast("JSON", dict(self.handshake.result)),
            "info": cast("JSON", dict(self.ours.info)),
            "capabilities": cast("JSON", dict(self.ours.capabilities)),
            "principal": self.principal,
            "log_level": self.log_level,
            "subscriptions": list(self.subscriptions),
            "unreported_loss": self.unreported_loss,
            "second_choice": self.second_choice,
            "shared": self.shared,
        }

    @classmethod
    def from_json(cls, data: object) -> "Saved":
        """Decode what `to_json` returned. For anything else, raises a ValueError that names the field."""
        if not isinstance(data, dict):
            raise ValueError("not an object")
        document = cast("dict[str, Any]", data)
        session = document.get("session")
        if session is not None and not legal_session_id(session):
            raise ValueError("session is not a session id")
        version = document.get("version")
        if not isinstance(version, str):
            raise ValueError("version is not a string")
        try:
            era = Era(document.get("era"))
        except ValueError:
            raise ValueError("era is neither 2025 nor 2026") from None
        for name in ("greeting", "info", "capabilities"):
            if not isinstance(document.get(name), dict):
                raise ValueError(f"{name} is not an object")
        level, uris = document.get("log_level"), cast("Any", document.get("subscriptions") or [])
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in cast("list[Any]", uris)):
            raise ValueError("subscriptions is not a list of URIs")
        return cls(
            session=session,
            handshake=Handshake(era, version, document["greeting"]),
            ours=Ours(document["info"], document["capabilities"]),
            principal=Principal(str(document.get("principal") or ANONYMOUS)),
            log_level=level if isinstance(level, str) else None,
            subscriptions=tuple(cast("list[str]", uris)),
            unreported_loss=document.get("unreported_loss") is True,
            second_choice=document.get("second_choice") is True,
            shared=document.get("shared") is True,
        )

    def fits(self, ours: Ours, principal: Principal, era: Era | None) -> bool:
        """Whether the session can be continued:
        only for the same principal, in an allowed era, and with all the capabilities declared back then, because the
        server relies on them since the handshake.
        """
        return (
            self.principal == principal
            and (era is None or self.handshake.era is era)
            and includes(ours.capabilities, self.ours.capabilities)
        )


def includes(ours: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether every capability in `saved`, and every setting within one, is also in `ours`."""
    for name, value in saved.items():
        if name not in ours:
            return False
        here = ours[name]
        if isinstance(value, Mapping):
            if not isinstance(here, Mapping) or not includes(
                cast("Mapping[str, Any]", here), cast("Mapping[str, Any]", value)
            ):
                return False
        elif value not in (here, False, None):
            return False
    return True


MAX_SESSION_ID = 1024  # characters; it is sent with every request, and servers limit a header to a few kilobytes


def legal_session_id(value: object) -> bool:
    """Whether it is visible ASCII, as the specification requires: anything else could inject a header."""
    return isinstance(value, str) and 0 < len(value) <= MAX_SESSION_ID and all("\x21" <= c <= "\x7e" for c in value)
