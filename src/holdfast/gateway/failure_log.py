"""What the operator's log says about failures that callers only see in outline.

It owns which failures have been logged: each kind once until the backend, or the store, has been seen well again, so
that a log shows changes and not calls.
"""

import logging

from holdfast.errors import HoldfastError, NoBackend

log = logging.getLogger("holdfast.gateway")

KINDS = 64  # different failures that are remembered; more than that are logged as they come


class FailureLog:
    """The failures of one backend, or of the gateway itself."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._logged: set[tuple[str, int | None, int | None, int | None]] = set()

    def add(self, error: HoldfastError) -> None:
        """Log a failure with all that is known of it, unless the same kind was logged already."""
        if isinstance(error, NoBackend) and isinstance(error.__cause__, HoldfastError):
            error = error.__cause__  # logged when it was found, and only worded anew for a caller
        key = type(error).__name__, error.status, error.code, error.exit_code
        if key in self._logged:
            return
        if len(self._logged) < KINDS:
            self._logged.add(key)
        log.warning("%s: %s: %s", self._whose, type(error).__name__, error)

    def clear(self) -> None:
        """It is well: whatever fails from here on is news."""
        self._logged.clear()
