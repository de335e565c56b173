"""The program: groups whose commands are imported when they are used, help, and errors with their exit codes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast.cli.output import print_json
from holdfast.cli.terminal import RED, Styled, err, indented
from holdfast.errors import HoldfastError, UsageError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

INTERRUPTED = 130  # as shells say it of a program that SIGINT ended


class Lazy(NamedTuple):
    """A command that is imported when it is used; listing it needs only its summary."""

    place: str
    """Module of this package and name in it, as in `store:check`."""
    summary: str


class Command(click.Command):
    """A command whose help describes its arguments, too."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [each for each in self.get_params(ctx) if isinstance(each, _Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(each.make_metavar(ctx), each.described) for each in arguments])
        super().format_options(ctx, formatter)


class _Argument(click.Argument):
    def __init__(self, declarations: Sequence[str], *, described: str, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.described = described


class Group(click.Group):
    """Commands in the order given; help and completion of the group import none of them."""

    def __init__(self, name: str, summary: str, members: Mapping[str, "Lazy | Group"], **settings: Any) -> None:
        super().__init__(name, help=summary, no_args_is_help=True, **settings)
        self.summary = summary
        self.members = members

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        member = self.members.get(cmd_name)
        if not isinstance(member, Lazy):
            return member
        module, name = member.place.split(":")
        return getattr(import_module(f"holdfast.cli.{module}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, member.summary) for name, member in self.members.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=member.summary)
            for name, member in self.members.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


class Program(Group):
    """The group of all commands. An error is a line on stderr, or with --json an object on stdout; exit code 2."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        json = "--json" in (given[: given.index("--")] if "--" in given else given)
        try:
            code = super().main(args, *rest, **{**settings, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = error.exit_code
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as error:
            context = error.ctx if isinstance(error, click.UsageError) else None
            path = context.command_path if context is not None else str(self.name)
            code = _report(UsageError(error.format_message(), remedy=f"{path} --help"), json)
        except HoldfastError as error:
            code = _report(error, json)
        sys.exit(code)


def _report(error: HoldfastError, json: bool) -> int:
    if json:
        print_json({"error": error_json(error)})
    else:
        err.print(Styled("error:", RED), indented(error.what))
        if error.remedy:
            err.print(f"  try: {indented(error.remedy)}")
    return 2


def error_json(error: HoldfastError) -> dict[str, Any]:
    """An error for programs: kind, family, numbers and text."""
    fields = error.public_fields()
    about = {"type": fields.pop("error"), **fields, "message": error.what, "remedy": error.remedy}
    more = {"server": error.server, "stderr": error.stderr_tail}
    return {**about, **{name: value for name, value in more.items() if value}}


def command(name: str | None = None) -> Callable[[Callable[..., None]], Command]:
    """Make a function a command. Its docstring is the help."""
    return click.command(name, cls=Command)


def argument(name: str, metavar: str, described: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """A positional argument with its help."""
    return click.argument(name, cls=_Argument, metavar=metavar, described=described, **settings)


def store_option(described: str) -> Callable[[Decorated], Decorated]:
    """`--store`, for commands that need one."""
    return click.option("--store", metavar="URL", required=True, help=described)


json_option = click.option("--json", is_flag=True, help="Print JSON instead of text, errors included.")
