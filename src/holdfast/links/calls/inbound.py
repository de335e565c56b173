"""Handling of messages that are not the answer to a call: requests, notifications, progress, stray answers.

It routes them to handlers and owns the tasks that answer. An error of a handler is sent to the server as a JSON-RPC
error and affects no call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from holdfast.core.disclosure import rpc_error
from holdfast.core.eras import METHOD_NOT_FOUND, SUBSCRIPTION_ID
from holdfast.errors import ErrorAnswer, HoldfastError
from holdfast.links.background import BackgroundTasks, cancelling
from holdfast.links.calls.handlers import CallHandlers, OnNotification, OnProgress, OnRequest, Params, RawProgress
from holdfast.links.codec import weight
from holdfast.links.reporter import LinkReporter
from holdfast.links.wires.base import Generation, Message, Patience, Receive

INTERNAL_ERROR = -32603
ANSWERS = 64  # answers of ours in progress at once
ANSWERS_BYTES = 16 * 1024 * 1024  # of the requests being answered, or one larger: a person may take minutes for each
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class Inbound:
    """The receiving side of one link."""

    def __init__(self, background: BackgroundTasks, reporter: LinkReporter, deliver_seconds: float) -> None:
        self._background = background
        self._reporter = reporter
        self._deliver_seconds = deliver_seconds
        self._on_request: OnRequest | None = None
        self._on_notification: OnNotification | None = None
        self._progress: dict[str | int, OnProgress] = {}
        self._acknowledged: dict[str | int, tuple[Callable[[Mapping[str, Any]], None], Patience]] = {}
        self._answering: dict[str | int, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}  # a server may give many requests one id
        self._bytes = 0
        self._calls: set[Patience] = set()
        self._aside = 0
        """The number of questions in progress that came outside any call's own stream."""

    def handle(self, on_request: OnRequest | None, on_notification: OnNotification | None) -> None:
        """Replace the link's handlers."""
        self._on_request, self._on_notification = on_request, on_notification

    def begin(self, id: str | int, patience: Patience, on_progress: OnProgress | None) -> None:
        """Register a call: a question that arrives meanwhile, outside any call's own stream, may belong to it."""
        patience.begin(self._aside)
        self._calls.add(patience)
        if on_progress is not None:
            self._progress[id] = on_progress

    def end(self, id: str | int, patience: Patience) -> None:
        """Unregister a call that has ended."""
        self._calls.discard(patience)
        self._progress.pop(id, None)

    @contextmanager
    def acknowledging(
        self, id: str, acknowledged: Callable[[Mapping[str, Any]], None], patience: Patience
    ) -> Generator[None, None, None]:
        """Inside, the acknowledgement of the subscription of request `id` goes to `acknowledged`, and the server may
        end it by a notification alone."""
        self._acknowledged[id] = acknowledged, patience
        try:
            yield
        finally:
            del self._acknowledged[id]

    def receiver(
        self, generation: Generation, handlers: CallHandlers | None = None, patience: Patience | None = None
    ) -> Callable[[Message], Awaitable[None]]:
        """The receiver of messages of one generation;
        answers to them are sent over its wire. `patience` is that of the call on whose own stream they come.
        """

        async def receive(message: Message) -> None:
            try:
                await self._receive(generation, message, handlers, patience)
                if handlers is not None and handlers.keep_up is not None:
                    await handlers.keep_up()
            except Exception as error:  # whatever a server sends, its stream continues
                self._reporter.strayed(f"a message could not be handled: {error!r:.200}")

        return receive

    def during_handshake(self, answer: Callable[[Message], Awaitable[object]]) -> Receive:
        """The receiver of messages before the handshake is done:
        a server may send notifications and pings, and nothing else.
        """

        async def receive(message: Message) -> None:
            method = message.get("method")
            if isinstance(method, str) and "id" not in message:
                self.hand_on(method, message.get("params"))
            elif method == "ping":
                await answer({"jsonrpc": "2.0", "id": message["id"], "result": {}})
            else:
                self._reporter.strayed(f"{method!r:.80} during the handshake")

        return receive

    async def _receive(
        self,
        generation: Generation,
        message: Message,
        handlers: CallHandlers | None = None,
        patience: Patience | None = None,
    ) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self._reporter.strayed(
                f"an answer that no call waits for, id {message.get('id')!r:.80}"
                if "id" in message
                else "not a message"
            )
            return
        raw = message.get("params")
        params = cast("Mapping[str, Any]", raw) if isinstance(raw, dict) else None
        if "id" in message:
            id = message["id"]
            if isinstance(id, str | int):
                size = weight(params)
                while len(self._tasks) >= ANSWERS or (self._tasks and self._bytes + size > ANSWERS_BYTES):
                    # The stream of a server with too many open requests is not read meanwhile.
                    await asyncio.wait(tuple(self._tasks), return_when=asyncio.FIRST_COMPLETED)
                on_request = handlers.on_request if handlers is not None and handlers.on_request else self._on_request
                answering = self._answer(generation, id, method, params, on_request, patience)
                task = self._background.start(answering, f"answer {method}")
                self._answering[id] = task
                self._tasks[task] = size
                self._bytes += size
                task.add_done_callback(lambda task: self._answered(id, task))
            else:
                self._reporter.strayed(f"a request {method!r:.80} with the id {id!r:.80}")
            return
        if method == "notifications/progress" and params is not None and await self._progressed(params):
            return
        if method == "notifications/cancelled" and params is not None:
            id = params.get("requestId")
            task = self._answering.get(id) if isinstance(id, str | int) else None
            if task is not None:
                reason = params.get("reason")
                task.cancel(reason if isinstance(reason, str) else None)
                await asyncio.sleep(0)  # what the handler passes on of it comes before what the server sends next
                return
            if isinstance(id, str | int) and id in self._acknowledged:
                self._acknowledged[id][1].end()
                return
        if method == ACKNOWLEDGED and params is not None and self._acknowledge(params):
            return
        self.hand_on(method, params, handlers.on_notification if handlers is not None else None)

    def _answered(self, id: str | int, task: asyncio.Task[None]) -> None:
        self._bytes -= self._tasks.pop(task)
        if self._answering.get(id) is task:
            del self._answering[id]

    def hand_on(self, method: str, params: Params, taker: OnNotification | None = None) -> None:
        """Pass a notification to its handler."""
        taker = taker or self._on_notification
        if taker is not None:
            try:
                taker(method, params)
            except Exception as error:
                self._reporter.handler_failed(f"the handler of {method!r:.80}", error)

    def _acknowledge(self, params: Mapping[str, Any]) -> bool:
        meta = params.get("_meta")
        id = cast("Mapping[str, Any]", meta).get(SUBSCRIPTION_ID) if isinstance(meta, Mapping) else None
        waiting = self._acknowledged.get(id) if isinstance(id, str | int) else None
        if waiting is None:
            return False
        waiting[0](params)
        return True

    async def _progressed(self, params: Mapping[str, Any]) -> bool:
        token, progress, total = params.get("progressToken"), params.get("progress"), params.get("total")
        callback = self._progress.get(token) if isinstance(token, str | int) else None
        if isinstance(callback, RawProgress):
            await callback.take(params)
            return True
        if callback is None or not isinstance(progress, int | float):
            return False
        message = params.get("message")
        try:
            await callback(
                progress,
                total if isinstance(total, int | float) else None,
                message if isinstance(message, str) else None,
            )
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancelling():
                raise
            self._reporter.handler_failed("a progress callback", error)
        return True

    @contextmanager
    def _counted(self, patience: Patience | None) -> Generator[None, None, None]:
        """A question is being answered:
        the server may be silent meanwhile on the call that it came with, or else on any.
        """
        self._count_questions(patience, 1)
        try:
            yield
        finally:
            self._count_questions(patience, -1)

    def _count_questions(self, patience: Patience | None, questions: int) -> None:
        if patience is not None:
            patience.add_questions(questions)
            return
        self._aside += questions
        for each in self._calls:
            each.add_questions(questions)

    async def _answer(
        self,
        generation: Generation,
        id: str | int,
        method: str,
        params: Params,
        on_request: OnRequest | None,
        patience: Patience | None,
    ) -> None:
        answer: Message = {"jsonrpc": "2.0", "id": id}
        if method == "ping":
            answer["result"] = {}
        elif on_request is None:
            answer["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
        else:
            try:
                with self._counted(patience):
                    answer["result"] = await on_request(method, params, id)
            except ErrorAnswer as error:
                if error.message or error.answer is not None:
                    answer["error"] = rpc_error(error)
                else:
                    code = INTERNAL_ERROR if error.code is None else error.code
                    answer["error"] = {"code": code, "message": error.what}
            except HoldfastError as error:
                self._reporter.strayed(f"{method!r:.80} was not answered: {error.what:.200}")
                answer["error"] = rpc_error(error)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancelling():
                    raise
                self._reporter.handler_failed(f"the handler of {method!r:.80}", error)
                answer["error"] = {"code": INTERNAL_ERROR, "message": "Internal error"}
        try:
            reply = await generation.wire.deliver(generation, answer, self._deliver_seconds)
        except HoldfastError as error:  # what the handler returned is not JSON, or too large
            self._reporter.strayed(f"the handler of {method!r:.80} returned what can't be sent: {error.what}")
            failure = {"code": INTERNAL_ERROR, "message": "Internal error"}
            reply = await generation.wire.deliver(
                generation, {"jsonrpc": "2.0", "id": id, "error": failure}, self._deliver_seconds
            )
        if reply.seen is not None:
            self._reporter.strayed(f"our answer to {method!r:.80} did not arrive: {reply.what}")
