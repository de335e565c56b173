"""How many calls a caller may make: each has a bucket of tokens, which fills at a steady rate."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from holdfast.core.models import Principal
from holdfast.gateway.config.settings import ClientLimits

CALLERS = 10_000  # whose buckets are kept; one that was not used for long is full, and needs no bucket


class CallRates:
    """The rates of one gateway process's callers."""

    def __init__(self, limits: Callable[[], ClientLimits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[Principal, tuple[float, float]] = OrderedDict()
        """Tokens, and since when there are so many."""

    def take(self, principal: Principal, calls: int = 1) -> float | None:
        """Take tokens for calls. None if there were enough; else none is taken, and there are after so many seconds."""
        limits = self._limits()
        rate = limits.calls_per_second
        if rate is None:
            return None
        burst = float(limits.burst) if limits.burst is not None else max(1.0, math.ceil(rate))
        now = self._clock()
        tokens, since = self._buckets.get(principal, (burst, now))
        tokens = min(burst, tokens + (now - since) * rate)
        wanted = min(float(calls), burst)  # a batch that is larger than the bucket must be possible, too
        enough = tokens >= wanted
        self._buckets[principal] = (tokens - wanted if enough else tokens, now)
        self._buckets.move_to_end(principal)
        while len(self._buckets) > CALLERS:
            self._buckets.popitem(last=False)
        return None if enough else (wanted - tokens) / rate
