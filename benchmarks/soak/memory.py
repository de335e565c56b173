"""The gateway's memory over time: samples, slope and plot."""

import asyncio
import itertools
import time
from dataclasses import dataclass

from benchmarks.soak.gateway import Gateway
from benchmarks.soak.processes import megabytes
from benchmarks.soak.settings import JUDGED, SAMPLE, WARM_UP


@dataclass(frozen=True)
class Sample:
    at: float  # seconds since the beginning
    process: int
    age: float  # of the process
    size: float  # MB


class Curve:
    """The gateway's memory over time."""

    def __init__(self, gateway: Gateway, began: float) -> None:
        self._gateway = gateway
        self._began = began
        self.samples: list[Sample] = []

    async def run(self) -> None:
        while True:
            pid, now = self._gateway.pid, time.monotonic()
            if pid and (size := megabytes(pid)):
                self.samples.append(Sample(now - self._began, pid, now - self._gateway.began, size))
            await asyncio.sleep(SAMPLE)

    def slope(self) -> tuple[float | None, float]:
        """MB a minute over the last two thirds, within processes that had warmed up; and the seconds of samples behind it."""
        if not self.samples:
            return None, 0.0
        start = self.samples[-1].at / 3
        segments: dict[int, list[Sample]] = {}
        for sample in self.samples:
            if sample.at >= start and sample.age >= WARM_UP:
                segments.setdefault(sample.process, []).append(sample)
        above = below = seconds = 0.0
        for segment in segments.values():
            middle = sum(s.at for s in segment) / len(segment)
            level = sum(s.size for s in segment) / len(segment)
            above += sum((s.at - middle) * (s.size - level) for s in segment)
            below += sum((s.at - middle) ** 2 for s in segment)
            seconds += segment[-1].at - segment[0].at
        return (above / below * 60 if below and seconds >= JUDGED else None), seconds

    def line(self, width: int = 72) -> str:
        if not self.samples:
            return ""
        step = max(1, -(-len(self.samples) // width))
        sizes = [max(s.size for s in self.samples[n : n + step]) for n in range(0, len(self.samples), step)]
        low, high = min(sizes), max(sizes)
        blocks = "▁▂▃▄▅▆▇█"
        drawn = "".join(blocks[min(7, int((size - low) / max(high - low, 0.001) * 8))] for size in sizes)
        return f"{low:.0f} MB {drawn} {high:.0f} MB"

    def svg(self, title: str) -> str:
        width, height, left, foot, top = 900, 300, 56, 34, 34
        last = max(self.samples[-1].at, 1.0)
        high = max(s.size for s in self.samples) * 1.1

        def x(at: float) -> float:
            return left + at / last * (width - left - 16)

        def y(size: float) -> float:
            return height - foot - size / high * (height - foot - top)

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20">{title}</text>',
        ]
        for n in range(5):
            size = high * n / 4
            parts.append(f'<line x1="{left}" x2="{width - 16}" y1="{y(size):.1f}" y2="{y(size):.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y(size) + 4:.1f}" text-anchor="end">{size:.0f} MB</text>')
        for n in range(7):
            at = last * n / 6
            parts.append(f'<text x="{x(at):.1f}" y="{height - 12}" text-anchor="middle">{at / 60:.1f} min</text>')
        for _, group in itertools.groupby(self.samples, key=lambda s: s.process):
            points = list(group)
            parts.append(
                f'<line x1="{x(points[0].at):.1f}" x2="{x(points[0].at):.1f}" y1="{top}" y2="{height - foot}" stroke="#e8a33d" stroke-dasharray="3 3"/>'
            )
            drawn = " ".join(f"{x(s.at):.1f},{y(s.size):.1f}" for s in points)
            parts.append(f'<polyline points="{drawn}" fill="none" stroke="#2060a0" stroke-width="1.5"/>')
        return "\n".join([*parts, "</svg>", ""])
