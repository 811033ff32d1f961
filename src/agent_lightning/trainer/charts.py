"""Charts as SVG text: lines over steps, and bars. Colours come from the page's style, so that both themes work.

Every text that is handed in is escaped here. Coordinates: x to the right, y down, in a box of WIDTH x HEIGHT units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 34  # margins
SMALL_WIDTH, SMALL_HEIGHT = 320, 150
GAP = 2  # between neighbouring bars

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    points: Points  # (step, value), finite, by step
    style: str = "a"  # class of the page's style: a, b or c


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The plot's area and the values at its edges."""

    width: int
    height: int
    low: float
    high: float
    first: float = 0.0
    last: float = 1.0

    def x(self, value: float) -> float:
        share = (value - self.first) / (self.last - self.first)
        return round(LEFT + share * (self.width - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.height - BOTTOM - share * (self.height - TOP - BOTTOM), 1)


def lines(title: str, series: Sequence[Series], *, percent: bool = False, small: bool = False) -> Markup:
    """Values over steps on one axis; empty without any point. Series of few points show them as dots."""
    drawn = [item for item in series if item.points]
    if not drawn:
        return Markup("")
    values = [value for item in drawn for _, value in item.points]
    steps = [step for item in drawn for step, _ in item.points]
    low, high = (0.0, 1.0) if percent else _limits(values)
    first, last = min(steps), max(steps)
    width, height = (SMALL_WIDTH, SMALL_HEIGHT) if small else (WIDTH, HEIGHT)
    box = Box(width=width, height=height, low=low, high=high, first=first, last=last if last > first else first + 1)
    body = [_grid(box, percent=percent, count=3 if small else 5), _steps(box)]
    body += [_line(box, item, percent=percent) for item in drawn]
    return _svg(title, width, height, body)


def bars(title: str, labels: Sequence[str], series: Sequence[Series], *, unit: str) -> Markup:
    """Groups of bars, one a label; each series has one value a label, in its points' second places."""
    if not labels:
        return Markup("")
    values = [value for item in series for _, value in item.points]
    low, high = _limits([0.0, *values])
    width, height = WIDTH, HEIGHT
    box = Box(width=width, height=height, low=min(low, 0.0), high=high)
    slot = (width - LEFT - RIGHT) / len(labels)
    thick = min(34.0, (slot * 0.76 - GAP * (len(series) - 1)) / len(series))
    body = [_grid(box, percent=False, count=4, whole=all(value == int(value) for value in values))]
    every = max(1, math.ceil(len(labels) * 52 / (width - LEFT - RIGHT)))
    for place, label in enumerate(labels):
        middle = LEFT + slot * (place + 0.5)
        start = middle - (thick * len(series) + GAP * (len(series) - 1)) / 2
        for rank, item in enumerate(series):
            value = item.points[place][1]
            hint = f"{item.name}, {label}: {value:.4g} {unit}"
            body.append(_bar(box, start + rank * (thick + GAP), thick, value, item.style, hint))
        if place % every == 0:
            body.append(_text(middle, height - BOTTOM + 16, label, "middle"))
    return _svg(title, width, height, body)


def legend(series: Sequence[Series]) -> Markup:
    """Names beside their colours; nothing for a single series, which its chart's title names."""
    if len(series) < 2:
        return Markup("")
    keys = "".join(f'<span><i class="key {item.style}"></i>{escape(item.name)}</span>' for item in series)
    return Markup(f'<p class="legend">{keys}</p>')


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Round numbers around the values; zero is an edge when it is near."""
    low, high = min(values), max(values)
    if low > 0 and low < 0.6 * high:
        low = 0.0
    if high < 0 and high > 0.6 * low:
        high = 0.0
    if high - low < 1e-12:  # one value: from zero to a round number beyond it
        edge = _round(abs(high) * 1.2) if high else 1.0
        return (-edge, 0.0) if high < 0 else (0.0, edge)
    step = _round((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _round(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def _grid(box: Box, *, percent: bool, count: int, whole: bool = False) -> str:
    step = _round((box.high - box.low) / count)
    step = max(1.0, step) if whole else step
    ticks = [box.low + step * place for place in range(math.floor((box.high - box.low) / step + 1e-9) + 1)]
    parts = []
    for tick in ticks:
        y = box.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{box.width - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(LEFT - 7, y + 4, f"{tick:.0%}" if percent else _short(tick, step), "end"))
    return "".join(parts)


def _steps(box: Box) -> str:
    """Labels of whole steps under the plot."""
    step = max(1, _round((box.last - box.first) / 6))
    first = math.ceil(box.first / step) * step
    ticks = [first + step * place for place in range(int((box.last - first) / step + 1e-9) + 1)]
    labels = "".join(_text(box.x(tick), box.height - BOTTOM + 16, f"{tick:g}", "middle") for tick in ticks)
    return labels + _text(box.width - RIGHT, box.height - 3, "step", "end")


def _line(box: Box, series: Series, *, percent: bool) -> str:
    places = [(box.x(step), box.y(value)) for step, value in series.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline class="line {series.style}" points="{path}"/>']
    radius = 3.5 if len(places) <= 40 else 2
    for (x, y), (step, value) in zip(places, series.points, strict=True):
        hint = f"{series.name}, step {step:g}: " + (f"{value:.1%}" if percent else f"{value:.4g}")
        dot = f'<circle class="dot {series.style}" cx="{x}" cy="{y}" r="{radius}"/>' if len(places) <= 40 else ""
        parts.append(f'<g>{dot}<circle class="hit" cx="{x}" cy="{y}" r="8"/><title>{escape(hint)}</title></g>')
    return "".join(parts)


def _bar(box: Box, left: float, thick: float, value: float, style: str, hint: str) -> str:
    zero, end = box.y(0.0), box.y(value)
    top, height = min(zero, end), abs(zero - end)
    return (
        f'<g><rect class="bar {style}" x="{left:.1f}" y="{top:.1f}" width="{thick:.1f}" height="{height:.1f}" '
        f'rx="2"/><title>{escape(hint)}</title></g>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float, step: float) -> str:
    """A tick with the decimals that its distance to the next one needs."""
    if abs(value) < step / 2:
        return "0"
    if step < 0.0001 or step >= 10_000:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _svg(title: str, width: int, height: int, body: Sequence[str]) -> Markup:
    return Markup(f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>')
