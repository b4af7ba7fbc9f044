"""Line charts as SVG text: panels above each other over one horizontal axis."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 640
_HEIGHT: Final = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 34, 26
_COLOURS: Final = ("#3366aa", "#cc6622", "#228855")


@dataclass(frozen=True)
class Panel:
    """One chart: its heading, with the unit, and its lines by name; NaN leaves a gap."""

    title: str
    lines: Mapping[str, Sequence[float]]


def ticks(top: float) -> list[float]:
    """Round values from 0 that reach `top`, four to seven of them."""
    if not (math.isfinite(top) and top > 0):
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top))
    step = next(s * power for s in (0.2, 0.5, 1.0, 2.0) if top / (s * power) <= 6)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def chart(title: str, axis: str, at: Sequence[float], panels: Sequence[Panel]) -> str:
    """The chart. `at` are positive places on the horizontal axis, which is logarithmic."""
    height = 40 + len(panels) * _HEIGHT + 24
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{html.escape(title)}</text>',
    ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, at, 40 + i * _HEIGHT)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts += [
        f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{html.escape(axis)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, at: Sequence[float], y: int) -> Iterator[str]:
    low, high = math.log2(min(at)), math.log2(max(at))
    floor, ceiling = y + _HEIGHT - _BOTTOM, y + _TOP
    known = [v for line in panel.lines.values() for v in line if not math.isnan(v)]
    marks = ticks(max(known, default=0.0))

    def place(x: float) -> float:
        share = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def level(v: float) -> float:
        return floor - v / marks[-1] * (floor - ceiling)

    yield f'<text x="{_LEFT}" y="{y + 14}" font-weight="bold">{html.escape(panel.title)}</text>'
    for mark in marks:
        yield (
            f'<path d="M{_LEFT} {level(mark):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{level(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for x in at:
        yield f'<text x="{place(x):.1f}" y="{floor + 16}" text-anchor="middle">{x:g}</text>'
    for i, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        pairs = zip(at, line, strict=True)
        points = [(place(x), level(v)) for x, v in pairs if not math.isnan(v)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for px, py in points:
            yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>'
        if len(panel.lines) > 1:
            left = _WIDTH - _RIGHT - 130 * (len(panel.lines) - i)
            yield f'<rect x="{left}" y="{y + 6}" width="10" height="10" fill="{colour}"/>'
            yield f'<text x="{left + 15}" y="{y + 15}">{html.escape(name)}</text>'
