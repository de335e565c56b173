"""The history of a session: steps, undos and forks as a tree with generations, and its export as a drawing.

Only sessions of the same caller are included.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.core.values import JSON, members
from holdfast.state.log import HistoryEntry
from holdfast.state.storage import records
from holdfast.state.storage.entries import KIND
from holdfast.stores.contract import Store


@dataclass(slots=True)
class Node:
    """One revision. A new generation begins with each undo and each fork."""

    handle: str
    rev: int
    label: str
    generation: int
    at: float | None = None
    phase: str | None = None
    children: list["Node"] = field(default_factory=list["Node"])

    @property
    def text(self) -> str:
        phase = f" → {self.phase}" if self.phase else ""
        return f"{self.rev} {self.label}{phase}"

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
        return nodes


def lineage(entries: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """The entries that were not undone."""
    states: list[tuple[int, tuple[HistoryEntry, ...]]] = [(0, ())]
    for entry in entries:
        if entry.undone_to is not None:
            kept = next(found for rev, found in reversed(states) if rev <= entry.undone_to)
        else:
            kept = (*states[-1][1], entry)
        states.append((entry.rev, kept))
    return list(states[-1][1])


async def tree(store: Store, handle: str, principal: str | None = None) -> Node:
    """The tree below a session: its own revisions, and those of all sessions forked from it."""
    forks: dict[str, list[tuple[str, int]]] = {}
    owner = principal or (await records.find(store, handle)).principal
    after: str | None = None
    while True:
        page = await store.scan(kind=KIND, principal=owner, after=after)
        for record in page.records:
            parent = members(members(record.data).get("parent"))
            if isinstance(parent.get("handle"), str) and isinstance(parent.get("rev"), int):
                forks.setdefault(str(parent["handle"]), []).append((record.id, int(str(parent["rev"]))))
        after = page.next
        if after is None:
            break
    return await _grown(store, handle, 0, forks, {handle})


async def _grown(
    store: Store, handle: str, generation: int, forks: dict[str, list[tuple[str, int]]], seen: set[str]
) -> Node:
    record = await records.find(store, handle)
    root = Node(handle, 1, "begin", generation, record.created)
    nodes = {1: root}
    phases = await _phases(store, handle)
    root.phase = phases.get(1)
    deepest = generation
    after = 0
    while True:
        page = await store.log(KIND, handle, after=after, limit=records.PAGE)
        for each in page:
            entry = HistoryEntry.of(each)
            if entry.rev in nodes:
                continue  # a second entry of the same step
            back = entry.undone_to
            came_from = nodes.get(entry.rev - 1 if back is None else back, root)
            if back is not None:
                deepest += 1
            level = deepest if back is not None else came_from.generation
            node = Node(handle, entry.rev, entry.label, level, entry.at, phases.get(entry.rev))
            came_from.children.append(node)
            nodes[entry.rev] = node
        if len(page) < records.PAGE:
            break
        after = page[-1].seq
    for child, rev in sorted(forks.get(handle, [])):
        if child not in seen:
            seen.add(child)
            nodes.get(rev, root).children.append(await _grown(store, child, deepest + 1, forks, seen))
    return root


async def _phases(store: Store, handle: str) -> dict[int, str]:
    """The phase of a companion at each revision, as far as it is in the log; empty for other sessions."""
    record = await records.find(store, handle)
    phase = members(records.stored(record)["state"]).get("phase")
    if not isinstance(phase, str):
        return {}
    found = {record.rev: phase}
    async for entry in records.newest(store, handle):
        was = members(members(entry.data).get("was"))
        before = members(was.get("set")).get("phase", members(was.get("state")).get("phase"))
        if isinstance(before, str):
            phase = before
        found[entry.rev - 1] = phase  # the oldest entry of a revision decides
    return found


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
