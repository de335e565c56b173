"""The way up: resolve, open, greet. It owns the wire, what was resolved, and the memory of sessions.

Each phase can be done again without the ones before it. It refuses to know calls: it makes generations, and the link
decides when and why.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from holdfast.core.eras import Era
from holdfast.core.greeting import Ours, Saved
from holdfast.core.models import Principal
from holdfast.core.outcome import Seen, Verdict, judge
from holdfast.core.retry import Circumstances, Step, decide, wait_for
from holdfast.errors import Conflict, HoldfastError, StartTimeout
from holdfast.links.credentials import Credentials
from holdfast.links.duplex import DuplexWire
from holdfast.links.failures import error_for
from holdfast.links.greet import Greeter, GreetFailed
from holdfast.links.http import HttpWire
from holdfast.links.inbound import Inbound
from holdfast.links.limits import Limits
from holdfast.links.local import LocalChannel
from holdfast.links.memory import Kept, Memory
from holdfast.links.owner import Owner
from holdfast.links.peer import Peer
from holdfast.links.target import HttpTarget, ObjectTarget, Target
from holdfast.links.wire import Generation, Resolved, Wire


class Wants(Protocol):
    """What a new session must be told, and a saved one already knows."""

    ours: Ours
    log_level: str | None
    subscriptions: dict[str, None]


class AuthNeeded(Exception):
    """The greeting met a 401; credentials must be resolved anew."""

    def __init__(self, seen: Seen, error: HoldfastError) -> None:
        super().__init__(error.what)
        self.seen = seen
        self.error = error


class Phases:
    """One link's way up."""

    def __init__(
        self,
        name: str,
        target: Target,
        limits: Limits,
        owner: Owner,
        peer: Peer,
        *,
        era: Era | None,
        principal: Principal,
        memory: Memory | None,
        forgetting: Callable[[str], None],
    ) -> None:
        self.name = name
        self.target = target
        self.limits = limits
        self.peer = peer
        self.memory = memory
        self.credentials = Credentials(name, target)
        self.resolved: Resolved | None = None
        self.wire: Wire | None = None
        self._owner = owner
        self._era = era
        self._principal = principal
        self._forgetting = forgetting
        self._opened_url: str | None = None

    async def resolve(self, refused: Seen | None) -> None:
        """URL and credentials."""
        try:
            async with asyncio.timeout(self.limits.resolve):
                self.resolved = await self.credentials.resolve(refused)
        except TimeoutError as error:
            raise StartTimeout(
                f"URL or headers of {self.name!r} were not resolved within {self.limits.resolve:g} s",
                server=self.name,
                phase="resolve",
            ) from error

    async def open(self) -> bool:
        """A wire to where it was resolved; an open one is kept. True if one was opened."""
        assert self.resolved is not None
        if self.wire is not None and self._opened_url == self.resolved.url:
            return False
        old, self.wire = self.wire, None
        if old is not None:
            await old.close()
        wire = self._make()
        try:
            async with asyncio.timeout(self.limits.start):
                await wire.open(self.resolved)
        except TimeoutError as error:
            await wire.close()
            raise StartTimeout(
                f"{self.name!r} did not open within {self.limits.start:g} s", server=self.name, phase="open"
            ) from error
        except BaseException:
            await wire.close()
            raise
        self.wire, self._opened_url = wire, self.resolved.url
        return True

    def _make(self) -> Wire:
        match self.target:
            case HttpTarget():
                return HttpWire(self.name, self.target, self.limits, self._owner)
            case ObjectTarget():
                channel = LocalChannel(self.name, self.target, self._owner, self.limits.close)
                return DuplexWire(channel, self._owner)

    def drop(self) -> Wire | None:
        """Give the wire away, to be closed."""
        wire, self.wire = self.wire, None
        return wire

    async def greet(self, number: int, old: Generation | None, wants: Wants, inbound: Inbound) -> Generation:
        """A generation: the saved session, if there is one that is not the lost one, else a new greeting."""
        assert self.wire is not None
        kept = await self._load()
        if (adopted := self._adopt(kept, number, old, wants)) is not None:
            return adopted
        generation = await self._greet(number, wants, inbound)
        if self.memory is None or kept is None or self.wire.child:
            return generation
        saved = self.saved(generation, wants)
        try:
            await self.memory.save(saved, kept.token)
        except Conflict:
            # Another link was faster. One session is enough: take theirs, and end the one that nobody knows yet.
            if (adopted := self._adopt(await self._load(), number, old, wants)) is not None:
                self._owner.start(self._end(generation), f"end {self.name}")
                return adopted
        except HoldfastError as error:
            self._forgetting(str(error))
        return generation

    async def _end(self, generation: Generation) -> None:
        await generation.wire.end(generation, self.limits.close)

    def saved(self, generation: Generation, wants: Wants) -> Saved:
        return Saved(
            generation.session,
            generation.greeting,
            wants.ours,
            self._principal,
            wants.log_level,
            tuple(wants.subscriptions),
        )

    async def save(self, generation: Generation, wants: Wants) -> None:
        """What a session was told has changed: keep that too, unless another session stands there by now."""
        if self.memory is None or generation.wire.child:
            return
        try:
            kept = await self.memory.load()
            if kept.saved is not None and kept.saved.session == generation.session:
                await self.memory.save(self.saved(generation, wants), kept.token)
        except HoldfastError as error:
            self._forgetting(str(error))

    async def forget(self) -> None:
        if self.memory is not None:
            try:
                await self.memory.forget()
            except HoldfastError as error:
                self._forgetting(str(error))

    async def _load(self) -> Kept | None:
        if self.memory is None:
            return None
        try:
            return await self.memory.load()
        except HoldfastError as error:
            self._forgetting(str(error))
            return None

    def _adopt(self, kept: Kept | None, number: int, old: Generation | None, wants: Wants) -> Generation | None:
        saved = None if kept is None else kept.saved
        assert self.wire is not None
        assert self.resolved is not None
        if saved is None or self.wire.child or not saved.fits(wants.ours, self._principal, self._era):
            return None
        if old is not None and saved.session == old.session and saved.greeting.era is old.era:
            return None
        greeting = saved.greeting
        generation = Generation(number, greeting.era, greeting.version, greeting, self.wire, saved.session)
        generation.adopted = True
        generation.keeps_state = generation.answered_unsafe = saved.session is not None
        wants.log_level = wants.log_level or saved.log_level
        wants.subscriptions.update(dict.fromkeys(saved.subscriptions))
        self.wire.dress(generation, self.resolved)
        return generation

    async def _greet(self, number: int, wants: Wants, inbound: Inbound) -> Generation:
        assert self.wire is not None
        assert self.resolved is not None
        attempts = 0
        while True:
            attempts += 1
            started = asyncio.get_running_loop().time()
            greeter = Greeter(self.name, self.wire, self.resolved, wants.ours, self.limits, inbound.unexpected, number)
            try:
                generation = await greeter.greet(self._era, self.peer.era)
            except GreetFailed as failure:
                verdict = judge(failure.seen)
                if verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN):
                    self.peer.circuit.failed(started, asyncio.get_running_loop().time())
                error = error_for(self.name, "greeting", "greet", verdict, failure.reply, attempts)
                if verdict is Verdict.AUTH_NEEDED:
                    raise AuthNeeded(failure.seen, error) from None
                at = Circumstances(True, attempts, self.limits.replays, retry_after=failure.seen.retry_after)
                if self.wire.child or decide(verdict, at) is not Step.REPLAY:
                    raise error from None
                await asyncio.sleep(
                    wait_for(verdict, failure.seen.retry_after, attempts, random.random(), base=self.limits.backoff)
                )
                continue
            self.peer.era = generation.era
            self.peer.circuit.succeeded()
            return generation
