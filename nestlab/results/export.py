"""Tables for papers and other programs: csv, Markdown and LaTeX, each saying what the figures come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nestlab.errors import UserError
from nestlab.results.comparison import Comparison, caption
from nestlab.results.store import LoadedRun

if TYPE_CHECKING:
    import pandas


def run(loaded: LoadedRun, table: str | None, form: str) -> str:
    """One run's table, or its key figures."""
    import pandas

    if table is not None:
        frame, title = loaded.table(table), f"{table} of {loaded.id}"
    else:
        summary = loaded.manifest.get("summary") or {}
        figures = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
        frame = pandas.DataFrame(figures.items(), columns=["figure", "value"], dtype=object)
        title = f"Key figures of {loaded.id}"
    notes = [] if loaded.manifest.get("status") == "ok" else [f"the run is {loaded.manifest.get('status')}: no result"]
    return _format(form)(frame, f"{title}: {caption([loaded])}", notes)


def comparison(made: Comparison, form: str) -> str:
    """A comparison: whole for programs, and for readers with the intervals in brackets."""
    if form == "csv":
        based = [f"differences to {made.base}"] if made.base else []
        return csv(made.table, made.caption, [*made.notes, *based])
    return _format(form)(readable(made), made.caption, [*made.notes, *legend(made)])


def readable(made: Comparison) -> pandas.DataFrame:
    """The comparison as text: an interval is one cell, and columns without content are left out."""
    import pandas

    frame = made.table
    shown = frame.iloc[:, : list(frame.columns).index("mean")].copy()
    shown["mean"] = [number(value) for value in frame["mean"]]
    shown["sd"] = [number(value, 2) for value in frame["sd"]]
    shown["95 % interval"] = _intervals(frame, "low", "high")
    shown["difference"] = [number(value, 3) for value in frame["difference"]]
    shown["its 95 % interval"] = _intervals(frame, "diff_low", "diff_high")
    shown["pairing"] = frame["pairing"]
    empty = [
        name for name in ("sd", "95 % interval", "difference", "its 95 % interval", "pairing") if _empty(shown[name])
    ]
    return pandas.DataFrame(shown.drop(columns=empty))


def legend(made: Comparison) -> list[str]:
    """What the columns of a comparison mean, as far as they are there."""
    lines = [] if made.table["low"].isna().all() else ["mean, standard deviation and interval over n seeds"]
    if not made.table["difference"].isna().all():
        lines.append(f"difference: to {made.base}, of the same metric")
    return lines


def csv(frame: pandas.DataFrame, title: str, notes: list[str]) -> str:
    """With the source in a column of its own: a comment line would be data to many readers."""
    return frame.assign(source="; ".join([title, *notes])).to_csv(index=False, lineterminator="\n")


def markdown(frame: pandas.DataFrame, title: str, notes: list[str]) -> str:
    header, cells, numeric = _cells(frame, _escaped_markdown)
    lines = [f"**{_escaped_markdown(title)}**", "", _row(header)]
    lines += [_row(["---:" if right else "---" for right in numeric]), *map(_row, cells)]
    return "\n".join([*lines, *[f"\n*{_escaped_markdown(note)}*" for note in notes]]) + "\n"


def latex(frame: pandas.DataFrame, title: str, notes: list[str]) -> str:
    """A `table` environment; it needs \\usepackage{booktabs}."""
    header, cells, numeric = _cells(frame, _escaped_latex)
    columns = "".join("r" if right else "l" for right in numeric)
    text = ". ".join(_escaped_latex(part[:1].upper() + part[1:]) for part in [title, *notes])
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{text}.}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            " & ".join(header) + " \\\\",
            "\\midrule",
            *[" & ".join(row) + " \\\\" for row in cells],
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


FORMATS: dict[str, Callable[[Any, str, list[str]], str]] = {"csv": csv, "md": markdown, "latex": latex}


def number(value: Any, digits: int = 4) -> str:
    """A figure to so many digits, without powers of ten where they can be avoided; – where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10**digits and abs(value) < 1e15 else f"{value:.{digits}g}"


def _format(form: str) -> Callable[[Any, str, list[str]], str]:
    if form not in FORMATS:
        raise UserError(f"no format '{form}': choose one of {', '.join(FORMATS)}")
    return FORMATS[form]


def _cells(frame: pandas.DataFrame, escape: Callable[[str], str]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Header, rows and which columns are numbers (they stand right)."""
    from pandas.api.types import is_bool, is_number

    columns = [[_plain(value) for value in frame.iloc[:, i]] for i in range(frame.shape[1])]
    numeric = [
        bool(c) and all(_missing(v) or _like_number(v) or (is_number(v) and not is_bool(v)) for v in c) for c in columns
    ]
    rows = [[escape(number(value)) for value in row] for row in zip(*columns, strict=True)]
    return [escape(str(name)) for name in frame.columns], rows, numeric


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's, so that they are written the same."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _missing(value: Any) -> bool:
    return value is None or value == "–" or (isinstance(value, float) and math.isnan(value))


def _like_number(value: Any) -> bool:
    """Text that `number` or an interval made."""
    return isinstance(value, str) and bool(value) and not set(value) - set("0123456789.,+-e[] ")


def _intervals(frame: pandas.DataFrame, low: str, high: str) -> list[str]:
    pairs = zip(frame[low], frame[high], strict=True)
    return ["–" if math.isnan(a) else f"[{number(float(a))}, {number(float(b))}]" for a, b in pairs]


def _empty(column: pandas.Series) -> bool:
    return set(column) <= {"–", ""}


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped_markdown(text: str) -> str:
    text = " ".join(text.split())
    for sign in "\\|*_`<":
        text = text.replace(sign, f"\\{sign}")
    return text


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "·": r"$\cdot$"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "…": r"\dots{}"}


def _escaped_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
