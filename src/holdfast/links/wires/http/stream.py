"""The server's own stream in 2025: a GET that stays open and is resumed after an interruption.

It is reopened as long as the session lives. It is not an error if a server has no such stream or another link has it.
"""

import asyncio
import random
from typing import Any, cast

from holdfast.core.retry import backoff
from holdfast.core.sse import EventTooLarge, Parser
from holdfast.core.verdicts import Verdict, judge
from holdfast.links.codec import Decode
from holdfast.links.wires.base import Dropped, Generation, Lost, Receive
from holdfast.links.wires.http.endpoint import Endpoint, failed
from holdfast.links.wires.http.failures import FAILURES

LONGEST_PAUSE = 30.0  # seconds between two tries: the longest time until a server that is back is noticed
SHORTEST_PAUSE = 0.05  # seconds, in case a server asks for no delay


async def listen(endpoint: Endpoint, generation: Generation, receive: Receive, lost: Lost, dropped: Dropped) -> None:
    """Read until cancelled, or until the server has no such stream or session."""
    parser = Parser(endpoint.limits.message_bytes)
    pause: float | None = None
    failures, opened = 0, False
    while True:
        response = None
        why = "the stream ended"
        try:
            headers = {**generation.headers, "accept": "text/event-stream"}
            headers.pop("content-type", None)
            if parser.last_id is not None:
                headers["last-event-id"] = parser.last_id
            async with asyncio.timeout(endpoint.limits.silence):
                response = await endpoint.request("GET", headers, None)
            generation.listening.set()
            if response.status == 200 and response.content_type == "text/event-stream":
                failures, opened = 0, True
                async for chunk in response.iter_any():
                    for event in parser.feed(chunk):
                        if event.retry is not None:
                            pause = event.retry
                        if event.is_message:
                            for message in _messages(event.data, endpoint.decode):
                                await receive(message)
            elif response.status == 409:
                failures, why = failures + 1, "another link has the stream"
            else:
                reply = await endpoint.read_refusal(response, generation)
                assert reply.seen is not None
                verdict = judge(reply.seen, endpoint.verdict_rules)
                if verdict in (Verdict.ANSWER, Verdict.REJECTED) or (verdict is Verdict.SESSION_LOST and not opened):
                    return  # 405, or a 404 for a route that takes POST only: no such stream here
                if verdict in (Verdict.SESSION_LOST, Verdict.AUTH_NEEDED) and lost(reply.seen, verdict):
                    return
                failures, why = failures + 1, reply.what
        except EventTooLarge:
            failures, why = failures + 1, "a message on the stream is over the cap"
        except FAILURES as error:
            failures, why = failures + 1, failed(generation, error, True, False).what
        finally:
            if response is not None:
                response.close()
        dropped(why, parser.last_id is not None)
        last_id = parser.last_id
        parser = Parser(endpoint.limits.message_bytes)
        parser.last_id = last_id
        await asyncio.sleep(wait_for(pause, endpoint.limits.stream_retry, failures))


def wait_for(asked: float | None, otherwise: float, failures: int) -> float:
    """Seconds before a stream is reopened: what the server asked for, within limits, and longer with each failure."""
    wait = max(SHORTEST_PAUSE, asked if asked is not None else otherwise)
    return wait if failures < 2 else max(wait, backoff(failures, random.random(), base=wait, cap=LONGEST_PAUSE))


def _messages(data: bytes, decode: Decode) -> list[dict[str, Any]]:
    """A message, or those of a batch, which 2025-03-26 allowed;
    an empty one stands for a stray message, which the link reports.
    """
    try:
        found = decode(data)
    except ValueError:
        return [{}]
    parts = cast("list[Any]", found) if isinstance(found, list) else [found]
    return [cast("dict[str, Any]", part) if isinstance(part, dict) else {} for part in parts]
