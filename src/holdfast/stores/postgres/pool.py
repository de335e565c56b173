"""Connections to one PostgreSQL, and the one place where asyncpg's errors become ours.

A refusal means that nothing was done; a lost answer (`AnswerLost`) means that it may have been.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, cast

import asyncpg

from holdfast.errors import ConfigError, HoldfastError, StoreDown
from holdfast.stores.contract import CLOSE_SECONDS
from holdfast.stores.pool import ConnectionPool
from holdfast.stores.postgres import statements as sql

CONNECT_SECONDS = 4.0  # so that a wrong address fails within five
_STATEMENTS = 2  # timeouts that a transaction of several statements may take

Connection: TypeAlias = Any
"""asyncpg's connection, which ships without types for its methods."""

Backend: TypeAlias = tuple[int, Any]
"""The process that serves a connection: its pid and when it started."""

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class AnswerLost(StoreDown):
    """Sent without an answer; `backend` may still be working on it."""

    def __init__(self, what: str, store: str, backend: Backend | None = None) -> None:
        super().__init__(what, store=store)
        self.backend = backend


class Raced(StoreDown):
    """The server undid a statement because of another that ran at the same time: nothing was done, do it again."""


class _Connection(asyncpg.Connection):
    """asyncpg's connection, and the backend that serves it."""

    backend: Backend | None = None
    statements: dict[str, Any]


def _cut(connection: Connection) -> None:
    with suppress(*FAILURES):
        connection.terminate()


