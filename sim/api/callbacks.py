"""What a program of one's own is told while it trains, and how it ends training early."""

import math
from collections.abc import Mapping

from deltafl.fl.data.federated import VALIDATION
from deltafl.fl.metrics import Summary
from deltafl.fl.registry import BEST_BY
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.evaluations import score_of
from deltafl.sim.record.events import Event
from deltafl.sim.run.engine import Stop
from deltafl.sim.settings.config import RunConfig

__all__ = ["Callback", "EarlyStopping", "Stop"]


class Callback:
    """Is told how training goes on. Override what you need.

    Any method may raise `Stop`: the run of this seed ends, its finished rounds are kept, other
    seeds go on, and `train` returns what there is. Any other exception leaves `train`; the finished
    rounds are kept as well.
    """

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """The run of a seed starts, or goes on.

        Args:
            config: its settings, such as `config.experiment.seed` and `config.federation.rounds`.
            rounds_done: how many rounds it has finished.
        """

    def played(self, event: Event) -> None:
        """A round is finished, and on the disk.

        Args:
            event: what happened in it, such as `event["round"]` and `event["cohort"]`.
        """

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """The model of a round has been measured on all devices.

        Args:
            round_number: 0 before the first.
            errors: of the error, or the metric, over devices, by what they are for: "train",
                "validation" (if there are any) and "test"; such as `errors["validation"].mean` and
                `errors["validation"].percentiles[90]`, or 20, 50, 60, 80 and 95.
        """


class EarlyStopping(Callback):
    """Ends the run of a seed when its model does no better on the validation devices.

    Args:
        patience: evaluations without a better one after which it ends, at least 1.
        by: what has to become smaller: the "mean" of the validation devices' errors, or "p90",
            their 90th percentile.
    """

    def __init__(self, patience: int = 5, by: str = BEST_BY[0]) -> None:
        if patience < 1 or by not in BEST_BY:
            raise ValueError(
                f"patience={patience}, by={by!r}: must be at least 1, and one of "
                f"{', '.join(BEST_BY)}"
            )
        self.patience = patience
        self.by = by
        self._best = math.inf
        self._waited = 0

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """See `Callback`."""
        del config, rounds_done
        self._best, self._waited = math.inf, 0

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """See `Callback`.

        Raises:
            Stop: it has waited long enough.
            ConfigError: there are no validation devices.
        """
        del round_number
        if VALIDATION not in errors:
            raise ConfigError(
                "EarlyStopping: the federation has no validation devices: hold some out, as in "
                "from_devices(…, validation=0.2); the test must not choose"
            )
        error = score_of(errors[VALIDATION], self.by)
        if error < self._best:
            self._best, self._waited = error, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            raise Stop
