"""Checks a server with sessions: `report = await server_doctor(ServerUnderTest(…)); report.raise_if_ill()`.

It uses real processes over HTTP, in both eras. Checks that can't be made are skipped, with the reason in the report.
"""

import asyncio
import random
import string
import textwrap
import time
import warnings
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from holdfast.testing.server_under_test import (
    Answer,
    Client,
    Credential,
    EraName,
    Expiry,
    Outcome,
    Replica,
    ServerUnderTest,
    ToolCall,
    running,
)

PARALLEL = 20
SEEN_WIDTH = 78  # columns for observations
RETRY_SECONDS = 0.2  # seconds between two tries to write after a restart
SHORT = 12  # characters: a changed handle that is shorter may be another valid one
ODD_HANDLES: dict[str, object] = {
    "control characters": "\x00\x01\n\r\t\x1b[31m\x7f",
    "10 KB": "x" * 10_240,
    "JSON as text": '{"session_id": "x", "$ne": null}',
    "a path": "../../../../etc/passwd",
    "a quote": "x' OR '1'='1",
    "a template": "{0.__class__} %s %n ${x}",
    "other scripts": "ﷺ‮𝔰é",
    "a number": 7,
    "a list": ["x"],
    "an object": {"session_id": "x"},
}


class Verdict(Enum):
    """The verdict of a check."""

    WELL = "well"
    ILL = "ILL"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check in one era."""

    check: str
    era: str
    verdict: Verdict
    seen: str
    """What was observed, or why the check was skipped."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings; `str(report)` is a table."""

    findings: tuple[Finding, ...]

    @property
    def ill(self) -> tuple[Finding, ...]:
        """The findings of failed checks."""
        return self._with(Verdict.ILL)

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """The findings of skipped checks."""
        return self._with(Verdict.SKIPPED)

    @property
    def unchecked(self) -> str:
        """What could not be checked and why, each reason once; empty if all was."""
        reasons: dict[str, dict[str, None]] = {}
        for each in self.skipped:
            reasons.setdefault(each.seen, {})[each.check] = None
        return "; ".join(f"not checked: {', '.join(checks)}: {why}" for why, checks in reasons.items())

    def _with(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.verdict is verdict)

    def raise_if_ill(self) -> None:
        """Raise `AssertionError` with the whole table if a check failed. What could not be checked is an
        `UncheckedWarning`, which pytest lists at the end."""
        __tracebackhide__ = True
        if self.ill:
            names = ", ".join(dict.fromkeys(each.check for each in self.ill))
            raise AssertionError(f"the server failed checks: {names}\n\n{self}")
        if self.skipped:
            warnings.warn(UncheckedWarning(self.unchecked), stacklevel=2)

    def __str__(self) -> str:
        head = ("check", "era", "verdict", "observation, → what to do")
        rows = [(each.check, each.era, each.verdict.value) for each in self.findings]
        widths = [max(len(row[column]) for row in (head[:3], *rows)) for column in range(3)]
        lines = [_line(head[:3], widths, head[3]), _line(["-" * width for width in widths], widths, "-" * SEEN_WIDTH)]
        for row, finding in zip(rows, self.findings, strict=True):
            said = textwrap.wrap(finding.seen, SEEN_WIDTH) or [""]
            if finding.remedy:
                said += textwrap.wrap(f"→ {finding.remedy}", SEEN_WIDTH, subsequent_indent="  ")
            lines += [
                _line(row if number == 0 else ("", "", ""), widths, each).rstrip() for number, each in enumerate(said)
            ]
        return "\n".join(lines)


def _line(cells: "tuple[str, ...] | list[str]", widths: list[int], last: str) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), last])


class UncheckedWarning(UserWarning):
    """The doctor could not check everything; the text says what, and what it would have needed."""


class _Ill(Exception):
    """A check failed; the text is the observation."""


class _Skip(Exception):
    """A check was skipped; the text is the reason."""


