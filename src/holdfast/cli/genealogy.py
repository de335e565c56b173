"""`holdfast state tree` and `holdfast state stats`: the history of a session, and statistics of companions.

They show the stored data, without the class of the companion.
"""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.tree import Tree

from holdfast.cli.keys import KeysFile, read_keys
from holdfast.cli.output import JsonFlag, out, print_json, printable, run
from holdfast.cli.state import HandleArgument, StoreUrl
from holdfast.state.companions.figures import Figures, totals
from holdfast.state.companions.genealogy import Node, graphviz, mermaid
from holdfast.state.companions.genealogy import tree as grow
from holdfast.stores import open_store


def tree(
    handle: HandleArgument,
    store: StoreUrl,
    mermaid_: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="As a Graphviz graph.")] = False,
    keys_file: KeysFile = None,
    json: JsonFlag = False,
) -> None:
    """Draw the steps of a session or companion, with undos and forks as branches."""

    async def main() -> Node:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await grow(opened, handle)

    root = run(main())
    if json:
        print_json(root.to_json())
    elif mermaid_ or dot:
        out.print(mermaid(root) if mermaid_ else graphviz(root))
    else:
        drawn = Tree(f"{printable(root.handle)}: {_line(root)}")
        _grow(drawn, root)
        out.print(drawn)


def _grow(branch: Tree, node: Node) -> None:
    """A single child is drawn on the same level; several are drawn as branches."""
    while len(node.children) == 1 and node.children[0].handle == node.handle:
        node = node.children[0]
        branch.add(_line(node))
    for child in node.children:
        name = f"{printable(child.handle)}: " if child.handle != node.handle else ""
        _grow(branch.add(f"{name}{_line(child)}"), child)


def _line(node: Node) -> str:
    generation = f" (generation {node.generation})" if node.generation else ""
    return f"{printable(node.text)}{generation}"


def stats(store: StoreUrl, keys_file: KeysFile = None, json: JsonFlag = False) -> None:
    """Steps, iterations, refusals and times of all companions, added up over processes and replicas."""

    async def main() -> dict[str, Figures]:
        async with open_store(store, keys=read_keys(keys_file), create=False) as opened:
            return await totals(opened)

    found = run(main())
    if json:
        print_json({kind: asdict(figures) for kind, figures in found.items()})
        return
    if not found:
        out.print("no statistics: no companion has made a step yet")
        return
    for kind, figures in sorted(found.items()):
        out.print(
            f"{printable(kind)}: {figures.steps} steps, {figures.iterations} iterations, {figures.converged} converged"
        )
        table = Table("phase", "refusals", "time", box=None, pad_edge=False)
        for phase in sorted({*figures.refusals, *figures.seconds}):
            spent = f"{figures.seconds.get(phase, 0.0):,.1f} s"
            table.add_row(printable(phase), str(figures.refusals.get(phase, 0)), spent)
        out.print(table)