class PostgresPool:
    """Up to `size` connections, opened when needed, the last used first. `timeout` bounds each wait.

    Not asyncpg's own pool: taking a connection from that one costs as much as a statement on a local server.
    """

    def __init__(self, dsn: str, url: str, timeout: float, size: int) -> None:
        self.url = url
        self._dsn = dsn
        self._timeout = timeout
        self._connections: ConnectionPool[Connection] = ConnectionPool(url, size, timeout, self.connect, _cut)
        self._open = False

    def open(self) -> None:
        self._open = True
        self._connections.open()

    async def close(self) -> None:
        """Idle connections are closed at once, those in use when they come back."""
        self._open = False
        idle = await self._connections.close(CLOSE_SECONDS)
        closing = [asyncio.ensure_future(connection.close(timeout=CLOSE_SECONDS / 2)) for connection in idle]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_SECONDS)
        for connection, task in zip(idle, closing, strict=True):
            if not task.done() or task.cancelled() or task.exception() is not None:
                connection.terminate()

    async def connect(self) -> Connection:
        """A connection of one's own, or the reason why not."""
        try:
            return await self._connect()
        except FAILURES as error:
            raise self.unreachable(error) from error
        except ValueError as error:
            raise self.unreachable(error) from error

    async def _connect(self, *_: Any, **__: Any) -> Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection: Any = await cast("Any", asyncpg.connect)(
                self._dsn,
                server_settings={"statement_timeout": str(int(self._timeout * 1000)), "application_name": "holdfast"},
                connection_class=_Connection,
            )
            connection.statements = {}
            try:
                connection.backend = tuple(await connection.fetchrow(sql.BACKEND))
            except BaseException:
                connection.terminate()
                raise
            return connection

    async def _take(self) -> Connection:
        while (connection := self._connections.take_idle()) is not None:
            if not connection.is_closed():
                return connection
            self._connections.lose()
        return await self._connections.take()

    def _give_back(self, connection: Connection, *, fine: bool) -> None:
        """Into the pool again if the exchange came to its end; else it may be in any state, and must not come back."""
        if fine and self._open and not connection.is_closed():
            self._connections.give_back(connection)
            return
        self._connections.lose()
        with suppress(*FAILURES):
            connection.terminate()

    async def row(self, statement: str, *given: object) -> Any:
        """The first row of what the statement returns, or None."""
        return await self._ask("fetchrow", statement, given)

    async def rows(self, statement: str, *given: object) -> list[Any]:
        """All rows of what the statement returns."""
        return await self._ask("fetch", statement, given)

    async def _ask(self, method: str, statement: str, given: Sequence[object]) -> Any:
        connection = await self._take()
        self._connections.begin(connection, self._timeout)
        fine = False
        try:
            prepared = connection.statements.get(statement)
            if prepared is None:
                prepared = connection.statements[statement] = await connection.prepare(statement)
            found = await getattr(prepared, method)(*given)
            fine = True
            return found
        except FAILURES as error:
            fine = isinstance(error, asyncpg.PostgresError)  # the server answered, if only with a no
            raise self._explain(error, connection) from error
        finally:
            self._connections.end(connection)
            self._give_back(connection, fine=fine)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        """One of the pool, for a while. What goes wrong inside is translated."""
        connection = await self._take()
        self._connections.begin(connection, self._timeout * _STATEMENTS)
        fine = False
        try:
            yield connection
            fine = True
        except HoldfastError:
            fine = True  # ours, about the data; the transaction around it was rolled back
            raise
        except FAILURES as error:
            fine = isinstance(error, asyncpg.PostgresError)
            raise self._explain(error, connection) from error
        finally:
            self._connections.end(connection)
            self._give_back(connection, fine=fine)

    def _explain(self, error: Exception, connection: Connection) -> HoldfastError:
        connection.statements.clear()  # they may be what is wrong: prepared for a table that has changed since
        late = not self._connections.end(connection)
        return self.translate(TimeoutError() if late else error, connection.backend)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection, None]:
        async with self.connection() as connection, connection.transaction():
            yield connection

    def translate(self, error: Exception, backend: Backend | None = None) -> HoldfastError:
        """The one place where asyncpg's errors become ours. A lost connection is kept apart from a refusal."""
        match error:
            case asyncpg.QueryCanceledError():
                return StoreDown(
                    f"{self.url} did not finish within {self._timeout:g} s", store=self.url, remedy="raise ?timeout="
                )
            case asyncpg.AdminShutdownError() | asyncpg.CrashShutdownError():
                return AnswerLost(f"{self.url} was shut down under a statement", self.url, backend)
            case asyncpg.CannotConnectNowError() | asyncpg.TooManyConnectionsError():
                return StoreDown(f"{self.url} takes no connections now: {error}", store=self.url)
            case asyncpg.InsufficientPrivilegeError():
                return ConfigError(
                    f"{self.url}: {error}", store=self.url, remedy="grant this user SELECT, INSERT, UPDATE and DELETE"
                )
            case asyncpg.UndefinedTableError():
                return ConfigError(
                    f"{self.url} has lost its tables: {error}", store=self.url, remedy="open the store again"
                )
            case (
                asyncpg.UniqueViolationError()
                | asyncpg.DeadlockDetectedError()
                | asyncpg.InvalidTextRepresentationError()
            ):
                return Raced(f"{self.url}: {error}", store=self.url)
            case asyncpg.DiskFullError():
                return StoreDown(f"the disk of {self.url} is full", store=self.url, remedy="free some space and retry")
            case asyncpg.PostgresConnectionError():
                return AnswerLost(f"{self.url} went away: {error}", self.url, backend)
            case asyncpg.PostgresError():
                return StoreDown(f"{self.url}: {error}", store=self.url)
            case TimeoutError():
                return AnswerLost(f"{self.url} did not answer within {self._timeout:g} s", self.url, backend)
            case _:
                return AnswerLost(f"{self.url} went away: {error}", self.url, backend)

    def unreachable(self, error: Exception) -> HoldfastError:
        """The error of a connection that failed: nothing was executed."""
        match error:
            case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
                return ConfigError(
                    f"{self.url} refuses this user or password", store=self.url, remedy="check both in the URL"
                )
            case asyncpg.InvalidCatalogNameError():
                return ConfigError(
                    f"{self.url}: {error}", store=self.url, remedy="create the database, or name another"
                )
            case ssl.SSLError():
                return ConfigError(
                    f"TLS with {self.url} failed: {error}", store=self.url, remedy="check ?sslmode= and CA"
                )
            case ConnectionError() if "SSL" in str(error):
                return ConfigError(
                    f"TLS with {self.url} failed: {error}",
                    store=self.url,
                    remedy="use ?sslmode=disable, or turn TLS on",
                )
            case ValueError() | asyncpg.ClientConfigurationError():
                return ConfigError(f"{self.url} can't be read as an address: {error}", store=self.url)
            case TimeoutError():
                return StoreDown(f"{self.url} did not answer within {CONNECT_SECONDS:g} s", store=self.url)
            case HoldfastError():
                return error
            case _:
                return StoreDown(f"{self.url} can't be reached: {error}", store=self.url, remedy="is the server up?")
