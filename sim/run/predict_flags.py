"""The arguments of `deltafl predict`; nothing heavy is loaded for its help."""

import argparse
from pathlib import Path
from typing import Final

from deltafl.sim.flags import add_json
from deltafl.sim.settings.given import add_flags

_EXAMPLES: Final = """\
The tuning knob. A run trains one model for each conformity level θ. A user's conformity says how
similar the user's data are to those of the population: it is near 1 for most users, and small for
users with unusual data. Nobody else can measure yours, because your data stay with you. So try
several levels and keep the one with the smallest error. Start with the largest level, the model for
the average user. If its error is large, try smaller levels: they train on the devices with the
largest losses. If a level was not trained, the next smaller trained level is used, or the smallest
one if there is none: the model of θ is trained for conformity θ and above.

examples:
  deltafl predict runs/mine --list
      the levels of a run, and the origin of its models
  deltafl predict runs/mine --conformity 0.5 --data mine.npz --out predictions.csv
      a class and its probability for every sample; also the error, if the file has labels
  deltafl predict runs/mine --data mine.npz --user anna
      the error of every level on one user's samples, to compare the levels
  deltafl predict runs/quickstart/arms/fedavg-seed-1 --data digits
      the one model of a baseline, on the test devices of the run's own data

data: an .npz file with x and, if known, y (labels) and user (the index of each sample's user, with
the names in users); a .csv or .parquet file with the columns of the run's own table, with or
without users and labels; a folder of LEAF JSON files; or digits, or a synthetic data set, if the
run has it. Give features as they were before the run
scaled them. Models for text take tokens; models that use word vectors also need --vectors.
exit codes: 0 success, 2 invalid request.
"""


_FLAGS: Final = {
    "--conformity": ("θ", "conformity level in (0, 1] (default: compare all trained levels)", str),
    "--data": ("PATH", "samples to predict", Path),
    "--vectors": ("FILE", "the run's word vectors (data.vectors), for models that use them", Path),
    "--user": ("U", "predict only the samples of this user", str),
    "--out": ("FILE", "write predictions to this .csv or .jsonl file; needs --conformity", Path),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Predict with the models of a finished run: of Δ-FL at a level you choose, of other "
        "algorithms with their one model (RUN/arms has the baselines)."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=Path, help="bundle.npz, or the run directory with it"
    )
    parser.add_argument("--list", action="store_true", help="only list the trained levels")
    add_flags(parser, _FLAGS)
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Predict, and print or write what was predicted; the exit code."""
    from deltafl.sim.run import predict

    return predict.main(options)
