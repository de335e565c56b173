"""The part `auth` of the gateway's file: static tokens, issuers of JSON Web Tokens, a verifier of the operator's."""

from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from holdfast.gateway.config.part import Part, hash_checked

ASYMMETRIC = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"}
)
"""Algorithms with a public key. With a shared secret, whoever can verify a token could make one."""


class Token(Part):
    """One caller's token, as its hash."""

    hash: str = Field(description="`sha256:…`, as `holdfast token new` prints it.", repr=False)
    principal: str = Field(min_length=1, max_length=200, description="The caller who has this token.")

    expires: datetime | None = Field(
        default=None,
        strict=False,
        description="When the token ends, like `2027-01-31T12:00:00Z`; open requests of its caller end then, too.",
    )

    @field_validator("expires")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    @field_validator("principal")
    @classmethod
    def _somebody(cls, value: str) -> str:
        if value in ("anonymous", "local"):
            raise ValueError(f"{value!r} is the name of callers without a token; take another name")
        return value

    @field_validator("hash")
    @classmethod
    def _a_hash(cls, value: str) -> str:
        return hash_checked(value)


class Jwt(Part):
    """One issuer whose JSON Web Tokens are taken."""

    issuer: str = Field(min_length=1, max_length=300, description="The issuer, exactly as its tokens name it (`iss`).")
    audience: tuple[str, ...] = Field(
        min_length=1,
        description="What tokens must be issued for (`aud`): one of these.",
        strict=False,
    )
    jwks: str | None = Field(
        default=None,
        description="Its public keys: a URL, or a file beside this one. By default the issuer's metadata names them.",
    )
    algorithms: tuple[str, ...] = Field(
        default=("RS256", "ES256", "PS256", "EdDSA"),
        min_length=1,
        description="Algorithms of signatures that are taken; only those with a public key are possible.",
        strict=False,
    )
    leeway: float = Field(default=30.0, ge=0, le=600, description="Seconds that its clock may differ from ours.")
    scopes: tuple[str, ...] = Field(
        default=(), description="Scopes that a token must have; one without is answered with 403.", strict=False
    )
    claims: dict[str, str | int | bool] = Field(
        default_factory=dict, description="Claims that a token must have, with their values: `{tenant: acme}`."
    )
    principal: Literal["subject", "subject+client"] = Field(
        default="subject",
        description="Who a caller is: a `subject` of the issuer, whatever client it uses, or each `subject+client`.",
    )

    @field_validator("issuer")
    @classmethod
    def _an_issuer(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or "|" in value:
            raise ValueError(f"{value!r:.100} is not an issuer; write it like https://login.example/realm")
        return value

    @field_validator("algorithms")
    @classmethod
    def _asymmetric(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in ASYMMETRIC:
                raise ValueError(f"{name!r:.20} is not taken; use some of {', '.join(sorted(ASYMMETRIC))}")
        return value


class Auth(Part):
    """Who may call. Static tokens, issuers and a verifier can all be used at once."""

    tokens: tuple[Token, ...] = Field(default=(), description="Static bearer tokens.", strict=False)
    jwt: tuple[Jwt, ...] = Field(
        default=(), description="Issuers of JSON Web Tokens: one, or a list of them.", strict=False
    )
    verifier: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="An object with the SDK's `verify_token`, as `package.module:object`.",
    )
    resource: str | None = Field(
        default=None,
        description="The gateway's URL for clients, like `https://mcp.example/mcp`; by default the one they call.",
    )
    servers: tuple[str, ...] = Field(
        default=(),
        description="Authorization servers that clients log in at; by default the issuers of `jwt`.",
        strict=False,
    )

    @field_validator("jwt", mode="before")
    @classmethod
    def _a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]

    @model_validator(mode="after")
    def _different(self) -> "Auth":
        if not self.tokens and not self.jwt and self.verifier is None:
            raise ValueError(
                "has no tokens, jwt or verifier, so every caller would be refused; write 'auth: none' for no auth"
            )
        hashes = [token.hash for token in self.tokens]
        if len(set(hashes)) != len(hashes):
            raise ValueError("two tokens have the same hash; remove one of them")
        issuers = [each.issuer for each in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("two parts of jwt have the same issuer; join them")
        if self.resource is not None and urlsplit(self.resource).scheme not in ("http", "https"):
            raise ValueError(f"resource {self.resource!r:.100} is not a URL; write it like https://mcp.example/mcp")
        return self

    @property
    def issuers(self) -> tuple[str, ...]:
        """Where clients log in."""
        return self.servers or tuple(each.issuer for each in self.jwt)
