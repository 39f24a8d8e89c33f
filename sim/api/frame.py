"""The columns of a DataFrame, checked: each there once, filled, and the inputs numbers."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deltafl.fl.errors import DataError
from deltafl.sim.api.arrays import NUMBERS, Names, named

if TYPE_CHECKING:
    import pandas as pd


def frame_inputs(
    name: str, table: "pd.DataFrame", user: str, wanted: list[str], features: Names | None
) -> npt.NDArray[np.float32]:
    """The inputs of a table, float32 [n, features], after a look at all columns.

    Args:
        name: of the table, for messages.
        table: a row for each sample.
        user: the column of users.
        wanted: the columns of labels.
        features: the columns of inputs; None for all others.

    Raises:
        DataError: it is no DataFrame; a column is missing, there twice, named twice or has gaps; an
            input is no finite number.
    """
    if not hasattr(table, "columns"):
        raise DataError(
            f"{name}: a {type(table).__name__} is none: give a pandas.DataFrame, or take "
            "from_csv, from_parquet or from_arrays"
        )
    others = [one for one in table.columns if one not in (user, *wanted)]
    chosen = others if features is None else named(features)
    for column in (user, *wanted, *chosen):
        if column not in table.columns:
            known = ", ".join(map(str, table.columns))
            raise DataError(f"{name} has no column {column!r}: its columns are {known}")
        if list(table.columns).count(column) > 1:
            raise DataError(f"{name}: several columns are called {column!r}: rename them")
        if (user, *wanted, *chosen).count(column) > 1:
            raise DataError(
                f"{name}: the column {column!r} is named twice: user, label and inputs must "
                "be columns of their own, or the model is told what it is to predict"
            )
        if table[column].isna().any():
            row = table.index[table[column].isna()][0]
            raise DataError(f"{name}: column {column!r} has nothing in row {row!r}: fill it")
    for column in chosen:
        if table[column].dtype.kind not in NUMBERS:
            raise DataError(
                f"{name}: column {column!r} has {table[column].dtype}, not numbers: encode it, "
                "or leave it out of `features`"
            )
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        inputs: npt.NDArray[np.float32] = table[chosen].to_numpy(np.float32)
    if not np.isfinite(inputs).all():
        row, place = np.argwhere(~np.isfinite(inputs))[0]
        column = chosen[place]
        raise DataError(
            f"{name}: column {column!r} has {table[column].iloc[row]} in row "
            f"{table.index[row]!r}, which is not a finite float32: correct it, or leave the "
            "row out"
        )
    return inputs
