"""Progress bars on stderr: one per run, with the results of the last round and evaluation."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from deltafl.fl.metrics import Summary
from deltafl.fl.registry import ERROR
from deltafl.sim.record.events import Event
from deltafl.sim.run.engine import Progress
from deltafl.sim.settings.config import RunConfig


class Several:
    """Passes progress on to several that receive it; a `Progress`."""

    def __init__(self, each: Sequence[Progress]) -> None:
        self._each = each

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """See `Progress`."""
        for one in self._each:
            one.begin(config, rounds_done)

    def played(self, event: Event) -> None:
        """See `Progress`."""
        for one in self._each:
            one.played(event)

    def evaluated(self, round_number: int, test_error: Summary) -> None:
        """See `Progress`."""
        for one in self._each:
            one.evaluated(round_number, test_error)


class ProgressBars:
    """Shows the progress of an experiment in a terminal.

    Args:
        quiet: draw nothing.
        new: makes a bar, as `tqdm` does; of a notebook, one that is drawn there.
    """

    def __init__(self, *, quiet: bool, new: Callable[..., "tqdm[Any]"] = tqdm) -> None:
        self._quiet = quiet
        self._new = new
        # if not, print a line only every few seconds
        self._is_animated = sys.stderr.isatty() or new is not tqdm
        self._metric = ERROR
        self._bar: tqdm[Any] | None = None
        self._shown: dict[str, str] = {}

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """Start a bar for a run."""
        self.close()
        self._shown = {}
        self._metric = config.training.metric
        self._bar = self._new(
            total=config.federation.rounds,
            initial=rounds_done,
            desc=f"{config.federation.algorithm} seed {config.experiment.seed}",
            unit="round",
            dynamic_ncols=True,
            mininterval=0.2 if self._is_animated else 10.0,
            disable=self._quiet,
        )

    def played(self, event: Event) -> None:
        """Show a round."""
        eta = event.get("eta")
        self._shown["η"] = f"{eta:.3f}" if isinstance(eta, float) else "–"
        self._shown["kept weight"] = str(event.get("kept_weight"))
        self._shown["sums"] = str(event.get("secure_sums"))
        if event.get("aborted"):
            self._shown["kept weight"] = "round lost"
        if self._bar is not None:
            self._bar.set_postfix(self._shown, refresh=False)
            self._bar.update()

    def evaluated(self, round_number: int, test_error: Summary) -> None:
        """Show an evaluation."""
        del round_number
        number = "{:.1%}" if self._metric == ERROR else "{:.4g}"
        self._shown[f"{self._metric} mean"] = number.format(test_error.mean)
        self._shown["p90"] = number.format(test_error.percentiles[90])
        if self._bar is not None:
            self._bar.set_postfix(self._shown, refresh=self._is_animated)

    def close(self) -> None:
        """End the current bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
