"""`make pictures`: draw the README's pictures, `docs/holdfast.svg` and `docs/check.svg`.

The second is what `make run ARGS=--check` prints; `python docs/pictures.py --recording` runs it and records it anew.
"""

import subprocess
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
INK, MUTED, LINE, PAPER = "#0f172a", "#475569", "#94a3b8", "#ffffff"
OURS, GOOD, BAD = "#2563eb", "#15803d", "#b91c1c"
FONT = "ui-sans-serif, system-ui, sans-serif"
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker>'
)
MONO = "ui-monospace, SFMono-Regular, Menlo, monospace"


def _text(x: float, y: float, what: str, *, size: int = 13, fill: str = INK, extra: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {extra}>{escape(what)}</text>'


def _box(
    x: float, y: float, width: float, height: float, stroke: str = LINE, fill: str = PAPER, extra: str = ""
) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{stroke}" {extra}/>'


def _arrow(x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, extra: str = "") -> str:
    bend = (x1 + x2) / 2
    path = f"M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}"
    return f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="1.6" marker-end="url(#tip)" {extra}/>'


def _start(width: int, height: int, what: str, style: str = "", font: str = FONT) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{font}" role="img">',
        f"<title>{escape(what)}</title>",
        f"<style>{style}</style>" if style else "",
    ]


def session() -> str:
    """Clients, the gateway, servers; one server is killed and comes back, the clients' sessions hold."""
    what = "Three clients keep their sessions at the gateway while one of three servers is killed and comes back"
    style = (
        "@keyframes dead{0%,30%{opacity:0}35%,60%{opacity:1}65%,100%{opacity:0}}"
        "@keyframes alive{0%,30%{opacity:1}35%,60%{opacity:.15}65%,100%{opacity:1}}"
        "@keyframes told{0%,60%{opacity:0}66%,95%{opacity:1}100%{opacity:0}}"
        ".dead{opacity:0;animation:dead 9s infinite}.alive{animation:alive 9s infinite}"
        ".told{animation:told 9s infinite}"
        "@media (prefers-reduced-motion:reduce){.dead,.alive,.told{animation:none}}"
    )
    lines = _start(860, 330, what, style)
    lines += [
        f"<defs>{TIP}</defs>",
        _box(0.5, 0.5, 859, 329, "#e2e8f0"),
        _text(92, 34, "clients", fill=MUTED, extra='text-anchor="middle"'),
        _text(430, 34, "holdfast", fill=OURS, extra='text-anchor="middle" font-weight="bold"'),
        _text(757, 34, "servers", fill=MUTED, extra='text-anchor="middle"'),
    ]
    clients = [("your agent", "2025-11-25"), ("an IDE", "2025-11-25"), ("another agent", "2026-07-28")]
    servers = [("notes", "HTTP, 2026-07-28"), ("browser", "a program, 2025-11-25"), ("database", "HTTP, 2025-11-25")]
    rows = ["session 7f3a…", "session c01d…", "session 92be…"]
    lines.append(_box(270, 50, 320, 236, OURS, "#eff6ff"))
    for n, ((client, era), (server, kind), row) in enumerate(zip(clients, servers, rows, strict=True)):
        y = 62 + 76 * n
        middle = y + 29
        lines += [
            _box(20, y, 144, 58),
            _text(92, y + 26, client, extra='text-anchor="middle" font-weight="600"'),
            _text(92, y + 44, era, size=11, fill=MUTED, extra='text-anchor="middle"'),
            _box(286, y, 288, 58),
            _text(300, y + 24, row, extra=f'font-family="{MONO}" font-weight="600"'),
            _text(560, y + 24, "open", size=12, fill=GOOD, extra='text-anchor="end" font-weight="600"'),
            _arrow(166, middle, 284, middle),
        ]
        is_killed = server == "browser"
        held = "notes, browser, database" if n != 1 else "browser: replaced, and told once"
        mark = ' class="told"' if n == 1 else ""
        lines.append(_text(300, y + 44, held, size=11, fill=BAD if n == 1 else MUTED, extra=mark))
        if n == 1:
            lines.append(_arrow(576, middle, 684, middle, extra='class="alive"'))
        else:
            lines.append(_arrow(576, middle, 684, middle))
        lines += [
            _box(686, y, 154, 58),
            f"<g{' class=' + chr(34) + 'alive' + chr(34) if is_killed else ''}>",
            _text(763, y + 26, server, extra='text-anchor="middle" font-weight="600"'),
            _text(763, y + 44, kind, size=11, fill=MUTED, extra='text-anchor="middle"'),
            "</g>",
        ]
        if is_killed:
            lines += [
                '<g class="dead">',
                _box(686, y, 154, 58, BAD, "#fef2f2"),
                _text(763, y + 35, "killed", fill=BAD, extra='text-anchor="middle" font-weight="bold"'),
                "</g>",
            ]
    lines.append(
        _text(
            430,
            312,
            "A server dies, the gateway restarts, a replica takes over: every client keeps its session.",
            size=13,
            fill=MUTED,
            extra='text-anchor="middle"',
        )
    )
    return "\n".join([line for line in lines if line] + ["</svg>", ""])


def recording(said: list[str]) -> str:
    """A terminal that prints the lines one after the other, then stays."""
    command = "$ make run ARGS=--check"
    each, top, left = 19, 44, 18
    height = top + each * (len(said) + 1) + 14
    style = (
        "@keyframes show{to{opacity:1}}.line{opacity:0;animation:show .1s forwards}"
        "@media (prefers-reduced-motion:reduce){.line{opacity:1;animation:none}}"
    )
    lines = _start(640, height, "What make run ARGS=--check prints", style, MONO)
    lines += [
        f'<rect width="640" height="{height}" rx="8" fill="#0f172a"/>',
        *(f'<circle cx="{20 + 18 * n}" cy="18" r="5" fill="#334155"/>' for n in range(3)),
        _text(left, top, command, size=12, fill="#e2e8f0"),
    ]
    for n, line in enumerate(said):
        fill = "#fca5a5" if "killing" in line else "#86efac" if line.startswith(("ok", "all")) else "#94a3b8"
        wait = f'class="line" style="animation-delay:{0.6 + 0.45 * n:.2f}s" xml:space="preserve"'
        lines.append(_text(left, top + each * (n + 1), line, size=12, fill=fill, extra=wait))
    return "\n".join([line for line in lines if line] + ["</svg>", ""])


def main() -> None:
    (DOCS / "holdfast.svg").write_text(session())
    if "--recording" in sys.argv:
        command = [str(Path(sys.executable).parent / "holdfast"), "demo", "--check"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        (DOCS / "check.svg").write_text(recording(done.stdout.splitlines()))


if __name__ == "__main__":
    main()
