"""The chart of the peers as SVG: one bar for each peer, requests a second on a log scale."""

import math
from html import escape

LEFT, WIDTH, ROW, TOP = 230, 560, 26, 46
OURS, OTHERS = "#2563eb", "#94a3b8"


def chart(title: str, bars: list[tuple[str, float | None, bool]]) -> str:
    """Bars of (name, value or nothing, ours); a peer without a value has a row that says so."""
    values = [value for _, value, _ in bars if value]
    low = 10 ** math.floor(math.log10(min(values))) if values else 1
    high = 10 ** math.ceil(math.log10(max(values))) if values else 10
    decades = max(1, round(math.log10(high / low)))

    def along(value: float) -> float:
        return LEFT + WIDTH * math.log10(max(value, low) / low) / decades

    height = TOP + ROW * len(bars) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{LEFT + WIDTH + 90}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(decades + 1):
        x, value = LEFT + WIDTH * power / decades, low * 10**power
        bottom = TOP + ROW * len(bars)
        lines += [
            f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#e2e8f0"/>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#475569">{value:,.0f}</text>',
        ]
    for index, (name, value, ours) in enumerate(bars):
        y = TOP + ROW * index
        lines.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        if value:
            end = max(along(value), LEFT + 2)
            lines += [
                f'<rect x="{LEFT}" y="{y + 3}" width="{end - LEFT:.1f}" height="{ROW - 8}" fill="{OURS if ours else OTHERS}"/>',
                f'<text x="{end + 6:.1f}" y="{y + 16}">{value:,.0f}</text>',
            ]
        else:
            lines.append(f'<text x="{LEFT + 6}" y="{y + 16}" fill="#475569">no result</text>')
    return "\n".join([*lines, "</svg>", ""])
