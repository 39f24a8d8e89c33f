"""The Berka data: loans of a Czech bank by region, seven devices; is the loan in default?

Source: Berka, PKDD'99 Discovery Challenge, eight tables of which five are used. Regions and the 15
features follow Hahn et al. 2024 (AAggFF, arXiv 2405.20821), Appendix C: 682 loans in eight regions,
of which north Bohemia (one default only) is left out: 7 devices, 621 samples. In their code a
column with missing values drops out of the means; here the mean is over the values that are there.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.delimited import number, read_rows
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.registry import BY_SAMPLES, TABLE_A2, Download, Format, Published
from deltafl.fl.errors import DataError

LEFT_OUT: Final = "north Bohemia"
FEATURES: Final = (
    "amount",
    "duration",
    "payments",
    "days from account to loan",
    "inhabitants",
    "average salary",
    "entrepreneurs per 1000",
    "unemployment, mean of 1995 and 1996",
    "crimes, mean of 1995 and 1996",
    "mean amount of standing orders, 0 without any",
    "transactions",
    "mean amount of transactions",
    "mean balance",
    "statement weekly",
    "statement after each transaction",
)

_TABLES: Final = {
    "loan": ("loan_id", "account_id", "date", "amount", "duration", "payments", "status"),
    "account": ("account_id", "district_id", "frequency", "date"),
    "district": tuple(f"A{number}" for number in range(1, 17)),
    "order": ("order_id", "account_id", "bank_to", "account_to", "amount", "k_symbol"),
    "trans": (
        "trans_id",
        "account_id",
        "date",
        "type",
        "operation",
        "amount",
        "balance",
        "k_symbol",
        "bank",
        "account",
    ),
}
_MAX_BYTES: Final = 1 << 28  # trans has a million rows
_DEFAULTED: Final = {"A": 0, "C": 0, "B": 1, "D": 1}
_FREQUENCIES: Final = ("POPLATEK MESICNE", "POPLATEK TYDNE", "POPLATEK PO OBRATU")


class _Row:
    """A row of a table: its fields by column, and where it stands, for messages."""

    def __init__(self, path: Path, line: int, fields: dict[str, str]) -> None:
        self.path = path
        self.line = line
        self.fields = fields

    def number(self, column: str) -> float:
        return number(self.path, self.line, column, self.fields[column])

    def day(self) -> int:
        """The day number of `date`, which is written YYMMDD, in the 20th century."""
        text = self.fields["date"]
        try:
            if len(text) != 6 or not (text.isascii() and text.isdecimal()):
                raise ValueError
            return date(1900 + int(text[:2]), int(text[2:4]), int(text[4:])).toordinal()
        except ValueError as error:
            raise self.wrong("date", "a date YYMMDD") from error

    def wrong(self, column: str, right: str) -> DataError:
        return DataError(
            f"{self.path}: line {self.line} has {column} = {self.fields[column]!r:.40}, which is "
            f"not {right}: fetch the file again"
        )


def load_berka(folder: Path, split: Split) -> FederatedDataset:
    """Read and join the tables.

    Args:
        folder: holds loan, account, district, order and trans, each .asc (as published) or .csv,
            with semicolons.
        split: usually a split by samples, for there are seven devices only.

    Returns:
        Raw features, float32 [n, 15] in the order of `FEATURES`: standardise them.

    Raises:
        DataError: a file is missing or damaged, or too few devices remain.
    """
    loans = list(_rows(folder, "loan"))
    borrowers = {loan.fields["account_id"] for loan in loans}
    accounts = {row.fields["account_id"]: row for row in _rows(folder, "account")}
    districts = {row.fields["A1"]: row for row in _rows(folder, "district")}
    orders, transactions = _means(folder, "order", borrowers), _means(folder, "trans", borrowers)
    regions: defaultdict[str, list[tuple[list[float], int]]] = defaultdict(list)
    for loan in loans:
        account = _lookup(accounts, loan, "account_id")
        district = _lookup(districts, account, "district_id")
        number_of, amount, balance = transactions[loan.fields["account_id"]]
        features = [
            *(loan.number(column) for column in ("amount", "duration", "payments")),
            float(loan.day() - account.day()),
            *(district.number(column) for column in ("A4", "A11", "A14")),
            _mean_of_known(district, ("A12", "A13")),
            _mean_of_known(district, ("A15", "A16")),
            orders[loan.fields["account_id"]][1],
            number_of,
            amount,
            balance,
            *_frequency(account),
        ]
        if loan.fields["status"] not in _DEFAULTED:
            raise loan.wrong("status", "A, B, C or D")
        label = _DEFAULTED[loan.fields["status"]]
        regions[district.fields["A3"]].append((features, label))
    regions.pop(LEFT_OUT, None)
    devices = [
        DeviceData(
            region,
            np.array([features for features, _ in samples], np.float32),
            np.array([label for _, label in samples], np.int64),
        )
        for region, samples in regions.items()
    ]
    return federate("berka", devices, split)


def _rows(folder: Path, table: str) -> Iterator[_Row]:
    path = next(
        (
            folder / f"{table}{ending}"
            for ending in (".asc", ".csv")
            if (folder / f"{table}{ending}").is_file()
        ),
        None,
    )
    if path is None:
        raise DataError(f"{folder}: neither {table}.asc nor {table}.csv: point to the folder")
    columns = _TABLES[table]
    rows = read_rows(
        path, num_columns=len(columns), delimiter=";", max_bytes=_MAX_BYTES, encoding="latin-1"
    )
    _, header = next(rows, (0, []))
    if tuple(header) != columns:
        raise DataError(f"{path}: the first line is not {';'.join(columns)}: fetch the file again")
    for line, fields in rows:
        yield _Row(path, line, dict(zip(columns, fields, strict=True)))


def _means(folder: Path, table: str, accounts: set[str]) -> dict[str, tuple[float, float, float]]:
    """For each account: number of rows, mean amount, mean balance (0 where there is none)."""
    sums = {account: np.zeros(3) for account in accounts}
    for row in _rows(folder, table):
        if (account := row.fields["account_id"]) in sums:
            balance = row.number("balance") if "balance" in row.fields else 0.0
            sums[account] += (1.0, row.number("amount"), balance)
    return {
        account: (float(count), float(amount / max(count, 1)), float(balance / max(count, 1)))
        for account, (count, amount, balance) in sums.items()
    }


def _lookup(table: dict[str, _Row], row: _Row, column: str) -> _Row:
    found = table.get(row.fields[column])
    if found is None:
        raise row.wrong(column, "in the table that it refers to")
    return found


def _mean_of_known(row: _Row, columns: tuple[str, ...]) -> float:
    known = [row.number(column) for column in columns if row.fields[column] != "?"]
    if not known:
        raise row.wrong(columns[0], f"a number, nor is {columns[1]}")
    return sum(known) / len(known)


def _frequency(account: _Row) -> list[float]:
    frequency = account.fields["frequency"]
    if frequency not in _FREQUENCIES:
        raise account.wrong("frequency", f"one of {', '.join(_FREQUENCIES)}")
    return [float(frequency == known) for known in _FREQUENCIES[1:]]


FORMAT: Final = Format(
    "berka",
    "defaulted loans in seven regions",
    lambda source, split, _: load_berka(Path(source), split),
    BY_SAMPLES,
    needs="the folder of loan, account, district, order and trans (.asc or .csv)",
    origin="Berka 1999, PKDD'99 Discovery Challenge; devices as in AAggFF",
    licence="none stated; anonymised by the bank, for research",
    published=Published(TABLE_A2, 2, 7, num_samples=621),
    downloads=(
        Download(
            "http://sorry.vse.cz/~berka/challenge/pkdd1999/data_berka.zip",
            1 << 27,
            ("loan.asc", "account.asc", "district.asc", "order.asc", "trans.asc"),
            "88d001738478c5e348a0896878f2433c",
        ),
    ),
    note="Raw features: standardise them (data.standardise = train or device).",
)
