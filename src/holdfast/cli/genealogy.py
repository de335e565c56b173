"""`holdfast state tree` and `holdfast state stats`: the history of a session, and statistics of companions.

They show the stored data, without the class of the companion.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.keys import keys_option, read_keys
from holdfast.cli.output import Branch, print_json, table
from holdfast.cli.program import argument, command, json_option, store_option
from holdfast.cli.terminal import inline, out
from holdfast.state.companions.figures import Figures, totals
from holdfast.state.companions.genealogy import Node, graphviz, mermaid
from holdfast.state.companions.genealogy import tree as grow
from holdfast.stores import open_store

_store = store_option("The store, e.g. sqlite:///baskets.db")


@command()
@argument("handle", "HANDLE", "The session's handle.")
@_store
@click.option("--mermaid", "as_mermaid", is_flag=True, help="As a Mermaid flowchart.")
@click.option("--dot", "as_dot", is_flag=True, help="As a Graphviz graph.")
@keys_option
@json_option
def tree(handle: str, store: str, as_mermaid: bool, as_dot: bool, keys_file: Path | None, json: bool) -> None:
    """Draw the steps of a session or companion, with undos and forks as branches."""

    async def main() -> Node:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await grow(opened, handle)

    root = asyncio.run(main())
    if json:
        print_json(root.to_json())
    elif as_mermaid or as_dot:
        out.print(mermaid(root) if as_mermaid else graphviz(root))
    else:
        output.tree(_drawn(root))


def _drawn(root: Node) -> Branch:
    """A single child is drawn on the same level; several are drawn as branches."""
    drawn = Branch(f"{root.handle}: {_line(root)}")
    waiting = [(drawn, root)]
    while waiting:
        branch, node = waiting.pop()
        while len(node.children) == 1 and node.children[0].handle == node.handle:
            node = node.children[0]
            branch.add(_line(node))
        for child in node.children:
            name = f"{child.handle}: " if child.handle != node.handle else ""
            waiting.append((branch.add(f"{name}{_line(child)}"), child))
    return drawn


def _line(node: Node) -> str:
    generation = f" (generation {node.generation})" if node.generation else ""
    return f"{node.text}{generation}"


@command()
@_store
@keys_option
@json_option
def stats(store: str, keys_file: Path | None, json: bool) -> None:
    """Steps, iterations, refusals and times of all companions, added up over processes and replicas."""

    async def main() -> dict[str, Figures]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await totals(opened)

    found = asyncio.run(main())
    if json:
        print_json({kind: asdict(figures) for kind, figures in found.items()})
        return
    if not found:
        out.print("no statistics: no companion has made a step yet")
        return
    for kind, figures in sorted(found.items()):
        done = f"{figures.steps} steps, {figures.iterations} iterations, {figures.converged} converged"
        out.print(f"{inline(kind)}: {done}")
        table(
            ("phase", "refusals", "time"),
            [
                (phase, str(figures.refusals.get(phase, 0)), f"{figures.seconds.get(phase, 0.0):,.1f} s")
                for phase in sorted({*figures.refusals, *figures.seconds})
            ],
            whole=("refusals", "time"),
        )
