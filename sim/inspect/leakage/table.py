"""The measurements as tables: Markdown for people, CSV and JSON for programs."""

import csv
import dataclasses
import io
from collections.abc import Sequence

from deltafl.sim.inspect.leakage.experiment import Row, VanishingRow

_HEADINGS = (
    "devices",
    "weights",
    "method",
    "mitigation",
    "bits",
    "bits, labelled",
    "error (nats)",
    "prior's",
    "recovered",
    "labelled",
    "all exact",
    "queries",
    "certified",
    "same set",
    "rank error",
    "bits, no update",
    "labelled, no update",
    "ρ",
)
_VANISHING_HEADINGS = (
    "devices",
    "method",
    "bits, search ends",
    "bits, search goes on",
    "left open then (nats)",
    "recovered then",
)


Record = dict[str, str | int | float | None]
"""A row of a table by its columns."""


def records(rows: Sequence[Row]) -> list[Record]:
    """The rows as flat records, numbers rounded to what they are worth; None is for `noisy` only.

    "bits" and "labelled_bits" include the update; "search_bits" and "search_labelled_bits" do not.
    """
    flat: list[Record] = []
    for row in rows:
        record: Record = {
            "devices": row.cell.cohort,
            "weights": row.cell.weights.value,
            "method": row.cell.method,
            "mitigation": row.cell.mitigation.name,
            "repeats": row.repeats,
        }
        record |= {name: _rounded(value) for name, value in dataclasses.asdict(row.leakage).items()}
        for name in ("exact", "queries", "certified", "same_kept", "rank_error"):
            record[name] = _rounded(getattr(row, name))
        record["noise"] = None if row.cell.noise is None else float(row.cell.noise)
        for name in ("search_bits", "search_labelled_bits", "rho"):
            value = getattr(row, name)
            record[name] = None if value is None else _rounded(value)
        flat.append(record)
    return flat


def vanishing_records(rows: Sequence[VanishingRow]) -> list[Record]:
    """The same for devices that drop out."""
    return [
        {
            name: round(value, 9) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(row).items()
        }
        for row in rows
    ]


def as_csv(flat: Sequence[Record]) -> str:
    """Records as comma-separated values with a header."""
    if not flat:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    cells = []
    for row in rows:
        leak = row.leakage
        cells.append(
            (
                str(row.cell.cohort),
                row.cell.weights.value,
                row.cell.label,
                row.cell.mitigation.name,
                f"{_rounded(leak.bits, 1):.1f}",
                f"{_rounded(leak.labelled_bits, 1):.1f}",
                f"{leak.error:.3f}",
                f"{leak.prior_error:.3f}",
                f"{leak.recovered:.0%}",
                f"{leak.labelled_recovered:.0%}",
                f"{row.exact:.0%}",
                f"{row.queries:.1f}",
                f"{row.certified:.0%}",
                f"{row.same_kept:.0%}",
                f"{row.rank_error:.3f}",
                "" if row.search_bits is None else f"{_rounded(row.search_bits, 1):.1f}",
                ""
                if row.search_labelled_bits is None
                else f"{_rounded(row.search_labelled_bits, 1):.1f}",
                "" if row.rho is None else f"{row.rho:.3g}",
            )
        )
    return _markdown(_HEADINGS, cells, num_texts=4)


def vanishing_as_markdown(rows: Sequence[VanishingRow]) -> str:
    """What the server learns about a device that drops out, as a Markdown table."""
    cells = [
        (
            str(row.cohort),
            row.method,
            f"{_rounded(row.bits_if_frozen, 1):.1f}",
            f"{_rounded(row.bits_if_not, 1):.1f}",
            f"{row.width_if_not:.2g}",
            f"{row.recovered_if_not:.0%}",
        )
        for row in rows
    ]
    return _markdown(_VANISHING_HEADINGS, cells, num_texts=2)


def _rounded(value: float, digits: int = 6) -> float:
    """Round without ever giving -0."""
    return round(value, digits) + 0.0


def _markdown(headings: Sequence[str], cells: Sequence[Sequence[str]], *, num_texts: int) -> str:
    rules = ["---"] * num_texts + ["---:"] * (len(headings) - num_texts)
    lines = [headings, rules, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
