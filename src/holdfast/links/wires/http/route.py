"""The route of a request: the server's URL as HTTP requires it, and the proxy."""

import base64
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import quote, unquote, urlsplit

from holdfast.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_KEPT = "!#$%&'()*+,/:;=?@[]~"  # in a path or query: characters that URLs may contain, and existing escapes


@dataclass(frozen=True)
class Proxy:
    """A proxy: its address and its authorization."""

    scheme: str
    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str) -> "Proxy":
        """The proxy at a URL, `http://user:password@host:port`."""
        parts = urlsplit(url)
        authorization = None
        if parts.username or parts.password:
            both = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
            authorization = f"Basic {base64.b64encode(both).decode('ascii')}"
        return cls(parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme], authorization)

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True)
class Route:
    """A route: scheme, host and port of the server, path and query, and the proxy, if any."""

    scheme: str
    host: str
    port: int
    path: str
    proxy: Proxy | None = None

    @classmethod
    def to(cls, url: str, proxy: str | None = None) -> "Route":
        """The route to a URL. Raises ValueError if it is malformed."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        port = parts.port or _PORTS[parts.scheme]
        return cls(parts.scheme, host, port, quote(path, safe=_KEPT), None if proxy is None else Proxy.at(proxy))

    @cached_property
    def origin(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}"

    @cached_property
    def url(self) -> str:
        return self.origin + self.path

    @property
    def tunnel(self) -> bool:
        """Whether the proxy tunnels bytes (CONNECT). Otherwise it forwards plain HTTP."""
        return self.proxy is not None and self.scheme == "https"

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The key under which connections can be reused.
        A proxy that forwards plain HTTP accepts requests to all servers on one connection.
        """
        if self.proxy is not None and not self.tunnel:
            return (self.proxy,)
        return (self.scheme, self.host, self.port, self.proxy)

    @cached_property
    def begin(self) -> str:
        """The rest of the request line, and the headers that depend on the route."""
        proxied = self.proxy is not None and not self.tunnel
        host = self.origin.partition("://")[2]
        lines = [f"{self.url if proxied else self.path} HTTP/1.1", f"host: {host}"]
        if proxied and self.proxy is not None and self.proxy.authorization is not None:
            lines.append(f"proxy-authorization: {self.proxy.authorization}")
        return "".join(f"{line}\r\n" for line in lines)

    @cached_property
    def lines(self) -> int:
        """The number of lines in `begin`."""
        return self.begin.count("\n")


def bracketed(host: str) -> str:
    """The host as written before a port."""
    return f"[{host}]" if ":" in host else host


def proxy_for(url: str, setting: str | None) -> str | None:
    """The proxy to use: the setting, else that of the environment's variables with `NO_PROXY`;
    a setting of "" means none.
    """
    if setting is not None:
        _check(setting, "proxy=")
        return setting or None
    from urllib.request import getproxies, proxy_bypass  # loads http.client, which nothing else here needs

    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    _check(proxy, f"{parts.scheme}_proxy or all_proxy in the environment")
    return proxy


def _check(proxy: str, where: str) -> None:
    try:
        parts = urlsplit(proxy)
        legal = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        legal = False
    if proxy and not legal:  # its text may contain a password
        raise ConfigError(
            f"{where} is not an http:// or https:// URL",
            phase="resolve",
            remedy="write it like http://proxy.example:3128, or set proxy='' for no proxy",
        )
