"""The operator's log of failures that callers see in outline only.

Each kind of failure is logged once until the backend, or the store, works again: the log shows changes, not calls.
"""

import logging

from holdfast.errors import HoldfastError, NoBackend

log = logging.getLogger("holdfast.gateway")

KINDS = 64  # different failures that are remembered; further ones are logged each time


class FailureLog:
    """The failures of one backend, or of the gateway itself."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._logged: set[tuple[object, ...]] = set()

    def add(self, error: HoldfastError) -> None:
        """Log a failure with all that is known of it, unless the same kind was logged already."""
        if isinstance(error, NoBackend) and isinstance(error.__cause__, HoldfastError):
            error = error.__cause__  # the error behind it; `NoBackend` only words it for a caller
        key: tuple[object, ...] = type(error).__name__, error.status, error.code, error.exit_code
        if isinstance(error, NoBackend):
            key = (*key, error.kind, error.id)  # which limit was reached, and by which caller
        if key in self._logged:
            return
        if len(self._logged) < KINDS:
            self._logged.add(key)
        log.warning("%s: %s: %s", self._whose, type(error).__name__, error)

    def clear(self) -> None:
        """It works again: log the next failure, whatever its kind."""
        self._logged.clear()
