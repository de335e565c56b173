"""`make docs`: write the tables of the code into the docs. `python docs/tables.py --check` only compares.

It writes the parts between the markers; everything else in those files is written by hand.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from holdfast import events
from holdfast.core.lifecycle import CIRCUIT, LINK, Lifecycle, LinkEvent, LinkState
from holdfast.core.retry import SAFE_METHODS, AfterReplacement, Circumstances, decide, decide_replacement
from holdfast.core.verdicts import VERDICT_RULES, Broke, Verdict, VerdictRule
from holdfast.gateway.config.settings import Policy, Settings
from holdfast.sinks.metrics.catalogue import METRICS
from holdfast.state.scopes import ENDS, SURVIVES


def drawing(table: Lifecycle) -> str:  # type: ignore[type-arg]
    """A lifecycle as a state diagram; steps that do not change the state are left out."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {table.initial.name}"]
    for state, steps in table.steps.items():
        for event, then in steps.items():
            if then is not state:
                lines.append(f"    {state.name} --> {then.name}: {event.value}")
    return "\n".join([*lines, "```"])


def _walk(start: LinkState, events: Iterable[LinkEvent]) -> str:
    path, state = [start.value], start
    for event in events:
        state = LINK.next(state, event)
        path.append(f"*{event.value}* → {state.value}")
    return " → ".join(path)


def flows() -> str:
    """What happens on first use and after each kind of loss, walked through the table."""
    up = [LinkEvent.RESOLVED, LinkEvent.OPENED, LinkEvent.HANDSHAKE_DONE]
    rest = {LinkState.RESOLVE: up, LinkState.OPEN: up[1:], LinkState.HANDSHAKE: up[2:]}
    rows = ["| event | path |", "| --- | --- |", f"| first call | {_walk(LinkState.CLOSED, [LinkEvent.USE, *up])} |"]
    for event in (LinkEvent.SESSION_LOST, LinkEvent.TRANSPORT_LOST, LinkEvent.AUTH_NEEDED):
        entered = LINK.next(LinkState.READY, event)
        rows.append(f"| {event.value} | {_walk(LinkState.READY, [event, *rest[entered]])} |")
    rows.append(f"| close | {_walk(LinkState.READY, [LinkEvent.CLOSE, LinkEvent.CLOSED])} |")
    return "\n".join(rows)


def _shape(row: VerdictRule) -> str:
    parts: list[str] = []
    if row.broke is not Broke.NOWHERE:
        parts.append(f"broke: {row.broke.value}")
    if row.era is not None:
        parts.append(row.era.value)
    if row.session_sent is not None:
        parts.append("id sent" if row.session_sent else "no id sent")
    if row.status is not None:
        many = isinstance(row.status, range)
        parts.append(
            f"status {row.status.start}–{row.status.stop - 1}" if many else f"status {', '.join(map(str, row.status))}"
        )
    if row.codes is not None:
        parts.append(f"code {', '.join('none' if code is None else str(code) for code in row.codes)}")
    if row.has_code:
        parts.append("a JSON-RPC error")
    if row.text is not None:
        parts.append("text")
    if row.retry_after:
        parts.append("Retry-After")
    if row.step_up:
        parts.append("insufficient_scope")
    return "; ".join(parts)


def verdicts() -> str:
    rows = ["| what happened | condition | verdict |", "| --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {row.name} | {_shape(row)} | {row.verdict.value} |" for row in VERDICT_RULES)])


def replays() -> str:
    rows = ["| verdict | unsafe call | safe call | after all tries |", "| --- | --- | --- | --- |"]
    for verdict in Verdict:
        cells = [
            decide(verdict, Circumstances(safe, attempts, renewable=True)).value
            for safe, attempts in ((False, 1), (True, 1), (True, 3))
        ]
        rows.append(f"| {verdict.value} | {' | '.join(cells)} |")
    return "\n".join(rows)