class _Patient:
    """Clients of the server's replicas in one era."""

    def __init__(self, server: ServerUnderTest, era: EraName, rest: AsyncExitStack) -> None:
        self.server = server
        self.era: EraName = era
        self.ill: set[str] = set()
        self._rest = rest

    def introduce(self, one: Replica, other: Replica, brief: Replica | None = None) -> None:
        mine, theirs = self.server.credentials or (None, None)
        self.here = self.client(one, mine)
        self.there = self.client(other, mine)
        self.stranger = self.client(one, theirs) if theirs is not None else None
        self.brief = self.client(brief, mine) if brief is not None else None

    def client(self, replica: Replica, credential: Credential | None) -> Client:
        made = Client(self.server, replica, self.era, credential)
        self._rest.push_async_callback(made.close)
        return made

    async def begin(self, client: Client) -> str:
        answer = await client.call(self.server.create)
        if not answer.done:
            raise _Ill(f"a session could not be begun: {answer}")
        handle = self.server.handle_in(answer.value)
        if handle is None:
            raise _Ill(f"no handle in the answer to create ({answer.words[:120]!r})")
        return handle

    async def write(self, client: Client, handle: str, number: int, where: str) -> None:
        answer = await client.call(self.server.write(number), handle)
        if not answer.done:
            raise _Ill(f"{where}, write {number}: {answer}")

    async def shown(self, client: Client, handle: str, where: str) -> int:
        """The number of writes that the state shows."""
        answer = await client.call(self.server.read, handle)
        if not answer.done:
            raise _Ill(f"{where}, read: {answer}")
        try:
            return self.server.count(answer.value)
        except Exception as error:  # the author's own code, called with a state that may be incomplete
            what = f"{type(error).__name__}: {error}"[:120]
            raise _Ill(f"{where}, count raised an error for what was read ({what}): {answer.words[:120]}") from None

    def steps(self, number: int) -> list[tuple[str, "str | ToolCall"]]:
        """All operations on a session, by name."""
        found: list[tuple[str, str | ToolCall]] = [("read", self.server.read), ("write", self.server.write(number))]
        return [*found, ("end", self.server.end)] if self.server.end is not None else found


# Checks: they return the observation


async def _one_session(patient: _Patient) -> str:
    handle = await patient.begin(patient.here)
    other = await patient.begin(patient.here)
    if other == handle:
        raise _Ill("two sessions have the same handle")
    for number in range(2):
        await patient.write(patient.here, handle, number, "one replica")
    counts = [await patient.shown(patient.here, each, "one replica") for each in (handle, other)]
    if counts != [2, 0]:
        raise _Ill(f"after two writes to one session and none to another, they show {counts[0]} and {counts[1]}")
    return "two writes to one session are visible in it and not in another one"


async def _two_replicas(patient: _Patient) -> str:
    handle = await patient.begin(patient.here)
    await patient.write(patient.here, handle, 0, "the first replica")
    places = (("the second replica", patient.there), ("the first replica", patient.here))
    for number, (where, client) in enumerate(places, 1):
        count = await patient.shown(client, handle, where)
        if count != number:
            raise _Ill(f"{number} written so far, and {where} shows {count}")
        await patient.write(client, handle, number, where)
    return "each replica continues the session of the other"


async def _parallel(patient: _Patient, *clients: Client) -> str:
    handle = await patient.begin(clients[0])
    calls = [clients[number % len(clients)].call(patient.server.write(number), handle) for number in range(PARALLEL)]
    answers = await asyncio.gather(*calls)
    of = {outcome: [each for each in answers if each.outcome is outcome] for outcome in Outcome}
    done, silent = len(of[Outcome.DONE]), len(of[Outcome.NO_ANSWER])
    count = await patient.shown(clients[-1], handle, f"after {PARALLEL} parallel writes")
    seen = f"of {PARALLEL} writes at once {done} were answered without error, and the state shows {count}"
    others = of[Outcome.REFUSED] + of[Outcome.NO_ANSWER]
    if others:
        seen += f" ({len(of[Outcome.REFUSED])} refused, {silent} without an answer, such as: {others[0]})"
    if not done:
        raise _Ill(seen)
    if count < done:
        raise _Ill(f"{seen}: {done - count} lost")
    if count > done + silent:
        raise _Ill(f"{seen}: {count - done} more than was answered")
    return seen


async def _parallel_here(patient: _Patient) -> str:
    return await _parallel(patient, patient.here)


async def _parallel_on_two(patient: _Patient) -> str:
    if "two replicas" in patient.ill:
        raise _Skip("a session is not the same on two replicas")
    return await _parallel(patient, patient.here, patient.there)


