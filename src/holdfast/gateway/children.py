"""How many programs a gateway process may run, for all backends together. It owns the count."""

from holdfast.errors import NoBackend


class Children:
    """How many child processes the gateway may have."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def take(self, backend: str) -> None:
        if self.count >= self.limit:
            raise NoBackend(
                f"backend {backend!r} needs a child process, and {self.count} of {self.limit} run",
                server=backend,
                phase="start",
                remedy="end sessions that are done, or raise sessions.children",
            )
        self.count += 1

    def give(self) -> None:
        self.count -= 1
