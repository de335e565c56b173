"""Which session a call belongs to: a chain of places where the call may name it, in the author's order.

A raw header is never an identity: an id sent by a client is looked up among the sessions of the authenticated
principal. A chain that can never find a session is rejected.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import UsageError


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known about a call: its principal, its arguments and its connection."""

    principal: Principal = ANONYMOUS
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session_2025: str | None = None
    """The session id that the server gave a 2025 client and has verified;
    never the header of a stateless or 2026 request.
    """
    local_user: str | None = None
    """The operating system's user who started this process, where the call came over no network and without a token:
    on stdio."""


@dataclass(frozen=True, slots=True)
class Named:
    """A handle given by the caller, of a session that must exist."""

    handle: str


@dataclass(frozen=True, slots=True)
class Key:
    """A key for which a session begins with the first call: a principal, a connection or everyone."""

    digest: str
    principal: Principal
    shared: bool = False
    """By several callers."""
    brief: bool = False
    """It does not come back once its session has expired: a connection."""


Found: TypeAlias = Named | Key


@dataclass(frozen=True, slots=True)
class FromArgument:
    """The handle in an argument of the tool, passed by the model. Works with every client, in both eras."""

    name: str = ""
    """Of the argument; by the sessions' noun if left out, as `basket_id`."""

    def find(self, caller: Identity, kind: str) -> Found | None:
        """How the call of `caller` names a session of this `kind`; None if it does not."""
        return _handle(caller.arguments.get(self.name), f"the argument {self.name!r}")

    @property
    def hint(self) -> str:
        """What a caller must do to name a session this way."""
        return f"pass the argument {self.name!r}"


@dataclass(frozen=True, slots=True)
class FromMeta:
    """The handle in the request's `_meta`, from clients that hide it from the model."""

    key: str

    def find(self, caller: Identity, kind: str) -> Found | None:
        """How the call of `caller` names a session of this `kind`; None if it does not."""
        return _handle(caller.meta.get(self.key), f"_meta[{self.key!r}]")

    @property
    def hint(self) -> str:
        """What a caller must do to name a session this way."""
        return f"send _meta[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class From2025Session:
    """The connection of a 2025 client: over HTTP its session, on stdio its process."""

    def find(self, caller: Identity, kind: str) -> Found | None:
        """How the call of `caller` names a session of this `kind`; None if it does not."""
        if caller.session_2025 is None:
            return None
        return Key(_digest("2025", kind, caller.principal, caller.session_2025), caller.principal, brief=True)

    @property
    def hint(self) -> str:
        """What a caller must do to name a session this way."""
        return "connect with a session of 2025"


@dataclass(frozen=True, slots=True)
class FromPrincipal:
    """One session for each authenticated caller: with `key="subject"` for each user, by issuer and subject, whatever
    client they use; without, for each user of each client. With `local`, the user who runs a server on stdio counts as
    authenticated."""

    key: Literal["client", "subject"] = "client"
    local: bool = False

    def find(self, caller: Identity, kind: str) -> Found | None:
        """How the call of `caller` names a session of this `kind`; None if it names none."""
        owner = self.owner(caller.principal)
        if owner is None and self.local and caller.local_user is not None:
            owner = local_principal(caller.local_user)
        return None if owner is None else Key(_digest("principal", kind, owner), owner)

    def owner(self, principal: Principal) -> Principal | None:
        """The owner of this principal's session; None where the key does not identify one."""
        if principal == ANONYMOUS or self.key == "client":
            return None if principal == ANONYMOUS else principal
        return user_of(principal)

    @property
    def hint(self) -> str:
        """What a caller must do to name a session this way."""
        return "sign in: it is kept for each user" if self.key == "subject" else "authenticate"


def user_of(principal: Principal) -> Principal | None:
    """The user behind a token's principal, whatever client they use; None where it names none."""
    try:
        parts = json.loads(principal)
    except ValueError:  # not of a token
        return None
    if not isinstance(parts, list) or len(cast("list[object]", parts)) != 3:
        return None
    _, issuer, subject = cast("list[object]", parts)
    return Principal(json.dumps([None, issuer, subject], separators=(",", ":"))) if subject else None


