"""The verdict table: a row for every shape that was seen in the field, and what must never be concluded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.eras import Era
from holdfast.core.verdicts import VERDICT_RULES, Broke, Seen, Verdict, VerdictRule, judge, rule_of

Y5, Y6 = Era.Y2025, Era.Y2026
V, B = Verdict, Broke

FIELD: list[tuple[str, Seen, Verdict]] = [
    # 2025, with an id on the request: facts of real servers
    ("404 Python SDK", Seen(Y5, True, status=404, code=-32600, text="Session not found"), V.SESSION_LOST),
    ("404 TypeScript SDK", Seen(Y5, True, status=404, code=-32001, text="Session not found"), V.SESSION_LOST),
    ("404 empty", Seen(Y5, True, status=404), V.SESSION_LOST),
    ("404 plain text", Seen(Y5, True, status=404, text="session not found"), V.SESSION_LOST),
    ("404 web page", Seen(Y5, True, status=404, text="<html>Not Found"), V.SESSION_LOST),
    ("404 with -32601", Seen(Y5, True, status=404, code=-32601, text="Method not found"), V.SESSION_LOST),
    (
        "400 TypeScript example",
        Seen(Y5, True, status=400, code=-32000, text="Bad Request: No valid session ID provided"),
        V.SESSION_LOST,
    ),
    (
        "400 server not initialized",
        Seen(Y5, True, status=400, code=-32000, text="Bad Request: Server not initialized"),
        V.SESSION_LOST,
    ),
    ("400 invalid session id", Seen(Y5, True, status=400, text="Invalid session ID"), V.SESSION_LOST),
    ("400 expired", Seen(Y5, True, status=400, code=-32600, text="Session expired"), V.SESSION_LOST),
    ("410 without body", Seen(Y5, True, status=410), V.SESSION_LOST),
    ("400 without body", Seen(Y5, True, status=400), V.REJECTED),
    ("401 without body", Seen(Y5, True, status=401), V.AUTH_NEEDED),
    ("429 without body", Seen(Y5, True, status=429), V.BUSY),
    ("500 without body", Seen(Y5, True, status=500), V.UNKNOWN),
    ("503 without body", Seen(Y5, True, status=503), V.UNKNOWN),
    ("503 with Retry-After", Seen(Y5, True, status=503, retry_after=3.0), V.BUSY),
    ("503 that speaks of sessions", Seen(Y5, True, status=503, code=-32603, text="too many sessions"), V.UNKNOWN),
    ("401 that speaks of sessions", Seen(Y5, True, status=401, text="session expired"), V.AUTH_NEEDED),
    ("403", Seen(Y5, True, status=403), V.REJECTED),
    (
        "403 that asks for scope",
        Seen(Y5, True, status=403, challenge='Bearer error="insufficient_scope"'),
        V.AUTH_NEEDED,
    ),
    ("400 invalid params", Seen(Y5, True, status=400, code=-32602, text="Invalid params"), V.ANSWER),
    (
        "200 with an error of a tool that keeps sessions",
        Seen(Y5, True, status=200, code=-32001, text="Session not found in the calendar"),
        V.ANSWER,
    ),
    ("200 lost, TypeScript's own", Seen(Y5, True, status=200, code=-32001, text="Session not found"), V.SESSION_LOST),
    ("200 lost, 2025, a tool's own code", Seen(Y5, True, status=200, code=-32602, text="Session not found"), V.ANSWER),
    ("200 lost, Python's words", Seen(Y5, True, status=200, code=-32600, text="Session not found"), V.SESSION_LOST),
    (
        "200 lost, TypeScript's words",
        Seen(Y5, True, status=200, code=-32000, text="Bad Request: No valid session ID provided"),
        V.SESSION_LOST,
    ),
    ("200 lost, 2025 without an id", Seen(Y5, False, status=200, code=-32600, text="Session not found"), V.ANSWER),
    ("200 lost, 2026", Seen(Y6, False, status=200, code=-32600, text="Session not found"), V.ANSWER),
    (
        "200 with an application's error about a session of its own",
        Seen(Y5, True, status=200, code=-32000, text="browser session not found: log in first"),
        V.ANSWER,
    ),
    ("200 method not found", Seen(Y5, True, status=200, code=-32601, text="Method not found"), V.ANSWER),
    # 2025, no id was ever given
    ("404 without an id", Seen(Y5, False, status=404), V.REJECTED),
    (
        "400 that wants an id now",
        Seen(Y5, False, status=400, code=-32600, text="Bad Request: Missing session ID"),
        V.SESSION_LOST,
    ),
    # the server came back in the other era
    (
        "2025 request to a 2026 server",
        Seen(Y5, True, status=400, code=-32022, text="Unsupported protocol version"),
        V.SESSION_LOST,
    ),
    (
        "2025 request without envelope",
        Seen(Y5, True, status=400, code=-32602, text="missing io.modelcontextprotocol/protocolVersion"),
        V.SESSION_LOST,
    ),
    (
        "2026 request, Python 1.x stateful",
        Seen(Y6, status=400, code=-32600, text="Bad Request: Missing session ID"),
        V.SESSION_LOST,
    ),
    (
        "2026 request, Python 1.x stateless",
        Seen(Y6, status=400, code=-32600, text="Unsupported protocol version: 2026-07-28"),
        V.SESSION_LOST,
    ),
    (
        "2026 request, TypeScript example",
        Seen(Y6, status=400, code=-32000, text="No valid session ID provided"),
        V.SESSION_LOST,
    ),
    ("2026 version no longer spoken", Seen(Y6, status=400, code=-32022), V.SESSION_LOST),
    # 2026 proper
    ("2026 unknown method", Seen(Y6, status=404, code=-32601, text="Method not found"), V.ANSWER),
    ("2026 404 empty", Seen(Y6, status=404), V.REJECTED),
    ("2026 header mismatch", Seen(Y6, status=400, code=-32020, text="Mcp-Name does not match"), V.ANSWER),
    ("2026 missing capability", Seen(Y6, status=400, code=-32021), V.ANSWER),
    (
        "2026 an application that keeps sessions of its own",
        Seen(Y6, status=400, code=-32602, text="Unknown session abc"),
        V.ANSWER,
    ),
    (
        "2025 an application that keeps sessions of its own",
        Seen(Y5, True, status=400, code=-32602, text="Session not found"),
        V.ANSWER,
    ),
    (
        "2025 something wrong with _meta",
        Seen(Y5, True, status=400, code=-32602, text="bad _meta.progressToken"),
        V.ANSWER,
    ),
    ("2026 invalid params", Seen(Y6, status=400, code=-32602, text="missing _meta"), V.ANSWER),
    # broken exchanges
    ("refused", Seen(Y5, True, B.CONNECT), V.NOT_SENT),
    ("reset after writing", Seen(Y5, True, B.AFTER_SEND), V.UNKNOWN),
    ("cut in the body", Seen(Y5, True, B.IN_ANSWER, status=200), V.UNKNOWN),
    ("time-out", Seen(Y5, True, B.NO_ANSWER_IN_TIME), V.UNKNOWN),
    ("web page", Seen(Y5, True, B.NOT_AN_ANSWER, status=200, text="<html>"), V.UNKNOWN),
    ("over the cap", Seen(Y5, True, B.TOO_LARGE, status=200), V.REJECTED),
    ("redirected", Seen(Y5, True, B.REDIRECTED, status=307), V.REJECTED),
    ("child died", Seen(Y5, broke=B.CHILD_DIED), V.UNKNOWN),
    # programs and objects have no status
    ("error of a program", Seen(Y5, code=-32602, text="Invalid params"), V.ANSWER),
    ("the SDK's server ends", Seen(Y5, code=-32000, text="Connection closed"), V.UNKNOWN),
]


@pytest.mark.promise("link.verdicts")
@pytest.mark.parametrize(("seen", "verdict"), [case[1:] for case in FIELD], ids=[case[0] for case in FIELD])
def test_every_shape_of_the_field_has_its_verdict(seen: Seen, verdict: Verdict) -> None:
    assert judge(seen) is verdict


@pytest.mark.promise("link.verdicts")
def test_every_row_is_reached_by_some_shape() -> None:
    reached = {rule_of(seen).name for _, seen, _ in FIELD}
    assert {row.name for row in VERDICT_RULES} - reached == set()


LOST = (
    "Session not found: abc123",
    "Session abc123 not found",
    "Session '4f6c1f0e-2a3b-4c5d-8e9f-0a1b2c3d4e5f' not found",
    "Session does not exist",
    "Session has expired",
    "Session has been terminated",
    "Invalid or expired session",
    "Session not found or expired",
    "Mcp-Session-Id header is required",
    "Bad Request: Mcp-Session-Id header is required",
    "Not Found: Session not found",
    "Unknown session: abc123",
    "The session has expired.",
)
OF_A_TOOL = (
    "browser session not found: log in first",
    "Session not found: log in first",
    "Session storage not found",
    "Session not found for user 42",
    "no page: session abc123 not found",
    "Session abc123 not found, create one with new_session",
    "Your session has expired. Call login again",
    "Session expired: call login",
    "Invalid session type",
    "Unknown session kind abc123",
    "The tool session abc123 was closed by the user",
    "Missing session in the database",
    "Request timed out",
)


@pytest.mark.promise("link.verdicts")
@pytest.mark.parametrize("code", [-32600, -32000, -32001])
def test_a_lost_session_under_http_200_is_known_by_its_whole_message(code: int) -> None:
    for text in LOST:
        assert judge(Seen(Y5, True, status=200, code=code, text=text)) is V.SESSION_LOST, text
        assert judge(Seen(Y5, True, status=400, code=code, text=text)) is V.SESSION_LOST, text
        assert judge(Seen(Y5, True, status=200, code=-32602, text=text)) is V.ANSWER, text
    for text in OF_A_TOOL:
        assert judge(Seen(Y5, True, status=200, code=code, text=text)) is V.ANSWER, text


seen_anything = st.builds(
    Seen,
    era=st.sampled_from([None, Y5, Y6]),
    session_sent=st.booleans(),
    broke=st.sampled_from(list(Broke)),
    status=st.none() | st.integers(100, 599),
    code=st.none() | st.integers(-32768, 0),
    text=st.text(max_size=40)
    | st.sampled_from(["Session not found", "Missing session ID", "Unsupported protocol version"]),
    retry_after=st.none() | st.floats(0, 100),
)


@pytest.mark.promise("link.verdicts")
@given(seen_anything)
def test_a_timeout_a_401_and_a_5xx_are_never_news_of_the_session(seen: Seen) -> None:
    verdict = judge(seen)
    if seen.broke is not Broke.NOWHERE or seen.status == 401 or (seen.status or 0) >= 500:
        assert verdict is not Verdict.SESSION_LOST
    if seen.broke is Broke.NOWHERE and (seen.status or 0) >= 500:
        assert verdict in (Verdict.UNKNOWN, Verdict.BUSY)
    if verdict is Verdict.NOT_SENT:
        assert seen.broke is Broke.CONNECT
    if seen.broke is Broke.CONNECT:
        assert verdict is Verdict.NOT_SENT


@pytest.mark.promise("link.rows")
def test_a_declared_row_comes_first() -> None:
    row = VerdictRule("teapot", Verdict.SESSION_LOST, status=(418,), text="tea")
    assert judge(Seen(Y5, True, status=418, text="out of tea")) is Verdict.REJECTED
    assert judge(Seen(Y5, True, status=418, text="out of tea"), (row,)) is Verdict.SESSION_LOST
    assert judge(Seen(Y5, True, status=418, text="coffee"), (row,)) is Verdict.REJECTED
