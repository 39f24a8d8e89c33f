"""The Berka data: loans of a Czech bank by region, seven devices; is the loan in default?

Source: Berka, PKDD'99 Discovery Challenge, eight tables of which five are used. Regions and the 15
features follow Hahn et al. 2024 (AAggFF, arXiv 2405.20821), Appendix C: 682 loans in eight regions,
of which north Bohemia (one default only) is left out: 7 devices, 621 samples. In their code a
column with missing values drops out of the means; here the mean is over the values that are there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from deltafl.fl.data.checks import check_column
from deltafl.fl.data.csv_file import check_values, one_hot, read_frame
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.registry import BY_SAMPLES, TABLE_A2, Download, Format, Published
from deltafl.fl.errors import DataError

LEFT_OUT: Final = "north Bohemia"

_TABLES: Final[Mapping[str, Mapping[str, type]]] = {
    "loan": {
        **dict.fromkeys(("account_id", "date", "status"), str),
        **dict.fromkeys(("amount", "duration", "payments"), float),
    },
    "account": dict.fromkeys(("account_id", "district_id", "frequency", "date"), str),
    "district": {
        **dict.fromkeys(("A1", "A3"), str),
        **dict.fromkeys((f"A{number}" for number in (4, 11, 12, 13, 14, 15, 16)), float),
    },
    "order": {"account_id": str, "amount": float},
    "trans": {"account_id": str, "amount": float, "balance": float},
}
"""The columns that are of use; the first row of each file names them all."""

_YEARS: Final = (("A12", "A13"), ("A15", "A16"))  # unemployment and crimes, of 1995 and 1996
_MAX_BYTES: Final = 1 << 28  # trans has a million rows
_DEFAULTED: Final = {"A": 0, "C": 0, "B": 1, "D": 1}
_FREQUENCIES: Final = ("POPLATEK MESICNE", "POPLATEK TYDNE", "POPLATEK PO OBRATU")


def load_berka(folder: Path, split: Split) -> FederatedDataset:
    """Read and join the tables.

    Args:
        folder: holds loan, account, district, order and trans, each .asc (as published) or .csv,
            with semicolons.
        split: usually a split by samples, for there are seven devices only.

    Returns:
        Raw features, float32 [n, 15]: standardise them. They are amount, duration and payments;
        days from account to loan; inhabitants, average salary and entrepreneurs per 1000;
        unemployment and crimes, each the mean of 1995 and 1996; the mean amount of standing orders,
        0 without any; the number of transactions, their mean amount, and the mean balance; and
        whether there is a statement weekly, and one after each transaction.

    Raises:
        DataError: a file is missing or damaged, or too few devices remain.
    """
    loan_file, loans = _read(folder, "loan")
    account_file, accounts = _read(folder, "account")
    account = _places(loan_file, loans["account_id"], accounts["account_id"])
    district_file, districts = _read(folder, "district", nothing=("?",))
    district = _places(account_file, accounts["district_id"], districts["A1"])[account]
    of_district = districts[["A4", "A11", "A14"]].assign(
        **{f"{one}, {two}": districts[[one, two]].mean(axis=1) for one, two in _YEARS}
    )
    for name, values in of_district.items():
        check_column(district_file, str(name), values.to_numpy())
    orders, transactions = _means(folder, "order"), _means(folder, "trans")
    x = np.column_stack(
        [
            loans[["amount", "duration", "payments"]],
            _days(loan_file, loans["date"]) - _days(account_file, accounts["date"])[account],
            of_district.to_numpy()[district],
            orders[["amount"]].reindex(loans["account_id"], fill_value=0),
            transactions.reindex(loans["account_id"], fill_value=0),
            one_hot(account_file, accounts["frequency"], _FREQUENCIES)[account, 1:],
        ]
    ).astype(np.float32)
    label = loans["status"].map(_DEFAULTED)
    check_values(loan_file, loans["status"], label.notna(), "A, B, C or D")
    y, region = label.to_numpy(np.int64), districts["A3"].to_numpy()[district]
    devices = [
        DeviceData(name, x[region == name], y[region == name])
        for name in sorted({*region} - {LEFT_OUT})
    ]
    return federate("berka", devices, split)


def _read(folder: Path, table: str, nothing: tuple[str, ...] = ()) -> tuple[Path, pd.DataFrame]:
    """The file of a table, and its columns that are of use."""
    files = (folder / f"{table}{ending}" for ending in (".asc", ".csv"))
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise DataError(f"{folder}: neither {table}.asc nor {table}.csv: point to the folder")
    form: dict[str, Any] = {"delimiter": ";", "encoding": "latin-1", "nothing": nothing}
    return path, read_frame(path, _TABLES[table], _MAX_BYTES, has_names=True, **form)


def _means(folder: Path, table: str) -> pd.DataFrame:
    """For each account: number of rows, mean amount and, if it is there, mean balance."""
    _, rows = _read(folder, table)
    by_account = rows.groupby("account_id")
    means = by_account.mean(numeric_only=True)
    means.insert(0, "rows", by_account.size())
    return means


def _places(path: Path, column: "pd.Series[str]", keys: "pd.Series[str]") -> npt.NDArray[np.int64]:
    """For each value of a column, its place among the keys of another table."""
    places = column.map({key: place for place, key in enumerate(keys)})
    check_values(path, column, places.notna(), "in the table it refers to")
    return np.asarray(places, np.int64)


def _days(path: Path, column: "pd.Series[str]") -> npt.NDArray[np.int64]:
    """Days since 1970 of dates that are written YYMMDD, in the 20th century."""
    dates = pd.to_datetime("19" + column, format="%Y%m%d", errors="coerce")
    are_dates = dates.notna() & column.str.fullmatch("[0-9]{6}")
    check_values(path, column, are_dates, "a date YYMMDD")
    return np.asarray(dates, "datetime64[D]").astype(np.int64)


FORMAT: Final = Format(
    "berka",
    "defaulted loans in seven regions",
    load_berka,
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