async def _unknown(patient: _Patient) -> str:
    unknown = like(await patient.begin(patient.here))
    wrong: list[str] = []
    words = ""
    for name, call in patient.steps(0):
        answer = await patient.here.call(call, unknown)
        words = words or answer.words
        if not answer.refused:
            wrong.append(f"{name} was {answer}")
    if wrong:
        raise _Ill(f"a handle that was never given out: {'; '.join(wrong)}")
    return f"refused: {words[:120]}"


async def _ended(patient: _Patient) -> str:
    if patient.server.end is None:
        raise _Skip("no tool that ends a session was given (end=…)")
    handle = await patient.begin(patient.here)
    await patient.write(patient.here, handle, 0, "before its end")
    answer = await patient.here.call(patient.server.end, handle)
    if not answer.done:
        raise _Ill(f"ending it: {answer}")
    wrong: list[str] = []
    for where, client in (("the first replica", patient.here), ("the second replica", patient.there)):
        # The write comes first: the read shows whether it brought the session back.
        for name, call in (("write", patient.server.write(1)), ("read", patient.server.read)):
            answer = await client.call(call, handle)
            if not answer.refused:
                wrong.append(f"{name} on {where} was {answer}")
    if wrong:
        raise _Ill(f"after its end: {'; '.join(wrong)}")
    return f"refused on both replicas: {answer.words[:120]}"


async def _expired(patient: _Patient) -> str:
    expiry = patient.server.expiry
    if expiry is None:
        raise _Skip("no way to make a session expire was given (expiry=Expiry(env={…}, seconds=…) or a function)")
    client = patient.brief or patient.here
    handle = await patient.begin(client)
    await patient.write(client, handle, 0, "before it expired")
    if isinstance(expiry, Expiry):
        await asyncio.sleep(expiry.seconds)
    else:
        await expiry(handle)
    unknown = like(handle)
    words = ""
    for name, call in patient.steps(1)[:2]:
        answer, strange = await client.call(call, handle), await client.call(call, unknown)
        words = words or answer.words
        if not answer.refused:
            raise _Ill(f"the {name} of an expired session was {answer}")
        if answer.without(handle) == strange.without(unknown):
            raise _Ill(f"its owner gets the same answer as for an unknown handle: {answer.words[:120]}")
    return f"its owner gets: {words[:120]}"


async def _foreign(patient: _Patient) -> str:
    stranger = patient.stranger
    if stranger is None:
        raise _Skip("no credentials of two principals were given (credentials=(…, …))")
    handle = await patient.begin(patient.here)
    unknown = like(handle)
    await patient.write(patient.here, handle, 0, "its owner")
    words = await _alike(patient, stranger, handle, unknown, "another principal's session")
    count = await patient.shown(patient.here, handle, "its owner, after another principal's calls")
    if count != 1:
        raise _Ill(f"after another principal's calls its owner reads {count} writes instead of 1")
    if patient.server.end is not None:
        await patient.here.call(patient.server.end, handle)
        await _alike(patient, stranger, handle, unknown, "another principal's ended session")
    return f"answered exactly like an unknown one: {words[:120]}"


async def _alike(patient: _Patient, stranger: Client, handle: str, unknown: str, what: str) -> str:
    words = ""
    for name, call in patient.steps(1):
        answer, strange = await stranger.call(call, handle), await stranger.call(call, unknown)
        words = words or answer.words
        if answer.outcome is Outcome.NO_ANSWER or answer.without(handle) != strange.without(unknown):
            raise _Ill(f"{name} of {what} was {answer}; of an unknown one, {strange}")
        if answer.done:
            raise _Ill(f"{name} of {what} was {answer}")
    return words


async def _odd(patient: _Patient) -> str:
    handle = await patient.begin(patient.here)
    await patient.write(patient.here, handle, 0, "before odd handles")
    wrong: list[str] = []
    for what, odd in ODD_HANDLES.items():
        for name, call in patient.steps(1)[:2]:
            answer = await patient.here.call(call, odd)
            if not answer.refused:
                wrong.append(f"{name} with {what} was {answer}")
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise _Ill(f"{'; '.join(wrong[:3])}{more}")
    count = await patient.shown(patient.here, handle, "after odd handles")
    if count != 1:
        raise _Ill(f"after writes with odd handles, a session with 1 write shows {count}")
    return f"{len(ODD_HANDLES)} odd ones refused: {', '.join(ODD_HANDLES)}"