def replacements() -> str:
    rows = [
        "| call | lost session kept something | server | hook put it back | then |",
        "| --- | --- | --- | --- | --- |",
    ]
    for safe, kept, stateful, reseeded in product((False, True), repeat=4):
        decision = decide_replacement(safe=safe, kept_state=kept, stateful=stateful, reseeded=reseeded, tries_left=True)
        if decision is AfterReplacement.RAISE:
            cells = ("unsafe", "yes", "stateful", "no")
            rows.append(f"| {' | '.join(cells)} | {decision.value} |")
    rows.append(f"| anything else | | | | {AfterReplacement.REPLAY.value} |")
    return "\n".join(rows)


def settings(model: type[BaseModel], prefix: str = "") -> list[str]:
    """A model's fields as table rows, those of its parts under their names."""
    rows: list[str] = []
    for name, field in model.model_fields.items():
        part = next((kind for kind in (field.annotation, *_inside(field.annotation)) if _is_model(kind)), None)
        if part is not None:
            rows += settings(part, f"{prefix}{name}.")
            continue
        default = "" if field.is_required() else repr(field.get_default(call_default_factory=True))
        rows.append(f"| `{prefix}{name}` | {f'`{default}`' if default else ''} | {field.description or ''} |")
    return rows


def _inside(kind: object) -> list[object]:
    found: list[object] = []
    for each in get_args(kind):
        found += [each, *_inside(each)]
    return found


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def config_table(model: type[BaseModel]) -> str:
    return "\n".join(["| setting | default | meaning |", "| --- | --- | --- |", *settings(model)])


def scopes_table() -> str:
    """What survives what."""
    rows = [f"| scope | {' | '.join(ENDS)} |", "| --- " * (len(ENDS) + 1) + "|"]
    for scope, survives in SURVIVES.items():
        rows.append(f"| {scope} | {' | '.join('stays' if survives[end] else '–' for end in ENDS)} |")
    return "\n".join(rows)


def events_table() -> str:
    """Every event with its fields; each has `at`, seconds since 1970."""
    rows = ["| event | when | fields besides `at` |", "| --- | --- | --- |"]
    for name, event in vars(events).items():
        if isinstance(event, type) and is_dataclass(event) and not name.startswith("_"):
            said = " ".join((event.__doc__ or "").split())
            rows.append(f"| `{name}` | {said} | {', '.join(f'`{f.name}`' for f in fields(event) if f.name != 'at')} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """Every metric with its labels."""
    rows = ["| metric | kind | what | labels |", "| --- | --- | --- | --- |"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {metric.help} | {labels} |")
    return "\n".join(rows)


BLOCKS = {
    "link": drawing(LINK),
    "circuit": drawing(CIRCUIT),
    "flows": flows(),
    "verdicts": verdicts(),
    "replays": replays(),
    "replacements": replacements(),
    "safe": ", ".join(f"`{method}`" for method in sorted(SAFE_METHODS)),
}


def eras() -> dict[str, str]:
    """What holds in which cell of client and server eras, from the lists that tests walk."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.eras import table

    return {"counts": table.counts(), "features": table.features()}


DOCS = {
    "eras.md": eras(),
    "events.md": {"events": events_table()},
    "links.md": BLOCKS,
    "servers.md": {"scopes": scopes_table()},
    "observability.md": {"metrics": metrics_table()},
    "configuration.md": {"settings": config_table(Settings), "policy": config_table(Policy)},
}


def main() -> None:
    for name, blocks in DOCS.items():
        write(Path(__file__).parent / name, blocks)


def write(doc: Path, blocks: dict[str, str]) -> None:
    old = new = doc.read_text()
    for name, block in blocks.items():
        pattern = rf"<!-- begin {name} -->\n.*?<!-- end {name} -->"
        replacement = f"<!-- begin {name} -->\n{block}\n<!-- end {name} -->"
        new, found = re.subn(pattern, lambda _, text=replacement: text, new, flags=re.DOTALL)
        if found != 1:
            sys.exit(f"{doc.name} has {found} places for {name}; expected one")
    if "--check" in sys.argv[1:]:
        if new != old:
            sys.exit(f"docs/{doc.name} differs from the code; run `make docs`")
    else:
        doc.write_text(new)


main()
