"""The command line: arguments, tables and exit codes. The logic is in the layers below.

Exit codes: 0 done, 1 a negative result (a check failed, nothing found), 2 an error (usage, unreachable). With --json an
error is an object on stdout: `{"error": {"type": …, "message": …, "remedy": …}}`.
"""

import click

from holdfast.cli.program import Group, Lazy, Program
from holdfast.version import __version__

_SESSIONS = {
    "ls": Lazy("gateway:sessions_ls", "List the live sessions."),
    "show": Lazy("gateway:sessions_show", "Show one session."),
    "end": Lazy("gateway:sessions_end", "End a session, in the store and at its servers."),
}
_RUNS = {
    "ls": Lazy("runs:ls", "List the runs that may be continued."),
    "show": Lazy("runs:show", "Show a run and its sessions."),
    "end": Lazy("runs:end", "End a run permanently."),
}
_STATE = {
    "ls": Lazy("state:ls", "List live sessions."),
    "show": Lazy("state:show", "Show one session and its state."),
    "log": Lazy("state:log", "Show the log of a session."),
    "fork": Lazy("state:fork", "Begin another session with this one's state."),
    "erase": Lazy("state:erase", "Remove everything of one principal."),
    "end": Lazy("state:end", "End sessions permanently."),
    "tree": Lazy("genealogy:tree", "Draw the steps of a session or companion."),
    "stats": Lazy("genealogy:stats", "Add up what all companions did."),
}
_STORE = {
    "check": Lazy("store:check", "Check that a store behaves correctly."),
    "ls": Lazy("store:list_records", "List records."),
    "show": Lazy("store:show", "Show one record, its log and its claim."),
    "end": Lazy("store:end", "End one record permanently."),
    "reap": Lazy("store:reap", "Remove expired records and old tombstones."),
    "key": Lazy("store:key", "Create an encryption key."),
    "reseal": Lazy("store:reseal", "Encrypt everything with the newest key."),
    "copy": Lazy("store:copy", "Copy everything to another store."),
}

app = Program(
    "holdfast",
    "Sessions for MCP that stay alive, isolated and recoverable.",
    {
        "tools": Lazy("agents:tools", "List the tools of every server in a file."),
        "call": Lazy("agents:call", "Call one tool."),
        "doctor": Lazy("agents:doctor", "Connect to every server in a file, and show what is wrong."),
        "serve": Lazy("gateway:serve", "Serve the servers of a file behind one endpoint."),
        "check": Lazy("gateway:check", "Show every mistake in a configuration."),
        "backends": Lazy("gateway:backends", "Show gateway processes and the state of their backends."),
        "top": Lazy("top:top", "Show live what gateways do: sessions, backends, calls."),
        "tail": Lazy("tail:tail", "Show the events of gateways as they come."),
        "demo": Lazy("gateway:demo", "Start three small servers behind a gateway."),
        "sessions": Group("sessions", "Sessions of the gateway: list, show, end.", _SESSIONS),
        "token": Group("token", "Tokens for callers.", {"new": Lazy("gateway:token_new", "Create a token.")}),
        "audit": Group("audit", "The gateway's audit trail.", {"verify": Lazy("audit:verify_trail", "Verify it.")}),
        "runs": Group("runs", "Durable runs: list, show, end.", _RUNS),
        "state": Group("state", "Sessions of a server's callers: list, show, fork, end.", _STATE),
        "store": Group("store", "Inspect, check and clean up a store.", _STORE),
        "completion": Lazy("completion:completion", "Print a script for completion in your shell."),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, message="holdfast %(version)s")(app)
