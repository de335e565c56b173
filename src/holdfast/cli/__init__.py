"""The command line: arguments, tables and exit codes. The logic is in the layers below.

Exit codes: 0 done, 1 a negative result (a check failed, nothing found), 2 an error (usage, unreachable).
"""

from typing import Annotated

import typer

import holdfast
from holdfast.cli import agents, gateway, genealogy, runs, state, store

app = typer.Typer(
    name="holdfast",
    help="Sessions for MCP that stay alive, isolated and recoverable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(agents.tools)
app.command()(agents.call)
app.command()(agents.doctor)
app.command()(gateway.serve)
app.command()(gateway.check)
app.command()(gateway.backends)
app.command()(gateway.demo)
app.add_typer(gateway.sessions, name="sessions")
app.add_typer(gateway.token, name="token")
app.add_typer(runs.app, name="runs")
state.app.command()(genealogy.tree)
state.app.command()(genealogy.stats)
app.add_typer(state.app, name="state")
app.add_typer(store.app, name="store")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sessions for MCP that stay alive, isolated and recoverable."""
