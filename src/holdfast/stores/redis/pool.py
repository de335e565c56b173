"""Connections to one Redis or Valkey, and the one place where redis-py's errors become ours.

A refusal means that nothing was done; a lost answer (`AnswerLost`) means that it may have been. redis-py's own retries
are off: a command is sent once.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, cast

import hiredis
from redis import exceptions
from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdfast.errors import ConfigError, CorruptRecord, HoldfastError, StoreDown
from holdfast.stores.base import to_the_end
from holdfast.stores.contract import CLOSE_SECONDS
from holdfast.stores.pool import ConnectionPool
from holdfast.stores.redis.scripts import SCRIPTS, Script

CONNECT_SECONDS = 4.0  # so that a wrong address fails within five

Connection: TypeAlias = Any
"""redis-py's connection, whose methods are typed only in part."""

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)  # in C, where redis-py's own is in Python

FAILURES = (exceptions.RedisError, OSError, TimeoutError)


class AnswerLost(StoreDown):
    """Sent without an answer; the server may still be working on it for `client`."""

    def __init__(self, what: str, store: str, client: tuple[int, str] | None) -> None:
        super().__init__(what, store=store)
        self.client = client


class CancelledLate(asyncio.CancelledError):
    """The caller was cancelled after the commands were sent; these are their answers."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__()
        self.answers = answers


class RedisPool:
    """Up to `size` connections, opened when needed, the last used first."""

    def __init__(self, dsn: str, url: str, timeout: float, size: int) -> None:
        self.url = url
        self._timeout = timeout
        self._connections: ConnectionPool[Connection] = ConnectionPool(url, size, timeout, self.connect, _cut)
        self._open = False
        try:
            settings = cast("dict[str, Any]", parse_url(dsn.replace("valkey", "redis", 1)))
            self._class: Any = settings.pop("connection_class", TcpConnection)
            self._settings: dict[str, Any] = {
                **settings,
                "protocol": 2,
                "socket_timeout": None,  # one deadline around the whole exchange instead
                "socket_connect_timeout": CONNECT_SECONDS,
                "retry": Retry(NoBackoff(), 0),
                "client_name": "holdfast",
            }
            self._class(**self._settings)
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigError(f"{url} can't be read as an address: {error}", store=url) from None

    async def connect(self) -> Connection:
        """A new connection, or the error that says why not."""
        connection = self._class(**self._settings)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()
                await connection.send_command("CLIENT", "INFO")
                client = dict(field.split("=", 1) for field in (await connection.read_response()).decode().split())
                connection.client = int(client["id"]), client["addr"]
        except BaseException as error:
            await self.drop(connection)
            if isinstance(error, FAILURES):
                raise self._unreachable(error) from error
            raise
        return connection

    async def drop(self, connection: Connection) -> None:
        with suppress(*FAILURES):
            await connection.disconnect(nowait=True)

    def open(self) -> None:
        self._open = True
        self._connections.open()

    async def close(self) -> None:
        """Idle connections are closed at once, those in use when they come back."""
        self._open = False
        for connection in await self._connections.close(CLOSE_SECONDS):
            await self.drop(connection)

    async def command(self, *command: Any, awaited: bool = False) -> Any:
        return (await self.commands([command], awaited=awaited))[0]

    async def commands(self, commands: list[tuple[Any, ...]], *, awaited: bool = False) -> list[Any]:
        """The answers to commands that are sent together; the first refusal is raised.

        With `awaited`, a caller that is cancelled after they were sent waits for the answers, and gets `CancelledLate`.
        """
        connection = await self._take()
        self._connections.begin(connection, self._timeout)
        fine = late = False
        try:
            packed = _pack(commands[0]) if len(commands) == 1 else b"".join(map(_pack, commands))
            await connection.send_packed_command(packed, check_health=False)
            answers: list[Any] = []
            try:
                await self._answers(connection, answers, len(commands))
            except asyncio.CancelledError:
                if not awaited:
                    raise
                late = True
                with suppress(asyncio.CancelledError):  # reading goes on where it was cut short
                    await to_the_end(self._answers(connection, answers, len(commands)))
                if len(answers) < len(commands):
                    raise
            fine = True
        except FAILURES as error:
            overdue = not self._connections.end(connection)
            if late:
                raise asyncio.CancelledError from error
            raise self.translate(TimeoutError() if overdue else error, connection) from error
        finally:
            self._connections.end(connection)
            if fine and self._open:
                self._connections.give_back(connection)
            else:
                self._connections.lose()
                await self.drop(connection)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                if late:
                    raise asyncio.CancelledError
                raise self.translate(answer, connection) from answer
        if late:
            raise CancelledLate(answers)
        return answers

    async def script(self, script: Script, *given: Any, awaited: bool = False) -> Any:
        """What the script returned. A server that does not have it, as after a restart, is sent it."""
        text, digest = SCRIPTS[script]
        try:
            return await self.command("EVALSHA", digest, 0, *given, awaited=awaited)
        except _UnknownScript:
            return await self.command("EVAL", text, 0, *given, awaited=awaited)

    async def _answers(self, connection: Connection, answers: list[Any], count: int) -> None:
        while len(answers) < count:
            answers.append(await self._answer(connection))

    async def _answer(self, connection: Connection) -> Any:
        try:
            return await connection.read_response(disconnect_on_error=False)
        except exceptions.ResponseError as error:
            return error  # of one command; the others' answers follow it

    async def _take(self) -> Connection:
        while (connection := self._connections.take_idle()) is not None:
            # An end of file already there means that the server has gone since: nothing was sent, so take another.
            usable = False
            try:
                usable = connection.is_connected and not await connection.can_read()
            finally:
                if not usable:
                    self._connections.lose()
            if usable:
                return connection
            await self.drop(connection)
        return await self._connections.take()

    def translate(self, error: Exception, connection: Connection) -> HoldfastError:
        """The one place where redis-py's errors become ours. A lost connection is kept apart from a refusal."""
        text = str(error)
        match error:
            case exceptions.NoScriptError():
                return _UnknownScript(text, store=self.url)
            case exceptions.BusyLoadingError():
                return StoreDown(f"{self.url} is still loading its data", store=self.url)
            case exceptions.AuthenticationError() | exceptions.NoPermissionError():
                return self._unreachable(error)
            case exceptions.ResponseError() if "ACL failure" in text:
                return self._unreachable(exceptions.NoPermissionError(text))
            case exceptions.OutOfMemoryError():
                return StoreDown(f"{self.url} is out of memory", store=self.url, remedy="raise maxmemory, or reap")
            case exceptions.ReadOnlyError():
                return StoreDown(
                    f"{self.url} is a replica now", store=self.url, remedy="use the address of the primary"
                )
            case exceptions.ResponseError() if "WRONGTYPE" in text:
                return CorruptRecord(f"{self.url} has something else under one of our keys", store=self.url)
            case exceptions.ResponseError():
                return StoreDown(f"{self.url} refused: {text}", store=self.url)
            case TimeoutError() | exceptions.TimeoutError():
                what = f"{self.url} did not answer within {self._timeout:g} s"
            case _:
                what = f"{self.url} went away: {text}"
        return AnswerLost(what, self.url, getattr(connection, "client", None))

    def _unreachable(self, error: Exception) -> HoldfastError:
        """The error of a connection that failed: nothing was executed."""
        text = str(error)
        cause = error.__cause__ or error.__context__
        if isinstance(error, ssl.SSLError) or isinstance(cause, ssl.SSLError) or "SSL" in text:
            return ConfigError(
                f"TLS with {self.url} failed: {cause or text}", store=self.url, remedy="check CA and host"
            )
        match error:
            case exceptions.NoPermissionError():
                return ConfigError(
                    f"{self.url}: {text}", store=self.url, remedy="give this user ~holdfast* &holdfast* +@all"
                )
            case exceptions.AuthenticationError() | exceptions.AuthorizationError():
                return ConfigError(
                    f"{self.url} refuses this user or password", store=self.url, remedy="check both in the URL"
                )
            case exceptions.BusyLoadingError():
                return StoreDown(f"{self.url} is still loading its data", store=self.url)
            case exceptions.ResponseError() if "DB index" in text:
                return ConfigError(f"{self.url}: {text}", store=self.url, remedy="name a database that exists, e.g. /0")
            case exceptions.ResponseError() if "invalid password" in text or "WRONGPASS" in text or "NOAUTH" in text:
                return ConfigError(
                    f"{self.url} refuses this user or password", store=self.url, remedy="check both in the URL"
                )
            case TimeoutError() | exceptions.TimeoutError():
                secure = self.url.startswith(("rediss", "valkeys"))  # a server without TLS waits for more, in silence
                return StoreDown(
                    f"{self.url} did not answer within {CONNECT_SECONDS:g} s",
                    store=self.url,
                    remedy="does it speak TLS on this port? If not, write redis://"
                    if secure
                    else "is the server well?",
                )
            case _:
                return StoreDown(f"{self.url} can't be reached: {text}", store=self.url, remedy="is the server up?")


def _cut(connection: Connection) -> None:
    """Close it while it is being read: the read ends with an end of file."""
    # redis-py's own way to disconnect is a coroutine, and would wait for the reader.
    writer = connection._writer  # noqa: SLF001
    if writer is not None:
        writer.transport.abort()


class _UnknownScript(StoreDown):
    """The server does not have this script."""
