"""The operator's log of failures that callers see in outline only.

Each kind of failure is logged once until the backend, or the store, works again: the log shows changes, not calls. What
shows nothing of other callers is logged once until that caller succeeds.
"""

import logging

from holdfast.core.models import Principal
from holdfast.errors import CircuitOpen, HoldfastError, NoBackend

log = logging.getLogger("holdfast.gateway")

KINDS = 64  # different failures that are remembered; further ones are logged each time
CALLERS = 1024  # failures of single callers that are remembered; the oldest gives way


class FailureLog:
    """The failures of one backend, or of the gateway itself."""

    def __init__(self, whose: str, backend: str | None = None) -> None:
        self._whose = whose
        self._backend = backend
        self._logged: set[tuple[object, ...]] = set()
        self._of_callers: dict[tuple[Principal, tuple[object, ...]], None] = {}

    def add(self, error: HoldfastError, caller: Principal | None = None) -> None:
        """Log a failure with all that is known of it, unless the same kind was logged already, for all callers or as
        this caller's own."""
        error, kind = _kind_of(error)
        if isinstance(error, CircuitOpen) and self._logged:
            return  # it follows from the failures that were logged
        if kind in self._logged or (caller is not None and (caller, kind) in self._of_callers):
            return
        if len(self._logged) < KINDS:
            self._logged.add(kind)
        self._log(error)

    def add_own(self, error: HoldfastError, caller: Principal) -> None:
        """Log a failure that shows nothing of other callers, unless this caller's was logged already."""
        error, kind = _kind_of(error)
        if (caller, kind) in self._of_callers:
            return
        self._of_callers[caller, kind] = None
        if len(self._of_callers) > CALLERS:
            del self._of_callers[next(iter(self._of_callers))]
        if kind not in self._logged:
            self._log(error)

    def _log(self, error: HoldfastError) -> None:
        kind = type(error).__name__
        log.warning("%s: %s: %s", self._whose, kind, error, extra={"backend": self._backend, "error": kind})

    def clear(self, caller: Principal | None = None) -> None:
        """Log the next failure, whatever its kind: it works again, for this caller if there is one."""
        self._logged.clear()
        if caller is not None and self._of_callers:
            self._of_callers = {each: None for each in self._of_callers if each[0] != caller}


def _kind_of(error: HoldfastError) -> tuple[HoldfastError, tuple[object, ...]]:
    """The error that is logged, and what makes two failures the same."""
    if isinstance(error, NoBackend) and isinstance(error.__cause__, HoldfastError):
        error = error.__cause__  # the error behind it; `NoBackend` is only its form for a caller
    kind: tuple[object, ...] = type(error).__name__, error.status, error.code, error.exit_code
    if isinstance(error, NoBackend):
        kind = (*kind, error.kind, error.id)  # which limit was reached, and by which caller
    return error, kind
