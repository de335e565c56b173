"""The URL, headers and environment of a target, resolved at the first use and again after a 401.

It calls the declared callables and runs OAuth flows. The SDK's providers are httpx2 auth flows: they run here, off the
hot path, and only the header that they produce is sent with requests. Errors contain no secrets.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.core.eras import VERSIONS, Era
from holdfast.core.verdicts import Seen
from holdfast.errors import ConfigError, ConnectFailed, HoldfastError, StartTimeout, Unauthorized
from holdfast.links.background import cancelling
from holdfast.links.limits import Limits
from holdfast.links.target import (
    CommandTarget,
    HttpTarget,
    ObjectTarget,
    Target,
    check_env,
    check_headers,
    check_url,
)
from holdfast.links.wires.base import Resolved
from holdfast.links.wires.http.route import proxy_for

RENEWALS = 3  # for one call or start: a refresh, a sign-in if the new token is refused too, and a missing scope
REQUESTS = 20  # of one OAuth flow: discovery at several URLs, registration, token


class Credentials:
    """The credentials of one target."""

    def __init__(self, name: str, target: Target, limits: Limits) -> None:
        self._name = name
        self._target = target
        self._limits = limits
        self._authorized = 0.0
        self._authorizing_since: float | None = None
        self._given: str | None = None
        """The authorization that the OAuth provider returned last."""
        self._refreshed = False
        """The provider returned it without knowing that the previous one was refused."""

    @property
    def renewable(self) -> bool:
        """Whether resolving again can return different credentials."""
        target = self._target
        return isinstance(target, HttpTarget) and (callable(target.headers) or target.auth is not None)

    def may_renew(self, refused: Seen, before: Sequence[int | None]) -> bool:
        """Whether one call, or one start, may renew its credentials for this refusal, after earlier refusals with these
        statuses: once for each status, and once more for a token that was only refreshed."""
        again = refused.status in before and not self._refreshed
        return self.renewable and not again and len(before) < RENEWALS

    def authorizing(self) -> float:
        """The seconds spent in OAuth flows so far.
        A person may take part in them, so they do not count as start-up time.
        """
        since = self._authorizing_since
        return self._authorized + (0.0 if since is None else asyncio.get_running_loop().time() - since)

    async def resolve(self, refused: Seen | None) -> Resolved:
        """Resolve everything. `refused` is the 401 or 403 that made it necessary again."""
        try:
            async with asyncio.timeout(self._limits.resolve):
                resolved = await self._resolve()
        except TimeoutError as error:
            raise StartTimeout(
                f"URL, headers or env of {self._name!r} were not resolved within {self._limits.resolve:g} s",
                server=self._name,
                phase="resolve",
                remedy="nothing was executed; check what the callable waits for, or in Python raise Limits(resolve=…)",
            ) from error
        target = self._target
        if not isinstance(target, HttpTarget) or target.auth is None or resolved.url is None:
            return resolved
        began = self._authorizing_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._limits.authorize):
                headers = await self._authorize(target, resolved.url, refused)
        except TimeoutError as error:
            raise StartTimeout(
                f"the OAuth flow of {self._name!r} did not end within {self._limits.authorize:g} s",
                server=self._name,
                phase="resolve",
                remedy="nothing was executed; call again and sign in sooner, or in Python raise Limits(authorize=…)",
            ) from error
        finally:
            self._authorized += asyncio.get_running_loop().time() - began
            self._authorizing_since = None
        return Resolved(resolved.url, {**resolved.headers, **headers})

    async def _resolve(self) -> Resolved:
        """The declared values, or what the declared callables return."""
        target = self._target
        if isinstance(target, ObjectTarget):
            return Resolved()
        try:
            if isinstance(target, CommandTarget):
                return Resolved(env=await self._environment(target))
            url = target.url if isinstance(target.url, str) else check_url(await target.url())
            headers = target.headers
            if callable(headers):
                headers = check_headers(self._a_mapping(await headers()))
        except (HoldfastError, TimeoutError):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelling():
                raise  # otherwise something that the callable awaited was cancelled
            raise ConnectFailed(
                f"URL, headers or env of {self._name!r} were not resolved: {type(error).__name__}: {error}"[:400],
                server=self._name,
                phase="resolve",
                remedy="see the cause; the next call tries again",
            ) from error
        return Resolved(url, headers or {})

    async def _environment(self, target: CommandTarget) -> dict[str, str]:
        env = target.env
        given: Any = env
        if callable(env):
            given = await env()
        if not isinstance(given, Mapping):
            return check_env({} if given is None else given, target.command)
        values: dict[str, Any] = {}
        for name, value in cast("Mapping[str, Any]", given).items():
            values[name] = await cast("Any", value)() if callable(value) else value
        return check_env(values, target.command)

    def _a_mapping(self, headers: object) -> Mapping[str, str]:
        if not isinstance(headers, Mapping):
            raise ConfigError(
                f"the headers callable of {self._name!r} returned {type(headers).__name__}, not a mapping",
                server=self._name,
                phase="resolve",
                remedy="return a mapping of header names to values",
            )
        return cast("Mapping[str, str]", headers)

    async def _authorize(self, target: HttpTarget, url: str, refused: Seen | None) -> dict[str, str]:
        """The authorization header that the provider would set on a request to the server now."""
        import httpx2  # loaded only where OAuth is used

        # From the version the provider decides whether tokens are requested for a resource; in both eras they are.
        request = httpx2.Request("POST", url, headers={"mcp-protocol-version": VERSIONS[Era.Y2025][0]})
        flow = target.auth.async_auth_flow(request)
        given, self._refreshed = self._given, False
        verify: Any = True if target.tls is None else target.tls.context(self._name)
        try:
            async with httpx2.AsyncClient(verify=verify, proxy=proxy_for(url, target.proxy), trust_env=False) as client:
                outgoing = await anext(flow)
                for _ in range(REQUESTS):
                    if outgoing is not request:
                        answer = await client.send(outgoing)
                        await answer.aread()
                    elif refused is None:
                        return self._authorization(request)
                    elif refused.status == 401 and request.headers.get("authorization") not in (None, given):
                        # It was refreshed, here or by another link with this provider: the
                        # server has not seen this token yet.
                        self._refreshed = True
                        return self._authorization(request)
                    else:
                        # The server has refused this token: pass that refusal to the flow,
                        # which then obtains a new one.
                        challenge = {"www-authenticate": refused.challenge} if refused.challenge else {}
                        answer = httpx2.Response(refused.status or 401, headers=challenge, request=request)
                        refused = None
                    outgoing = await flow.asend(answer)
        except StopAsyncIteration:
            return self._authorization(request)
        except httpx2.TransportError as error:
            raise ConnectFailed(
                f"the authorization server of {self._name!r} could not be reached: {error}"[:400],
                server=self._name,
                phase="resolve",
            ) from error
        except HoldfastError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelling():
                raise
            raise Unauthorized(
                f"no authorization for {self._name!r}: {type(error).__name__}: {error}"[:400],
                server=self._name,
                phase="resolve",
                remedy="check the client id, secret and scopes that were given to the OAuth provider",
            ) from error
        finally:
            await flow.aclose()
        raise Unauthorized(
            f"the OAuth flow of {self._name!r} did not end after {REQUESTS} requests",
            server=self._name,
            phase="resolve",
        )

    def _authorization(self, request: Any) -> dict[str, str]:
        self._given = request.headers.get("authorization")
        return {"authorization": self._given} if self._given is not None else {}