@dataclass(frozen=True, slots=True)
class ForEveryone:
    """One session shared by all callers: the persistent scope of a server."""

    name: str = "everyone"

    def find(self, caller: Identity, kind: str) -> Found | None:
        """How the call of `caller` names a session of this `kind`; None if it does not."""
        return Key(_digest("everyone", kind, self.name), ANONYMOUS, shared=True)

    @property
    def hint(self) -> str:
        """What a caller must do to name a session this way."""
        return ""


IdentitySource: TypeAlias = FromArgument | FromMeta | From2025Session | FromPrincipal | ForEveryone
Per: TypeAlias = Literal["conversation", "user", "everyone"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Where a call may name its session, and how many seconds one lasts without use and at all; None is for ever."""

    identity: tuple[IdentitySource, ...]
    idle: float | None
    max_age: float | None


DAY = 86_400.0
PRESETS: Mapping[str, Preset] = {
    "conversation": Preset((FromArgument(), From2025Session()), DAY, 30 * DAY),
    "user": Preset((FromPrincipal(key="subject", local=True),), 90 * DAY, None),
    "everyone": Preset((ForEveryone(),), None, None),
}


def local_principal(user: str) -> Principal:
    """The principal of a user who runs the server on stdio; no token has one of two parts."""
    return Principal(json.dumps(["local", user], separators=(",", ":")))


class Chain:
    """The places in order; the first one that names a session decides."""

    def __init__(self, places: Sequence[IdentitySource]) -> None:
        self.places = tuple(places)
        if not self.places:
            raise UsageError("identity=[] can never find a session", remedy="name at least one place to look")
        self.arguments = tuple(dict.fromkeys(place.name for place in self.places if isinstance(place, FromArgument)))
        """The names of all arguments that may name a session."""
        for number, place in enumerate(self.places):
            if not isinstance(place, IdentitySource):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(
                    f"identity[{number}] is {place!r:.80}, not a place to look",
                    remedy="use FromArgument(…), FromMeta(…), From2025Session(), FromPrincipal() or ForEveryone(…)",
                )
            if place in self.places[:number]:
                raise UsageError(f"identity has {place!r} twice: the second can never match", remedy="remove one")
            if isinstance(place, ForEveryone) and number + 1 < len(self.places):
                raise UsageError(
                    f"identity: nothing after {place!r} can ever match, because it always matches", remedy="put it last"
                )
            if isinstance(place, FromPrincipal) and place.key not in ("client", "subject"):
                raise UsageError(
                    f"identity[{number}]: key must be 'client' or 'subject', not {place.key!r:.60}",
                    remedy="use FromPrincipal(key='subject') for one session of each user",
                )
            name = getattr(place, "name", getattr(place, "key", "x"))
            if not isinstance(name, str) or not name:
                raise UsageError(f"identity[{number}] has an empty name", remedy="give the name of the argument or key")

    def find(self, caller: Identity, kind: str) -> Found | None:
        for place in self.places:
            found = place.find(caller, kind)
            if found is not None:
                return found
        return None

    @property
    def argument(self) -> str | None:
        """The name of the required argument, if that is the only place to look."""
        only = self.places[0]
        return only.name if len(self.places) == 1 and isinstance(only, FromArgument) else None

    @property
    def has_own(self) -> bool:
        """Whether a caller has a session without naming one, in both eras."""
        return any(isinstance(place, FromPrincipal | ForEveryone) for place in self.places)

    @property
    def needs_authentication(self) -> bool:
        """Whether only authenticated callers can have a session."""
        return all(isinstance(place, FromPrincipal) and not place.local for place in self.places)

    @property
    def is_named_by_callers(self) -> bool:
        """Whether a caller can name one of several sessions."""
        return any(isinstance(place, FromArgument | FromMeta) for place in self.places)

    @property
    def hint(self) -> str:
        """What a caller can do to name a session."""
        named = [place for place in self.places if isinstance(place, FromArgument | FromMeta)] or self.places
        return " or ".join(place.hint for place in named if place.hint)


def _handle(value: object, where: str) -> Named | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise UsageError(f"{where} must be a session's handle, a str, not {type(value).__name__}")
    return Named(value)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
