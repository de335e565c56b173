"""Calls of a 2026 session whose 2025 server asks in the middle: they wait, and the session gets `input_required`.

It owns the states that name waiting calls. Each is used once, for the request that it was given for, and a call that
nobody comes back for is cancelled after `LIFETIME`.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from holdfast.core.questions import has, request_digest, required
from holdfast.core.values import members
from holdfast.errors import AnswerTimeout, ConnectionLost, ErrorAnswer
from holdfast.links.calls.errors import MAYBE
from holdfast.links.calls.handlers import OnProgress, Params, RawProgress
from holdfast.links.codec import weight
from holdfast.links.crossing.open_questions import OpenQuestions, missing_capability, not_asked
from holdfast.links.crossing.request import SessionRequest
from holdfast.links.crossing.shapes import INVALID_PARAMS

LIFETIME = 600.0  # seconds that a call waits for answers: as long as the SDK's own states are valid
CALLS = 64  # that wait at once
BYTES = 16 * 1024 * 1024  # of their questions and results
CLOSE_SECONDS = 5.0  # for calls to take their cancellation


class WaitingCall:
    """A call that goes on over several requests of its session."""

    def __init__(self, capabilities: Mapping[str, Any], on_progress: OnProgress | None) -> None:
        self.capabilities = capabilities
        self.on_progress = on_progress
        self.lacking: dict[str, Any] | None = None
        """The capability without which a question was refused."""
        self.bytes = 0
        self.questions = OpenQuestions()
        self.task: asyncio.Task[dict[str, Any]] | None = None

    def follow(self) -> OnProgress | None:
        """What to give the server's progress to: it goes to the latest request. None if the first wants none."""
        if self.on_progress is None:
            return None
        return RawProgress(self._pass_raw) if isinstance(self.on_progress, RawProgress) else self._pass_on

    async def _pass_raw(self, params: Mapping[str, Any]) -> None:
        if isinstance(self.on_progress, RawProgress):
            await self.on_progress.take(params)

    async def _pass_on(self, progress: float, total: float | None, message: str | None) -> None:
        if self.on_progress is not None:
            await self.on_progress(progress, total, message)

    async def ask(self, method: str, params: Params) -> dict[str, Any]:
        """Answer a question of the server, once the session has."""
        needed = required(method, params)
        if needed is None:
            raise not_asked(method, "Method not found")
        if not has(self.capabilities, needed):
            self.lacking = needed
            raise not_asked(method, "the client does not support this")
        size = weight(params)
        self.bytes += size
        try:
            return await self.questions.ask(method, params)
        finally:
            self.bytes -= size


class Parked(NamedTuple):
    """A call that waits for its session."""

    call: WaitingCall
    digest: str
    timer: asyncio.TimerHandle


class ParkedCalls:
    """One session's."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._parked: dict[str, Parked] = {}
        self._running: list[WaitingCall] = []

    def __len__(self) -> int:
        return len(self._parked)

    async def run(
        self,
        request: SessionRequest,
        capabilities: Mapping[str, Any],
        work: Callable[[WaitingCall], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Do the work of a call. Returns its result, or what the session is asked before it goes on."""
        call = WaitingCall(capabilities, request.on_progress)

        async def do() -> dict[str, Any]:
            return await work(call)

        call.task = asyncio.get_running_loop().create_task(do(), name=f"call {self._server}")
        self._running.append(call)
        call.task.add_done_callback(lambda _: self._ended(call))
        return await self._go_on(call, request)

    async def resume(self, request: SessionRequest, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        """Take up the call that a retry names, with the answers that it brings."""
        method, params = request.method, request.params
        state: object = params.get("requestState")
        known = self._parked.get(state) if isinstance(state, str) else None
        if known is None or known.digest != request_digest(method, params):
            # Unknown, used, expired, changed, or another request's: all alike.
            raise ErrorAnswer(
                f"{method}: no waiting call has this requestState",
                message="Invalid or expired requestState",
                code=INVALID_PARAMS,
                data={"reason": "invalid_request_state"},
                server=self._server,
            )
        self._parked.pop(str(state))
        known.timer.cancel()
        known.call.capabilities, known.call.on_progress = capabilities, request.on_progress
        known.call.questions.answer(members(params.get("inputResponses")))
        return await self._go_on(known.call, request)

    async def ask(self, method: str, params: Params) -> dict[str, Any]:
        """Answer a question that came on no call's own stream: it goes with the latest call that its session waits for,
        else with the latest that waits for the session. Whichever call it belongs to goes on once it is answered."""
        waiting = {id(known.call) for known in self._parked.values()}
        call = next((call for call in reversed(self._running) if id(call) not in waiting), None)
        if call is None and self._running:
            call = self._running[-1]
        if call is None:
            raise not_asked(method, "no call is under way in which this client can be asked")
        return await call.ask(method, params)

    async def _go_on(self, call: WaitingCall, request: SessionRequest) -> dict[str, Any]:
        method, timeout = request.method, request.timeout
        assert call.task is not None
        try:
            async with asyncio.timeout(timeout):
                await call.questions.settle(call.task)
        except TimeoutError:
            call.task.cancel()
            raise AnswerTimeout(
                f"{method}: {self._server!r} did not answer within {timeout:g} s",
                server=self._server,
                phase="call",
                remedy=MAYBE,
            ) from None
        except asyncio.CancelledError:
            call.task.cancel()
            raise
        if not call.task.done():
            return self._park(call, method, request.params)
        if call.task.cancelled():
            raise ConnectionLost(
                f"{method}: the session with {self._server!r} ended with the call under way",
                server=self._server,
                phase="call",
                remedy=MAYBE,
            )
        error = call.task.exception()
        failed = isinstance(error, ErrorAnswer) or (error is None and call.task.result().get("isError") is True)
        if call.lacking is not None and failed:
            raise missing_capability(method, call.lacking, self._server) from error
        return call.task.result()

    def _park(self, call: WaitingCall, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        assert call.task is not None
        if len(self._parked) >= CALLS or (self._parked and self._held() + call.bytes > BYTES):
            call.task.cancel()
            raise ErrorAnswer(
                f"{method}: {len(self._parked)} calls to {self._server!r} wait for answers",
                message="too many calls wait for answers of this client; answer some of them first",
                code=-32603,
                server=self._server,
            )
        state = secrets.token_urlsafe(32)
        timer = asyncio.get_running_loop().call_later(LIFETIME, self._give_up, state)
        self._parked[state] = Parked(call, request_digest(method, params), timer)
        call.on_progress = None
        questions = call.questions.as_input_requests
        return {"resultType": "input_required", "inputRequests": questions, "requestState": state}

    def _give_up(self, state: str) -> None:
        """The session did not come back: cancel the call at its server."""
        known = self._parked.pop(state)
        assert known.call.task is not None
        known.call.task.cancel()

    def _ended(self, call: WaitingCall) -> None:
        assert call.task is not None
        self._running.remove(call)
        call.questions.end()
        failed = call.task.cancelled() or call.task.exception() is not None  # nobody may ever come back for it
        state = next((state for state, known in self._parked.items() if known.call is call), None)
        if state is None or failed:
            return
        call.bytes += weight(call.task.result())
        if self._held() > BYTES:  # no room to keep the result
            self._parked.pop(state).timer.cancel()

    def _held(self) -> int:
        return sum(known.call.bytes for known in self._parked.values())

    async def close(self) -> None:
        """The session has ended: cancel its calls."""
        for known in self._parked.values():
            known.timer.cancel()
        self._parked.clear()
        tasks = [call.task for call in self._running if call.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