async def _other_era(patients: list[_Patient]) -> str:
    if len(patients) != 2:
        raise _Skip("the server is checked in one era only (eras=…)")
    patient, later = patients
    if ONE in later.ill:
        raise _Skip(f"a single session failed in {later.era}")
    handle = await patient.begin(patient.here)
    await patient.write(patient.here, handle, 0, patient.era)
    await patient.write(later.here, handle, 1, later.era)
    count = await patient.shown(patient.here, handle, patient.era)
    if count != 2:
        raise _Ill(f"written once in each era, and it shows {count}")
    return "clients of both eras can use the same session"


# The restart: one kill for all eras, because a start takes seconds


@dataclass
class _Turn:
    """A session of one era whose server is killed during a call."""

    patient: _Patient
    handle: str
    seconds: float
    """Measure the duration of such a call."""

    async def cut(self) -> Answer:
        """Make the call during which the server is killed."""
        slow = self.patient.server.slow or self.patient.server.write
        return await self.patient.here.call(slow(2), self.handle)

    async def after(self, cut: Answer, replica: Replica) -> str:
        """Check the session on the replacement of the killed replica."""
        client = self.patient.client(replica, (self.patient.server.credentials or (None,))[0])
        seen = f"killed half-way into a write that takes {self.seconds * 1000:.0f} ms, which got "
        seen += {Outcome.NO_ANSWER: "no answer", Outcome.DONE: "its answer before"}.get(cut.outcome, str(cut))
        allowed = {Outcome.DONE: (3,), Outcome.REFUSED: (2,), Outcome.NO_ANSWER: (2, 3)}[cut.outcome]
        count = await self.patient.shown(client, self.handle, f"{seen}; after the restart")
        if count not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise _Ill(f"{seen}; after the restart the state shows {count} writes instead of {wanted}")
        waited = await self._go_on(client, seen)
        again = await self.patient.shown(client, self.handle, "after going on")
        if again != count + 1:
            raise _Ill(f"{seen}; one more write after the restart made {again} of {count}")
        return f"{seen}; then {count} of 3 writes are there, and the session went on after {waited:.1f} s"

    async def _go_on(self, client: Client, seen: str) -> float:
        began = time.monotonic()
        while True:
            answer = await client.call(self.patient.server.write(3), self.handle)
            waited = time.monotonic() - began
            if answer.done:
                return waited
            # An interrupted turn may hold the session a little longer.
            if waited > self.patient.server.recovery_seconds:
                raise _Ill(f"{seen}; for {waited:.1f} s after the restart it could not be written: {answer}")
            await asyncio.sleep(RETRY_SECONDS)


async def _turn(patient: _Patient) -> _Turn:
    slow = patient.server.slow or patient.server.write
    handle = await patient.begin(patient.here)
    took: list[float] = []
    for number in range(2):
        began = time.monotonic()
        answer = await patient.here.call(slow(number), handle)
        took.append(time.monotonic() - began)
        if not answer.done:
            raise _Ill(f"before the restart, write {number}: {answer}")
    return _Turn(patient, handle, min(took))


# The doctor

_Run: TypeAlias = Callable[[_Patient], Coroutine[Any, Any, str]]
ONE = "one session"
RESTART = "restart in mid-turn"
OTHER_ERA = "other era"
EXPIRED = "expired handle"
REMEDIES = {
    ONE: "answer create with a new handle under the argument's name (or give handle=…), and store all writes to it",
    "two replicas": "keep sessions in a store that all replicas share, not in the process: Sessions(State, store=…)",
    "parallel calls": "read, change and write in one step, as session.update(…) or a transaction does",
    "parallel calls on two replicas": "locks of one process are not enough: compare and swap in the store, "
    "as session.update(…) does",
    RESTART: "store a turn in one commit before answering it: session.edit() or session.update(…)",
    "unknown handle": "refuse an unknown handle, say how to begin a session, and create nothing",
    "foreign handle": "look handles up among the sessions of the authenticated principal, and answer as for an "
    "unknown one; if it already does, check that the credentials are of two principals",
    "ended handle": "mark ended sessions in the store, and refuse every later read and write",
    EXPIRED: "keep expired sessions for a while, refuse their use, and answer to their owner that they expired",
    "odd handles": "look a handle up before it is used in a path, a query or a log line",
    OTHER_ERA: "find a session by its handle, not by the connection",
}
_CHECKS: dict[str, _Run] = {
    "two replicas": _two_replicas,
    "parallel calls": _parallel_here,
    "parallel calls on two replicas": _parallel_on_two,
    "unknown handle": _unknown,
    "foreign handle": _foreign,
    "ended handle": _ended,
    "odd handles": _odd,  # the last: it may be the server's last
}


