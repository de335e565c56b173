"""`holdfast completion`: the script that completes commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from holdfast.cli.output import print_json
from holdfast.cli.program import argument, command, json_option
from holdfast.cli.terminal import out

VARIABLE = "_HOLDFAST_COMPLETE"  # click reads it


@command()
@argument("shell", "SHELL", "bash, zsh or fish.", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, json: bool) -> None:
    """Print a script for completion in your shell.

    \b
    bash  eval "$(holdfast completion bash)"    in ~/.bashrc
    zsh   eval "$(holdfast completion zsh)"     in ~/.zshrc
    fish  holdfast completion fish | source     in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "holdfast", VARIABLE).source()
    if json:
        print_json({"shell": shell, "script": script})
    else:
        out.write(script + "\n")
