"""What clients read to log in: the protected resource metadata of RFC 9728, and the challenge that leads there."""

import json
from collections.abc import Sequence

PREFIX = "/.well-known/oauth-protected-resource"


class ResourceMetadata:
    """The metadata of one gateway's endpoint. `resource` is its URL as clients know it; None: as they call it."""

    def __init__(self, resource: str | None, endpoint: str, issuers: Sequence[str], scopes: Sequence[str]) -> None:
        self._resource = resource
        self._endpoint = endpoint
        self._issuers = list(issuers)
        self._scopes = [scope for scope in scopes if scope != "offline_access"]
        self.paths = frozenset({PREFIX, PREFIX + endpoint.rstrip("/")}) if issuers else frozenset[str]()
        """Where it is read, by clients of either habit."""

    def document(self, scheme: str, host: str | None) -> bytes:
        """The metadata, for a request to this host."""
        resource = self._resource or f"{scheme}://{host}{self._endpoint}"
        document = {
            "resource": resource,
            "authorization_servers": self._issuers,
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": self._scopes} if self._scopes else {}),
        }
        return json.dumps(document).encode()

    def challenge(self, scheme: str, host: str | None, error: str | None = None) -> str:
        """The `WWW-Authenticate` header of a refusal."""
        if not self._issuers:
            return 'Bearer realm="holdfast"'
        base = self._resource.removesuffix(self._endpoint) if self._resource else f"{scheme}://{host}"
        parts = [f'resource_metadata="{base}{PREFIX}{self._endpoint.rstrip("/")}"']
        if self._scopes:
            parts.append(f'scope="{" ".join(self._scopes)}"')
        if error is not None:
            parts.append(f'error="{error}"')
        return f"Bearer {', '.join(parts)}"
