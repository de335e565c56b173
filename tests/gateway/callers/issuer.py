"""An issuer of tokens for tests: keys, their document and metadata over HTTP, and tokens of any shape."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.gateway.web_apps import serving_app


class Issuer:
    """One issuer. `down` answers everything with 503, `hangs` not at all."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {}
        self.requests: list[str] = []
        self.down = False
        self.add_key("one")

    def add_key(self, id: str, *, kind: str = "RSA") -> None:
        self.keys[id] = (
            rsa.generate_private_key(65537, 2048) if kind == "RSA" else ec.generate_private_key(ec.SECP256R1())
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Issuer"]:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._metadata)
        app.router.add_get("/jwks", self._jwks)
        async with serving_app(app) as url:
            self.url = url.removesuffix("/mcp")
            yield self

    async def _metadata(self, request: web.Request) -> web.Response:
        self.requests.append("metadata")
        if self.down:
            return web.Response(status=503)
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/jwks"})

    async def _jwks(self, request: web.Request) -> web.Response:
        self.requests.append("jwks")
        if self.down:
            return web.Response(status=503)
        return web.json_response(self.document())

    def document(self) -> dict[str, Any]:
        keys: list[dict[str, Any]] = []
        for id, key in self.keys.items():
            algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            found: Any = algorithm.to_jwk(key.public_key(), as_dict=True)
            keys.append({**found, "kid": id, "use": "sig"})
        return {"keys": keys}

    def public_pem(self, id: str = "one") -> bytes:
        return (
            self.keys[id]
            .public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def claims(self, subject: str, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": self.url, "aud": "gateway", "sub": subject, "exp": now + 300, "iat": now, "scope": "use"}
        return {name: value for name, value in {**claims, **changed}.items() if value is not None}

    def token(
        self,
        subject: str = "alice",
        *,
        key: str = "one",
        algorithm: str = "RS256",
        headers: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        sent = {"kid": key, **(headers or {})}
        return jwt.encode(self.claims(subject, **claims), self.keys[key], algorithm=algorithm, headers=sent)
