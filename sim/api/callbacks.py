"""What a program of one's own is told while it trains, and how it ends training early."""

from typing import TYPE_CHECKING

from deltafl.sim.run.engine import Stop

if TYPE_CHECKING:
    from deltafl.fl.metrics import Summary
    from deltafl.sim.record.events import Event
    from deltafl.sim.settings.config import RunConfig

__all__ = ["Callback", "Stop"]


class Callback:
    """Is told how training goes on. Override what you need.

    Any method may raise `Stop`: the run of this seed ends, its finished rounds are kept, other
    seeds go on, and `train` returns what there is. Any other exception leaves `train`; the finished
    rounds are kept as well.
    """

    def begin(self, config: "RunConfig", rounds_done: int) -> None:
        """The run of a seed starts, or goes on.

        Args:
            config: its settings, such as `config.experiment.seed` and `config.federation.rounds`.
            rounds_done: how many rounds it has finished.
        """

    def played(self, event: "Event") -> None:
        """A round is finished, and on the disk.

        Args:
            event: its line of events.jsonl, such as `event["round"]` and `event["cohort"]`.
        """

    def evaluated(self, round_number: int, test_error: "Summary") -> None:
        """The model of a round has been measured on all devices.

        Args:
            round_number: 0 before the first.
            test_error: of the error, or the metric, over test devices: `test_error.mean` and
                `test_error.percentiles[90]`, or 20, 50, 60, 80 and 95.
        """
