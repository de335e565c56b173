"""A wire over streamable HTTP, in both eras: one POST per message, answered as JSON or as an event stream.

It handles the request, its answer in either form, and the resumption of a broken answer stream. It reports what it
observed and decides nothing. The server's own stream is in `stream.py`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.core.eras import Era, headers_2026
from holdfast.core.sse import EventTooLarge, Parser, ServerSentEvent
from holdfast.core.verdicts import Broke, Seen, VerdictRule
from holdfast.links.background import BackgroundTasks
from holdfast.links.limits import Limits
from holdfast.links.target import HttpTarget
from holdfast.links.wires.base import Dropped, Generation, Lost, Message, Patience, Receive, Reply, Resolved, Resumption
from holdfast.links.wires.http import stream as http_stream
from holdfast.links.wires.http.connection import Body
from holdfast.links.wires.http.endpoint import Endpoint, failed
from holdfast.links.wires.http.failures import FAILURES
from holdfast.links.wires.http.pool import SharedPool
from holdfast.links.wires.http.response import Response
from holdfast.version import __version__

ACCEPT = "application/json, text/event-stream"
RESUMES = 3  # failed resumptions in a row; one that delivers an event resets the count
DRAIN = 1.0  # seconds in which a finished answer stream must end for its connection to be reused


class HttpWire:
    """See `Wire`."""

    owns_server = False

    def __init__(
        self,
        name: str,
        target: HttpTarget,
        limits: Limits,
        background: BackgroundTasks,
        verdict_rules: Sequence[VerdictRule] = (),
        shared: SharedPool | None = None,
        known_json: bool = False,
    ) -> None:
        self.endpoint = Endpoint(name, target, limits, verdict_rules, shared, known_json)
        self.background = background

    async def open(self, resolved: Resolved) -> None:
        await self.endpoint.open(resolved)

    async def close(self) -> None:
        await self.endpoint.close()

    def apply_credentials(self, generation: Generation, resolved: Resolved) -> None:
        headers = {name.lower(): value for name, value in resolved.headers.items()}
        headers.setdefault("user-agent", f"holdfast/{__version__}")
        headers |= {"accept": ACCEPT, "content-type": "application/json", "accept-encoding": "identity"}
        if generation.number:
            headers["mcp-protocol-version"] = generation.version
        if generation.session is not None:
            headers["mcp-session-id"] = generation.session
        generation.use_credentials(headers)

    async def send(
        self,
        generation: Generation,
        message: Message,
        headers: Mapping[str, str],
        patience: Patience,
        receive: Receive,
        resumption: Resumption | None = None,
    ) -> Reply:
        call = _Call(self, generation, message, patience, receive, resumption)
        return await call.run(headers)

    async def deliver(self, generation: Generation, message: Message, seconds: float) -> Reply:
        body = Body(self.endpoint.encode(message))
        try:
            async with asyncio.timeout(seconds):
                response = await self.endpoint.request("POST", generation.headers, body)
                async with response:
                    return await self.endpoint.read_status(response, generation)
        except FAILURES as error:
            return failed(generation, error, body.sent, False)

    async def end(self, generation: Generation, seconds: float) -> Reply:
        try:
            async with asyncio.timeout(seconds):
                response = await self.endpoint.request("DELETE", generation.headers, None)
                async with response:
                    return await self.endpoint.read_status(response, generation)
        except FAILURES as error:
            return failed(generation, error, True, False)

    async def listen(self, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
        await http_stream.listen(self.endpoint, generation, receive, lost, dropped)


class _Call:
    """One request under way."""

    __slots__ = (
        "_answering",
        "_generation",
        "_id",
        "_message",
        "_on_token",
        "_patience",
        "_receive",
        "_resumes",
        "_status",
        "_wire",
    )

    def __init__(
        self,
        wire: HttpWire,
        generation: Generation,
        message: Message,
        patience: Patience,
        receive: Receive,
        resumption: Resumption | None,
    ) -> None:
        self._wire = wire
        self._generation = generation
        self._message = message
        self._id = message["id"]
        self._patience = patience
        self._receive = receive
        self._answering = False
        self._status = 200
        resumption = resumption if generation.era is Era.Y2025 else None  # 2026 has none
        self._on_token = None if resumption is None else resumption.on_token
        self._resumes = None if resumption is None else resumption.token

    async def run(self, extra: Mapping[str, str]) -> Reply:
        generation, message = self._generation, self._message
        body: Body | None = None
        headers = dict(generation.headers)
        if self._resumes is None:
            body = Body(self._wire.endpoint.encode(message))
        else:
            headers["last-event-id"] = self._resumes
        if generation.era is Era.Y2026:
            headers |= headers_2026(message["method"], message["params"], generation.version)
        if extra:
            headers |= {name.lower(): value for name, value in extra.items()}
            if generation.era is Era.Y2025:
                headers.pop("mcp-name", None)
        now = asyncio.get_running_loop().time
        response: Response | None = None
        try:
            async with asyncio.timeout_at(self._patience.next(now())) as timer:
                self._patience.attach(timer)
                response = await self._wire.endpoint.request("GET" if body is None else "POST", headers, body)
                self._status = response.status
                if 200 <= response.status < 300:  # a body that is the answer counts, with any success status
                    kind = response.content_type
                    if response.status == 204 or (response.status == 202 and response.content_length == 0):
                        return self._broken(Broke.NOT_AN_ANSWER, f"HTTP {response.status} without an answer")
                    if kind == "application/json":
                        if generation.era is Era.Y2026 and response.content_length is None:
                            return await self._read_lines(response, timer)
                        return await self._read_json(response)
                    if kind == "text/event-stream":
                        return await self._read_stream(response, timer)
                    return await self._read_foreign(response, kind)
                return await self._wire.endpoint.read_refusal(response, generation, self._id)
        except FAILURES as error:
            return failed(generation, error, body is not None and body.sent, self._answering)
        finally:
            self._patience.attach(None)
            if response is not None and not response.closed:
                self._let_go(response)

    def _let_go(self, response: Response) -> None:
        """Release the connection.
        An answer stream that is complete but has not ended is read to its end in the background, so that its connection
        can be reused; an incomplete one is closed.
        """
        if response.is_eof or not self._answering:
            response.release()
        else:
            self._wire.background.start(_drain(response), f"drain {self._wire.endpoint.name}")

    def _broken(self, broke: Broke, what: str) -> Reply:
        generation = self._generation
        seen = Seen(
            era=generation.era, session_sent=generation.session is not None, broke=broke, status=self._status, text=what
        )
        return Reply(seen=seen, what=what)

    async def _read_json(self, response: Response) -> Reply:
        self._answering = True
        cap, length = self._wire.endpoint.limits.message_bytes, response.content_length
        if length is not None and length <= cap and "content-encoding" not in response.headers:
            raw: bytes | bytearray = await response.read()
        else:
            raw = bytearray()
            async for chunk in response.iter_any():
                raw += chunk
                if len(raw) > cap:
                    break
        if len(raw) > cap or (length or 0) > cap:
            self._answering = False
            return self._too_large()
        self._answering = False
        return await self._read_document(raw, response)

    async def _read_document(self, raw: bytes | bytearray, response: Response) -> Reply:
        try:
            message = self._wire.endpoint.decode(raw)
        except ValueError as error:
            return self._broken(Broke.NOT_AN_ANSWER, f"the answer is not valid JSON: {error}"[:200])
        answer = _error_without_id(message) or await self._sort(message)
        if answer is None:
            return self._broken(Broke.NOT_AN_ANSWER, "the answer is not a JSON-RPC answer to this request")
        return self._answered(answer, response)

    async def _read_lines(self, response: Response, timer: asyncio.Timeout) -> Reply:
        """Read a body of unknown length: one JSON document, or one message a line.

        The specification wants an event stream for several messages. The everything server of the official suite sends
        them in this way instead, so its changes of lists would not arrive.
        """
        self._answering = True
        rest, scanned, lines = bytearray(), 0, 0
        async for chunk in response.iter_any():
            timer.reschedule(self._patience.next(asyncio.get_running_loop().time()))
            rest += chunk
            while scanned >= 0 and (end := rest.find(b"\n", scanned)) >= 0:
                try:
                    message = self._wire.endpoint.decode(rest[:end]) if rest[:end].strip() else None
                except ValueError:
                    if lines:
                        return self._broken(Broke.NOT_AN_ANSWER, "a line of the answer is not valid JSON")
                    scanned = -1  # one document on several lines
                    break
                del rest[: end + 1]
                scanned, lines = 0, lines + (message is not None)
                if message is None:
                    continue
                answer = _error_without_id(message) if lines == 1 else None
                if (answer := answer or await self._sort_untimed(message, timer)) is not None:
                    return self._answered(answer, response)
            scanned = len(rest) if scanned >= 0 else scanned
            if len(rest) > self._wire.endpoint.limits.message_bytes:
                self._answering = False
                return self._too_large()
        if rest.strip() or not lines:
            self._answering = False
            return await self._read_document(rest, response)
        return self._broken(Broke.IN_ANSWER, "the answer ended before its last message")

    def _too_large(self) -> Reply:
        return self._broken(
            Broke.TOO_LARGE, f"the answer is over the cap of {self._wire.endpoint.limits.message_bytes} bytes"
        )

    async def _read_foreign(self, response: Response, kind: str) -> Reply:
        return self._broken(
            Broke.NOT_AN_ANSWER,
            f"HTTP {response.status} with {kind or 'no content type'}, not JSON and not an event stream",
        )

    def _answered(self, answer: Message, response: Response | None) -> Reply:
        session = response.headers.get("mcp-session-id") if response is not None else None
        error = answer.get("error")
        if error is None:
            return Reply(answer, session=session)
        generation = self._generation
        code = error.get("code")
        seen = Seen(
            era=generation.era,
            session_sent=generation.session is not None,
            status=self._status,
            code=code if isinstance(code, int) else -32603,
            text=str(error.get("message", "")),
            data=error.get("data"),
        )
        return Reply(answer, seen, session, what=seen.text)

    async def _sort(self, message: Any) -> Message | None:
        """Return the message if it is the awaited answer; pass on anything else."""
        if isinstance(message, list):  # a batch, which 2025-03-26 allowed
            found = None
            for part in cast("list[Any]", message):
                found = await self._sort(part) or found
            return found
        if not isinstance(message, dict):
            return None
        known = cast("Message", message)
        # A resumed answer belongs to the earlier request, which had another id.
        if "method" not in known and (known.get("id") == self._id or self._resumes is not None):
            if isinstance(known.get("error"), dict):
                return known
            return {**known, "error": None} if isinstance(known.get("result"), dict) else None
        await self._receive(known)
        return None

    async def _read_stream(self, response: Response, timer: asyncio.Timeout) -> Reply:
        parser = Parser(self._wire.endpoint.limits.message_bytes)
        parser.last_id = self._resumes
        asked: float | None = None
        failures = 0
        stream: Response | None = response
        opened: Response | None = None  # opened by a resumption, so released here
        taken = False
        refusal: Message | None = None  # an error without an id: it is the answer if the stream has no other
        first = response
        try:
            while True:
                if stream is not None:
                    try:
                        async for chunk in stream.iter_any():
                            for event in self._events(parser, chunk, timer):
                                failures = 0
                                asked = event.retry if event.retry is not None else asked
                                if event.id and self._on_token is not None:
                                    await self._on_token(event.id)
                                if not event.is_message:
                                    continue
                                if not taken and (refusal := self._refusal(event)) is not None:
                                    taken = True
                                    continue
                                if refusal is not None:
                                    await self._receive(refusal)
                                taken, refusal = True, None
                                if (answer := await self._take(event, timer)) is not None:
                                    self._answering = stream is first
                                    return self._answered(answer, first)
                        if refusal is not None:
                            return self._answered(refusal, first)
                    except EventTooLarge:
                        return self._too_large()
                    except ValueError as error:
                        what = f"an event of the answer stream is not valid JSON: {error}"[:200]
                        return self._broken(Broke.NOT_AN_ANSWER, what)
                    except FAILURES as error:
                        if isinstance(error, TimeoutError):
                            raise
                    stream = None
                if self._generation.era is Era.Y2026 or parser.last_id is None or failures >= RESUMES:
                    return self._broken(Broke.IN_ANSWER, "the answer stream ended before the answer")
                last_id, failures = parser.last_id, failures + 1
                parser = Parser(self._wire.endpoint.limits.message_bytes)
                parser.last_id = last_id
                await asyncio.sleep(http_stream.wait_for(asked, self._wire.endpoint.limits.stream_retry, failures))
                if opened is not None:
                    opened.close()
                opened = stream = await self._resume(last_id)
        finally:
            if opened is not None:
                opened.close()

    def _events(self, parser: Parser, chunk: bytes, timer: asyncio.Timeout) -> list[ServerSentEvent]:
        timer.reschedule(self._patience.next(asyncio.get_running_loop().time()))
        return parser.feed(chunk)

    def _refusal(self, event: ServerSentEvent) -> Message | None:
        return _error_without_id(self._wire.endpoint.decode(event.data)) if b'"error"' in event.data else None

    async def _take(self, event: ServerSentEvent, timer: asyncio.Timeout) -> Message | None:
        return await self._sort_untimed(self._wire.endpoint.decode(event.data), timer)

    async def _sort_untimed(self, message: Any, timer: asyncio.Timeout) -> Message | None:
        # While a progress callback of the caller runs, the server's silence does not count.
        timer.reschedule(self._patience.until)
        answer = await self._sort(message)
        timer.reschedule(self._patience.next(asyncio.get_running_loop().time()))
        return answer

    async def _resume(self, last_id: str) -> Response | None:
        """Request the rest of a broken answer stream. Returns None if it is not available right now."""
        try:
            response = await self._wire.endpoint.request(
                "GET", {**self._generation.headers, "last-event-id": last_id}, None
            )
        except FAILURES as error:
            if isinstance(error, TimeoutError):
                raise
            return None
        if response.status == 200 and response.content_type == "text/event-stream":
            return response
        response.close()
        return None


def _error_without_id(message: Any) -> Message | None:
    """Whether it is an error that a server's transport created before it parsed the request:
    as the only body of a response it answers that request. Its id is null by the specification, and "server-error" in
    Python's SDK.
    """
    if not isinstance(message, dict):
        return None
    known = cast("Message", message)
    return known if isinstance(known.get("error"), dict) and known.get("id") in (None, "server-error") else None


async def _drain(response: Response) -> None:
    try:
        async with asyncio.timeout(DRAIN):
            async for _ in response.iter_any():
                pass
    except FAILURES:
        pass
    finally:
        response.release() if response.is_eof else response.close()
