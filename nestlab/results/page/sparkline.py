"""A figure's course over runs as a small inline picture."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT, MARGIN = 160, 36, 4


def sparkline(values: list[float], label: str) -> str:
    """A line with its last point marked; of a single value only the point. `label` is what a screen reader says."""
    points = _points(values)
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    line = f'<polyline points="{drawn}"/>' if len(points) > 1 else ""
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<title>{escape(label)}</title>{line}<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/></svg>'
    )


def _points(values: list[float]) -> list[tuple[float, float]]:
    low, high = min(values), max(values)
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    across = HEIGHT - 2 * MARGIN
    # A course without change is a line in the middle; halves keep the sums below overflow.
    span = high / 2 - low / 2
    shares = [(value / 2 - low / 2) / span if span else 0.5 for value in values]
    return [
        (MARGIN + i * step if len(values) > 1 else WIDTH / 2, HEIGHT - MARGIN - s * across)
        for i, s in enumerate(shares)
    ]
