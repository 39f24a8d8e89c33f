"""A comparison as a table: on the terminal, as CSV, and as LaTeX."""

import math
from collections.abc import Sequence
from typing import Final

from deltafl.sim.compare.pairs import Compared
from deltafl.sim.reproduce.experiment import Table
from deltafl.sim.visible import visible

_NONE: Final = "–"
_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "–": "--",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "θ": r"$\theta$",
}


def as_table(
    compared: Sequence[Compared], statistic: str, level: float, *, is_share: bool = True
) -> Table:
    """Shares in percent with differences in percentage points; other numbers as they are.

    Columns that would be empty for every method are left out.

    Args:
        compared: of `compare_in_pairs`.
        statistic: what was compared, in words.
        level: the coverage of the intervals.
        is_share: whether it is a share, such as an error rate.
    """
    scale, unit, points = (100.0, " (%)", " (points)") if is_share else (1.0, "", "")
    width = f"{100 * level:g}%"
    columns = (
        "method",
        "pairs",
        f"{statistic}{unit}, mean ± std",
        f"{compared[0].method}, same pairs{unit}",
        f"difference over runs [{width}]",
        "effect (d)",
        "p over runs (t)",
        "Holm",
        "p (signed rank)",
        "p for new devices",
        f"difference over devices [{width}]",
        "p over devices",
        "Holm, devices",
    )
    rows = [_row(one, compared[0].pairs, scale) for one in compared]
    filled = [place for place in range(len(columns)) if any(row[place] != _NONE for row in rows)]
    return Table(
        "compare",
        f"{statistic[:1].upper()}{statistic[1:]}, less {compared[0].method}{points}",
        tuple(columns[place] for place in filled),
        tuple(tuple(row[place] for place in filled) for row in rows),
        tuple(_record(one) for one in compared),
    )


def as_latex(table: Table) -> str:
    r"""A `tabular` with the rules of booktabs, texts escaped; the package `booktabs` is needed.

    >>> print(as_latex(Table("t", "T", ("method", "p"), (("Δ-FL_2", "< 0.001"),))), end="")
    % T
    \begin{tabular}{lr}
    \toprule
    method & p \\
    \midrule
    $\Delta$-FL\_2 & $<$ 0.001 \\
    \bottomrule
    \end{tabular}
    """
    lines = [
        f"% {_plain(table.title)}",
        f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        _line(table.columns),
        r"\midrule",
        *map(_line, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """A name without what would end its line."""
    return visible(text).replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    texts = ("".join(_LATEX.get(sign, sign) for sign in _plain(cell)) for cell in cells)
    return " & ".join(texts) + r" \\"


def _row(one: Compared, pairs: int, scale: float) -> tuple[str, ...]:
    number = "{:.2f}" if scale != 1 else "{:.4g}"
    spread = "" if one.std is None else f" ± {number.format(scale * one.std)}"
    seeds, devices = one.seeds, one.devices
    return (
        one.method,
        str(one.pairs),
        f"{number.format(scale * one.mean)}{spread}",
        # where it is that of the first row, the column says nothing
        _NONE
        if one.baseline_mean is None or one.pairs == pairs
        else number.format(scale * one.baseline_mean),
        _NONE if seeds is None else _interval(scale, seeds.mean, seeds.low, seeds.high),
        _NONE if seeds is None or not math.isfinite(seeds.effect) else f"{seeds.effect:+.2f}",
        _p(seeds.p_t if seeds else None),
        _p(one.adjusted_p_seeds),
        _p(seeds.p_signed_rank if seeds else None),
        _p(one.new_devices_p),
        _NONE
        if devices is None
        else _interval(scale, devices.difference, devices.low, devices.high),
        _p(devices.p if devices else None),
        _p(one.adjusted_p_devices),
    )


def _record(one: Compared) -> dict[str, object]:
    seeds, devices = one.seeds, one.devices
    return {
        "method": one.method,
        "pairs": one.pairs,
        "mean": one.mean,
        "std": one.std,
        "baseline_mean": one.baseline_mean,
        "difference": seeds.mean if seeds else None,
        "low": seeds.low if seeds else None,
        "high": seeds.high if seeds else None,
        "effect": seeds.effect if seeds else None,
        "p_t": seeds.p_t if seeds else None,
        "adjusted_p_t": one.adjusted_p_seeds,
        "p_signed_rank": seeds.p_signed_rank if seeds else None,
        "p_sign": seeds.p_sign if seeds else None,
        "smallest_p": seeds.smallest_p if seeds else None,
        "p_new_devices": one.new_devices_p,
        "device_difference": devices.difference if devices else None,
        "device_low": devices.low if devices else None,
        "device_high": devices.high if devices else None,
        "p_devices": devices.p if devices else None,
        "adjusted_p_devices": one.adjusted_p_devices,
    }


def _interval(scale: float, value: float, low: float, high: float) -> str:
    value, low, high = scale * value, scale * low, scale * high
    number = "{:+.2f}" if scale != 1 else "{:+.4g}"
    return f"{number.format(value)} [{number.format(low)}, {number.format(high)}]"


def _p(value: float | None) -> str:
    if value is None:
        return _NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
