"""The session state and the caller that tests of sessions use."""

import holdfast
from holdfast.core.models import Principal

ALICE = Principal("alice")


class Basket(holdfast.SessionState):
    items: list[str] = []
    count: int = 0
    note: str = ""
