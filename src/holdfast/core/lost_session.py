"""The error texts and codes by which a lost session is recognised: those of servers that don't know a session.

The rules of `core/verdicts.py` with the verdict SESSION_LOST apply them, beside statuses such as 404.
"""

_AN_ID = r"['\"]?(?=[\w-]*\d)[\w-]{6,128}['\"]?"
"""Matches an id, as opposed to a word of a sentence."""

NO_SUCH_SESSION = (
    r"session[ -]?(id)?( header)?\W*(was |is |has (been )?)?"
    r"(not found|not valid|invalid|unknown|expired|terminated|required|missing|closed|gone|does not exist)"
    r"|(no|not a|in)\s*valid session|invalid session|unknown session|missing session|expired session"
    r"|no (such|active) session|not initialized|without initialization"
    rf"|session {_AN_ID} (was |is |has (been )?)?(not found|invalid|unknown|expired|terminated|closed|does not exist)"
)
"""Error texts of servers that do not know the session of a request."""

TRANSPORT_CODES = (None, -32600, -32000, -32001)
"""Codes of refusals by a transport; an application's own -32602 may be about sessions of its own."""

SESSION_LOST_AS_ANSWER = (
    r"^((bad request|not found|error):? *)*("
    rf"(the )?(mcp )?session( id)?( {_AN_ID})? (was |is |has (been )?)?"
    r"(not found|not valid|invalid|unknown|terminated|expired|closed|does not exist)"
    rf"( or (was |has )?(not found|invalid|unknown|terminated|expired|closed))?(:? {_AN_ID})?"
    rf"|(invalid|unknown|expired|missing)( or (invalid|unknown|expired|missing))? (mcp )?session( id)?(:? {_AN_ID})?"
    r"|(no|not a) valid session( id)?( provided)?"
    rf"|no such session(:? {_AN_ID})?"
    r"|(the )?mcp-session-id( header)? (is )?(required|missing|invalid|unknown|not valid)"
    r"|missing mcp-session-id( header)?"
    r"|(server )?not initialized"
    r")[.!]?$"
)
"""The same, matched against the whole message, for answers under HTTP 200:
an application's error may be about its own sessions.
"""
