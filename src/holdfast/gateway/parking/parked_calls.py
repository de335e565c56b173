"""The parked calls of one gateway process: those that wait for their client's answers, by the state that names them.

It owns which states may still be used, and how long calls wait. A state is used once, by its caller, for its request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

from holdfast.core.eras import INVALID_PARAMS
from holdfast.core.models import Principal
from holdfast.core.questions import request_digest
from holdfast.core.values import members
from holdfast.errors import ConnectionLost, ErrorAnswer, ParkedElsewhere
from holdfast.gateway.calls.request_context import RequestContext
from holdfast.gateway.config.settings import Sessions as Settings
from holdfast.gateway.parking.call import ParkableCall
from holdfast.gateway.parking.places import Places
from holdfast.gateway.parking.record import ParkedRecords, new_state
from holdfast.gateway.process.lifecycle import GatewayLifecycle
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.gateway")

CANCEL_SECONDS = 5.0  # for a call at a server to take its cancellation
Params: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[RequestContext, Params], Awaitable[dict[str, Any]]]


def invalid_state() -> ErrorAnswer:
    """A state that is unknown, used, expired, changed, another caller's or another request's: all alike."""
    return ErrorAnswer(
        "no parked call has this requestState",
        message="Invalid or expired requestState",
        code=INVALID_PARAMS,
        data={"reason": "invalid_request_state"},
    )


class Parked(NamedTuple):
    """A call that waits for its client."""

    call: ParkableCall
    context: RequestContext
    """Of the work."""
    digest: str
    timer: asyncio.TimerHandle


class ParkedCalls:
    """Runs calls that may be parked, parks them, and takes them up again."""

    def __init__(self, store: Store, owner: str, settings: Settings, lifecycle: GatewayLifecycle) -> None:
        self._records = ParkedRecords(store, owner)
        self._lifetime = settings.park
        self._places = Places(settings.parked_per_principal, settings.parked_bytes)
        self._lifecycle = lifecycle
        self._parked: dict[str, Parked] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def places_taken(self) -> int:
        return len(self._places)

    def configure(self, settings: Settings) -> None:
        self._lifetime = settings.park
        self._places.resize(settings.parked_per_principal, settings.parked_bytes)

    async def run(self, context: RequestContext, method: str, params: Params, work: Work) -> dict[str, Any]:
        """Do the work of a call. Returns its result, or what the client is asked before it goes on."""
        call = ParkableCall(context.principal, context.client.capabilities, context.reply_channel, params, self._places)
        inner = replace(context, reply_channel=call.channel, parkable=call)
        call.start(_in_session(inner, params, work))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        return await self._go_on(context, inner, call, lambda: request_digest(method, params))

    async def resume(self, context: RequestContext, method: str, params: Params) -> dict[str, Any]:
        """Take up the call that a retry names, with the answers that it brings."""
        state, digest = str(params["requestState"]), request_digest(method, params)
        responses: object = params.get("inputResponses")
        known = self._parked.get(state)
        if known is None or known.call.principal != context.principal or known.digest != digest:
            if await self._records.was_elsewhere(state, context.principal, digest):
                raise ParkedElsewhere(
                    f"{method}: the call waited for its client at a gateway process that has ended, or at another one",
                    phase="call",
                )
            raise invalid_state()
        if responses is not None and not isinstance(responses, dict):
            raise ErrorAnswer("inputResponses", message="inputResponses is an object", code=INVALID_PARAMS)
        self._unpark(state, known)
        call, inner = known.call, known.context
        token = members(params.get("_meta")).get("progressToken")
        call.resume(context.reply_channel, token, context.client.capabilities)
        call.questions.answer(members(cast("object", responses)))
        return await self._go_on(context, inner, call, lambda: digest)

    async def _go_on(
        self, context: RequestContext, inner: RequestContext, call: ParkableCall, digest: Callable[[], str]
    ) -> dict[str, Any]:
        """Wait for the result, or park the call where its server asks."""
        parked = False
        try:
            await call.settle()
            while not call.is_done:
                state, known = new_state(), digest()
                await self._records.write(state, call.principal, known, self._lifetime)
                if not call.is_done and (questions := call.questions.as_input_requests):
                    self._park(state, call, inner, known)
                    parked = True
                    return {"resultType": "input_required", "inputRequests": questions, "requestState": state}
                self._start(self._records.end(state))  # the server has taken its questions back meanwhile
                await call.settle()
            return self._result(context, inner, call)
        except asyncio.CancelledError:
            call.cancel()
            await call.wait_ended(CANCEL_SECONDS)
            session = inner.session
            if call.is_done and (self._lifecycle.was_cut() or (session is not None and session.was_cut())):
                return self._result(context, inner, call)
            raise
        finally:
            if not parked:
                self._places.release(call, call.principal)

    def _result(self, context: RequestContext, inner: RequestContext, call: ParkableCall) -> dict[str, Any]:
        context.report_as(inner)
        result = call.result()
        if result is None:
            raise ConnectionLost("the call was cut when its session or the gateway ended", phase="call")
        return result

    def _park(self, state: str, call: ParkableCall, inner: RequestContext, digest: str) -> None:
        inner.forget_headers()
        why = f"its client did not answer within {self._lifetime:g} s"
        timer = asyncio.get_running_loop().call_later(self._lifetime, self._give_up, state, why)
        self._parked[state] = Parked(call, inner, digest, timer)
        if inner.session is not None:
            inner.session.parked.add(call.task)
        call.park(lambda: self._ended(call, inner))

    def _unpark(self, state: str, known: Parked) -> None:
        del self._parked[state]
        known.timer.cancel()
        known.call.unpark()
        if known.context.session is not None and not known.call.is_done:
            known.context.session.parked.discard(known.call.task)
        self._start(self._records.end(state))

    def end_refused(self, lets_in: Callable[[Principal], bool]) -> None:
        """Cancel the calls of callers who are let in no longer."""
        for state, known in tuple(self._parked.items()):
            if not lets_in(known.call.principal):
                self._give_up(state, "its caller is let in no longer")

    def _give_up(self, state: str, why: str) -> None:
        """The client did not come back: cancel the call at its server, and free everything."""
        known = self._parked[state]
        log.info("a parked call was cancelled: %s", why)
        self._unpark(state, known)
        known.call.cancel()
        self._places.release(known.call, known.call.principal)

    def _ended(self, call: ParkableCall, inner: RequestContext) -> None:
        """The call ended while its client was away: its result waits, if there is room for it."""
        if inner.session is not None:
            inner.session.parked.discard(call.task)
        over = self._places.take(call, call.principal, call.result_bytes())
        if over is not None:
            log.warning("the result of a parked call was dropped: %s", over)
            call.drop_result(ConnectionLost("the result was too large to be kept for the client", phase="call"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="parked call record")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what is parked. The records stay: the next process answers by them."""
        parked, self._parked = self._parked, {}
        for known in parked.values():
            known.timer.cancel()
            known.call.unpark()
            known.call.cancel()
            self._places.release(known.call, known.call.principal)
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CANCEL_SECONDS)


async def _in_session(context: RequestContext, params: Params, work: Work) -> dict[str, Any]:
    """The work, in its session if the request came in one: it is in use meanwhile."""
    with context.session.calling() if context.session is not None else contextlib.nullcontext():
        return await work(context, params)
