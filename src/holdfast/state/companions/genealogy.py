"""The history of a session: steps, undos and forks as a tree with generations, and its export as a drawing.

Only sessions of the same caller are included.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.core.values import JSON, members
from holdfast.errors import NotFound
from holdfast.state.log import HistoryEntry
from holdfast.state.storage import outline
from holdfast.state.storage.outline import Outline, OutlineStep
from holdfast.stores.contract import Store


@dataclass(slots=True)
class Node:
    """The revision `rev` of the record `handle`: its `label`, its `phase`, when it was made (`at`) and what followed
    (its `children`). A new `generation` begins with each undo and each fork."""

    handle: str
    rev: int
    label: str
    generation: int
    at: float | None = None
    phase: str | None = None
    children: list["Node"] = field(default_factory=list["Node"])
    ended: float | None = None
    """When its session ended, on the first node of the session."""

    @property
    def text(self) -> str:
        """One line that says what it is."""
        phase = f" → {self.phase}" if self.phase else ""
        ended = ", ended" if self.ended is not None else ""
        return f"{self.rev} {self.label}{phase}{ended}"

    def walk(self) -> Iterator["Node"]:
        """This node and all below it, however deep."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def to_json(self) -> JSON:
        """A list of nodes, each with its parent."""
        parents: dict[int, Node] = {id(child): node for node in self.walk() for child in node.children}
        nodes: list[JSON] = []
        for node in self.walk():
            came_from = parents.get(id(node))
            parent: JSON = {"handle": came_from.handle, "rev": came_from.rev} if came_from is not None else None
            about: dict[str, JSON] = {"handle": node.handle, "rev": node.rev, "label": node.label, "parent": parent}
            nodes.append({**about, "generation": node.generation, "at": node.at, "phase": node.phase})
            if node.ended is not None:
                nodes[-1] = {**members(nodes[-1]), "ended": node.ended}
        return nodes


def lineage(entries: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """The entries that still count: what was undone is left out."""
    states: list[tuple[float, tuple[HistoryEntry, ...]]] = [(float("-inf"), ())]
    for entry in entries:
        if entry.undone_to is not None:
            kept = next(found for rev, found in reversed(states) if rev <= entry.undone_to)
        else:
            kept = (*states[-1][1], entry)
        states.append((entry.rev, kept))
    return list(states[-1][1])


async def tree(store: Store, handle: str, principal: str | None = None) -> Node:
    """The tree that a session stands in: from the oldest session that it goes back to, with all that were forked from
    that. Sessions that ended are in it for 30 days, without what they held."""
    found = await outline.read(store, handle)
    if found is None or (principal is not None and found.principal != principal):
        raise NotFound("there is no such session", id=handle[:80], remedy="ask for one that you have begun")
    top = found
    climbed = {handle}
    while top.parent is not None and top.parent[0] not in climbed:
        parent = await outline.read(store, top.parent[0])
        if parent is None or parent.principal != found.principal:
            break
        climbed.add(parent.handle)
        top = parent
    forks = await outline.forks(store, found.principal)
    return await _grown(store, top, 0, forks, {top.handle})


async def _grown(
    store: Store, of: Outline, generation: int, forks: dict[str, list[tuple[str, int]]], seen: set[str]
) -> Node:
    top = root = Node(of.handle, 1, "begin", generation, of.created, of.phase, ended=of.ended)
    nodes: dict[int, Node] = {}
    inherited = [step for step in of.steps if step.origin is not None]
    if inherited and not generation:  # the sessions that these steps are from are gone
        came = inherited[0].origin
        assert came is not None
        top = Node(came.handle, came.rev - 1, "begin" if came.rev == 2 else "earlier", 0)
        deepest = _grow(top, nodes, inherited, 0)
        root.generation = deepest + 1
        nodes.get(1, top).children.append(root)
        generation = root.generation
    nodes[1] = root
    deepest = _grow(root, nodes, [step for step in of.steps if step.origin is None], generation)
    for child, rev in sorted(forks.get(of.handle, [])):
        if child not in seen:
            seen.add(child)
            below = await outline.read(store, child)
            if below is not None:
                nodes.get(rev, root).children.append(await _grown(store, below, deepest + 1, forks, seen))
    return top


def _grow(root: Node, nodes: dict[int, Node], steps: Sequence[OutlineStep], generation: int) -> int:
    """Put steps below the revisions that they were made from; the deepest generation comes back."""
    deepest = generation
    for step in steps:
        back = step.undone_to
        came_from = nodes.get(step.rev - 1 if back is None else back, root)
        if back is not None:
            deepest += 1
        handle, rev = (step.origin.handle, step.origin.rev) if step.origin is not None else (root.handle, step.rev)
        level = deepest if back is not None else came_from.generation
        node = Node(handle, rev, step.label, level, step.at, step.phase)
        came_from.children.append(node)
        nodes[step.rev] = node
    return deepest


def mermaid(root: Node) -> str:
    """As a Mermaid flowchart."""
    lines = ["flowchart TD"]
    for node in root.walk():
        lines.append(f'    {_id(node)}["{_quoted(node.text)}"]')
        lines += [f"    {_id(node)} --> {_id(child)}" for child in node.children]
    return "\n".join(lines)


def graphviz(root: Node) -> str:
    """As a Graphviz graph."""
    lines = ["digraph genealogy {", "    node [shape=box];"]
    for node in root.walk():
        lines.append(f'    {_id(node)} [label="{_quoted(node.text)}"];')
        lines += [f"    {_id(node)} -> {_id(child)};" for child in node.children]
    return "\n".join([*lines, "}"])


def _id(node: Node) -> str:
    plain = "".join(character if character.isalnum() else "_" for character in node.handle)
    return f"n_{plain}_{node.rev}"


def _quoted(text: str) -> str:
    kept = "".join(character if character.isprintable() else " " for character in text)
    return kept.replace("\\", "/").replace('"', "'").replace("[", "(").replace("]", ")").replace("<", "‹")[:80]


def transcript(entries: Iterable[HistoryEntry]) -> str:
    """The conversation for people: messages by role, other entries by label."""
    lines: list[str] = []
    for entry in entries:
        body = members(entry.data)
        if entry.label == "message" and "role" in body:
            lines.append(f"{body['role']}: {_text(body.get('content'))}")
        else:
            text = _text(entry.data)
            lines.append(f"[{entry.label}] {text}".rstrip())
    return "\n".join(lines)


def _text(value: JSON) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)
