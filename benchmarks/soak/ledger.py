"""What was asked, answered and executed, and whether the three agree."""

import errno
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.gateway import Gateway
from benchmarks.soak.settings import ANY, ERROR, EXAMPLES, IDLE, KEEPS, TOUCHED


@dataclass
class Call:
    """One tool call. Backends that count effects get its id."""

    id: str
    backend: str
    tool: str
    arguments: dict[str, str]
    began: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.backend}__{self.tool}"


@dataclass
class Holding:
    """What one session must keep, as its client sees it: the last number from each backend."""

    label: str
    last: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEEPS, 0))
    late: Counter[str] = field(default_factory=Counter[str])
    """Calls of unknown outcome: each may be executed after calls that were made later."""
    used: float = field(default_factory=time.monotonic)

    @property
    def is_live(self) -> bool:
        """Used so recently that the gateway may not have ended it, however long it was down."""
        return time.monotonic() - self.used < IDLE - TOUCHED


class Ledger:
    """What is known about every call."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.calls: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.told: dict[str, str] = {}
        """By call: `done`, `not done` or `unknown`."""
        self.faults: dict[str, list[str]] = {"wrong": [], "silent": [], "untyped": [], "double": []}
        self.counts: Counter[str] = Counter()
        self._ids = itertools.count(1)

    def fault(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if len(self.faults[kind]) < EXAMPLES:
            self.faults[kind].append(text)

    def new(self, label: str, stateful: bool, notes: bool) -> Call:
        """A random call."""
        backend = random.choices(("a", "b", "sdk", "notes"), (6, 3, 3, 1.5 if notes else 0))[0]
        id = f"{backend}-{next(self._ids)}"
        if backend == "notes":
            if random.random() < 0.3:
                return Call(id, backend, "read", {})
            return Call(id, backend, "write", {"text": f"{label}/{id}"})
        tool = random.choices(("echo", "effect", "count"), (3, 2, 4 if backend != "b" else 0))[0]
        if not stateful and tool == "count" and random.random() < 0.7:
            tool = "effect"
        arguments = {"call": id, **({"text": f"{label} says {id}"} if tool == "echo" else {})}
        return Call(id, backend, tool, arguments)

    def sent(self, kind: str, call: Call) -> None:
        self.calls[kind] += 1
        call.began = time.monotonic()
        self.told[call.id] = "unknown"

    def unknown(self, call: Call, holding: Holding | None) -> None:
        """The call may have been executed, and its effects may be lost since."""
        if holding is not None and call.backend in holding.last:
            holding.last[call.backend] = ANY
            holding.late[call.backend] += call.tool in ("count", "write")

    def answered(
        self,
        kind: str,
        call: Call,
        holding: Holding | None,
        texts: list[str],
        is_error: bool,
        meta: Mapping[str, Any] | None,
    ) -> None:
        if is_error:
            error = (meta or {}).get(ERROR)
            family = error.get("family") if isinstance(error, dict) else None
            if family is None:
                self.fault("untyped", f"{kind}: {call.name}: a tool error without a family: {texts} {meta}")
                self.unknown(call, holding)
                return
            self.failed(call, holding, str(family), str(error.get("kind")))
            return
        self.outcomes["ok"] += 1
        self.told[call.id] = "done"
        if holding is not None:
            holding.used = call.began
        wrong = self._wrong(call, holding, texts)
        if wrong is not None:
            self.fault(wrong[0], f"{kind}: {call.name} {call.arguments}: {wrong[1]}; it answered {texts}")

    def failed(self, call: Call, holding: Holding | None, family: str, kind: str) -> None:
        self.outcomes[f"{family}: {kind}"] += 1
        if family == "OutcomeUnknown":
            self.unknown(call, holding)
            return
        self.told[call.id] = "not done"
        if kind == "SessionReplaced" and holding is not None and call.backend in holding.last:
            holding.last[call.backend] = 0
            holding.late[call.backend] = 0

    def _wrong(self, call: Call, holding: Holding | None, texts: list[str]) -> tuple[str, str] | None:
        first = texts[0] if texts else ""
        if call.tool == "echo":
            return None if first == call.arguments["text"] else ("wrong", "not its text")
        if call.tool == "effect":
            return None if first == "" else ("wrong", "not its answer")
        if call.tool == "read":
            own = f"{holding.label}/" if holding is not None else "nobody/"
            if len(set(texts)) < len(texts):
                return "double", "a note stands there twice"
            return None if all(text.startswith(own) for text in texts) else ("wrong", "another's notes")
        digits = first.removeprefix("noted, ").removesuffix(" so far")
        if not digits.isdigit():
            return "wrong", "not a number"
        number = int(digits)
        if holding is None:
            return None if number == 1 else ("wrong", "a call of its own met another's session")
        last, holding.last[call.backend] = holding.last[call.backend], number
        if last == ANY or last < number <= last + 1 + holding.late[call.backend]:
            return None
        return ("silent" if number <= last else "wrong"), f"the last was {last}"

    def disconnected(self, kind: str, call: Call | None, holding: Holding | None, since: float, error: object) -> None:
        """A connection may fail only while the gateway is down."""
        if call is not None:
            if _refused(error):
                self.told[call.id] = "not done"
            else:
                self.unknown(call, holding)
        if self.gateway.was_down(since):
            self.outcomes["no connection, the gateway was down"] += 1
        else:
            name = call.name if call is not None else "begin"
            self.fault("untyped", f"{kind}: {name}: the gateway was up, and {error!r}")

    def refused(self, kind: str, call: Call | None, status: int, body: object, lost: bool) -> None:
        """An HTTP status instead of an answer. `lost`: the session was in use a moment ago."""
        if call is not None:
            self.told[call.id] = "not done"
        if status == 404:
            self.outcomes["404, session over"] += 1
            if lost:
                self.fault("silent", f"{kind}: a session that was in use is not found: {body!r:.500}")
        elif status == 503:
            self.outcomes["503"] += 1
        else:
            self.fault("untyped", f"{kind}: {call.name if call else 'begin'}: HTTP {status}: {body!r:.2000}")

    def compare(self, effects: Mapping[str, int]) -> None:
        """Compare what callers were told with what was executed."""
        for id, count in effects.items():
            if count > 1:
                self.fault("double", f"{id} was told as {self.told.get(id)}, and happened {count} times")
        for id, told in self.told.items():
            if id.startswith("notes"):
                continue
            if told == "done" and not effects.get(id):
                self.fault("wrong", f"{id} was answered, and never happened")
            if told == "not done" and effects.get(id):
                self.fault("wrong", f"{id} was told as not executed, and happened")


def _refused(error: object) -> bool:
    """Whether the connection was refused, so that nothing was sent."""
    own = getattr(error, "os_error", error)
    return isinstance(own, OSError) and own.errno == errno.ECONNREFUSED
