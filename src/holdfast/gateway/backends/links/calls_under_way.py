"""The calls under way over one link: to which of them belongs what a server sends on no call's own stream."""

from typing import Any

from holdfast.gateway.backends.call_logs import CallLog
from holdfast.gateway.backends.refused_questions import RefusedQuestions
from holdfast.gateway.parking.call import ParkableCall
from holdfast.links.calls.handlers import Params


class CallsUnderWay:
    """The calls of one link, by what each of them takes from its server."""

    __slots__ = ("_logs", "_parkable", "_refused")

    def __init__(self) -> None:
        self._refused: list[RefusedQuestions] = []
        """Of each call."""
        self._parkable: list[ParkableCall] = []
        """Of calls that can wait while their client is asked."""
        self._logs: list[CallLog] = []
        """Of calls whose clients want log messages from a level of their own on."""

    def begin(self, refused: RefusedQuestions, call_log: CallLog | None, parkable: ParkableCall | None) -> None:
        """A call begins."""
        self._refused.append(refused)
        if call_log is not None:
            self._logs.append(call_log)
        if parkable is not None:
            self._parkable.append(parkable)

    def end(self, refused: RefusedQuestions, call_log: CallLog | None, parkable: ParkableCall | None) -> None:
        """The same call is over."""
        self._refused.remove(refused)
        if call_log is not None:
            self._logs.remove(call_log)
        if parkable is not None:
            self._parkable.remove(parkable)

    async def on_question(
        self, method: str, params: Params, id: str | int, server: str, *, has_one_caller: bool
    ) -> dict[str, Any]:
        """Answer a question by the client of the latest call that can wait. Callers who share a link are asked only
        where no other call can be meant. Else it is refused, or the server would wait; that belongs to the call under
        way, if there is one only."""
        if self._parkable and (has_one_caller or len(self._refused) == 1):
            return await self._parkable[-1].ask(method, params, id)
        refused = self._refused[0] if len(self._refused) == 1 else RefusedQuestions(server)
        return await refused.refuse(method, params, id)

    def take_log(self, params: Params, *, has_one_caller: bool) -> bool:
        """Give a log message to the latest call that wants one; of several callers, only where no other call can be
        meant. Returns whether there is one."""
        if not self._logs or not (has_one_caller or len(self._refused) == 1):
            return False
        self._logs[-1].take(params)
        return True