async def server_doctor(server: ServerUnderTest) -> Report:
    """Start the server's replicas, check them in each era, kill one, and report.
    Raises `StartTimeout` if none starts.
    """
    one, other = Replica(server), Replica(server)
    brief = Replica(server, server.expiry.env) if isinstance(server.expiry, Expiry) else None
    replicas = (one, other) if brief is None else (one, other, brief)
    findings: list[Finding] = []
    async with running(*replicas), AsyncExitStack() as rest:
        patients = [_Patient(server, era, rest) for era in server.eras]
        async with asyncio.TaskGroup() as meanwhile:
            for patient in patients:
                patient.introduce(*replicas)
                await _look(findings, patient, ONE, _one_session(patient))
                meanwhile.create_task(_look(findings, patient, EXPIRED, _expired(patient)))
            for patient in patients:
                for name, check in _CHECKS.items():
                    await _look(findings, patient, name, check(patient))
                for replica in replicas:
                    if not await replica.listens():  # the cause is in the findings; continue with the other checks
                        await replica.kill()
                        await replica.start()
                for each in patients:
                    each.introduce(*replicas)
        await _look(findings, patients[0], OTHER_ERA, _other_era(patients), "+".join(server.eras))
        await _restart(findings, patients, one)
    order = list(REMEDIES)
    return Report(tuple(sorted(findings, key=lambda each: (order.index(each.check), each.era))))


async def _restart(findings: list[Finding], patients: list[_Patient], replica: Replica) -> None:
    turns: list[_Turn] = []

    async def begin(patient: _Patient) -> str:
        turns.append(await _turn(patient))
        return ""

    for patient in patients:
        await _look(findings, patient, RESTART, begin(patient))
    if not turns:
        return
    under_way = [asyncio.create_task(turn.cut()) for turn in turns]
    await asyncio.sleep(min(turn.seconds for turn in turns) / 2)
    await replica.kill()
    cuts = await asyncio.gather(*under_way)
    await replica.start()
    for turn, cut in zip(turns, cuts, strict=True):
        await _look(findings, turn.patient, RESTART, turn.after(cut, replica))


async def _look(
    findings: list[Finding], patient: _Patient, check: str, looking: Coroutine[Any, Any, str], era: str | None = None
) -> None:
    """Run one check and add its finding."""
    where = era or patient.era
    try:
        if ONE in patient.ill:
            looking.close()
            raise _Skip("a single session failed already")
        seen = await looking
        if seen:
            findings.append(Finding(check, where, Verdict.WELL, seen))
    except _Skip as reason:
        findings.append(Finding(check, where, Verdict.SKIPPED, str(reason)))
    except _Ill as illness:
        patient.ill.add(check)
        findings.append(Finding(check, where, Verdict.ILL, str(illness), REMEDIES[check]))


def like(handle: str) -> str:
    """An unknown handle of the same form, with a different second half."""
    odds = random.SystemRandom()
    kinds = [string.digits, string.ascii_lowercase, string.ascii_uppercase]
    kinds = [kind[:6] if not kind.isdigit() and not set(kind[6:]) & set(handle) else kind for kind in kinds]

    def other(character: str) -> str:
        return next((odds.choice(kind) for kind in kinds if character in kind), character)

    half = len(handle) // 2
    more = "" if len(handle) >= SHORT else "".join(odds.choices(string.digits, k=SHORT))
    while True:
        made = handle[:half] + "".join(other(character) for character in handle[half:]) + more
        if made != handle:
            return made
