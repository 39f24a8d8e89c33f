"""Progress bars on stderr: one per run, with the results of the last round and evaluation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from tqdm import tqdm

from deltafl.fl.data.federated import TEST
from deltafl.fl.metrics import Summary
from deltafl.fl.registry import ERROR
from deltafl.sim.progress import Bar
from deltafl.sim.record.events import Event
from deltafl.sim.run.accounting import rounded_up
from deltafl.sim.run.engine import Progress
from deltafl.sim.settings.config import PrivacyConfig, RunConfig

_MUCH: Final = 1e-3


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

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """See `Progress`."""
        for one in self._each:
            one.evaluated(round_number, errors)


class ClippingNote(Several):
    """Says once that more than a thousandth of a round's numbers was clipped; a `Progress`.

    Args:
        warn: is told, in a sentence.
        size: how many numbers an update has; asked once some are clipped.
    """

    def __init__(self, warn: Callable[[str], None], size: Callable[[], int]) -> None:
        super().__init__(())
        self._warn = warn
        self._size = size
        self._privacy: PrivacyConfig | None = None

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """Note the bounds. With noise for privacy, updates are scaled down on purpose."""
        del rounds_done
        self._privacy = None if config.dp.noise else config.privacy

    def played(self, event: Event) -> None:
        """Look at a round."""
        clipped, devices = (cast("int", event.get(key) or 0) for key in ("clipped", "kept_devices"))
        if self._privacy is None or not (clipped and devices):
            return
        share = clipped / (devices * self._size())
        if share > _MUCH:
            self._warn(
                f"{share:.1%} of the numbers that devices gave in round {event['round']} were "
                f"clipped, those of updates to ±{self._privacy.update_clip:g} "
                "(privacy.update_clip): scale the inputs, lower the learning rate or raise the "
                "bound; later rounds are not looked at"
            )
            self._privacy = None


class ProgressBars:
    """Shows the progress of an experiment: a bar for each run, or lines where stderr is a file.

    Args:
        quiet: show nothing.
        new: makes a bar, as `Bar` does; in a notebook, one that is drawn there.
    """

    def __init__(self, *, quiet: bool = False, new: Callable[..., "tqdm[Any]"] = Bar) -> None:
        self._quiet = quiet
        self._new = new
        self._metric = ERROR
        self._is_private = False
        self._bar: tqdm[Any] | None = None
        self._error = ""
        self._round = ""

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """Start a bar for a run."""
        self.close()
        self._error = self._round = ""
        self._metric = config.training.metric
        self._is_private = config.federation.is_private
        self._bar = self._new(
            total=config.federation.rounds,
            initial=rounds_done,
            desc=f"{config.federation.algorithm} seed {config.experiment.seed}",
            unit="round",
            quiet=self._quiet,
            leave=True,
        )

    def played(self, event: Event) -> None:
        """Show a round."""
        eta = event.get("eta")
        threshold = f"η={eta:.3f}, " if isinstance(eta, float) else ""
        kept = f"kept weight {event.get('kept_weight')}"
        if event.get("aborted"):
            kept = "round lost"
        sums = f"{event.get('secure_sums')} secure sums" if self._is_private else "in clear"
        self._round = f"{threshold}{kept}, {sums}"
        if isinstance(epsilon := event.get("epsilon"), float):
            self._round += f", ε {rounded_up(epsilon)}"
        if self._bar is not None:
            self._show(refresh=False)
            self._bar.update()

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """Show an evaluation."""
        del round_number
        number = "{:.1%}" if self._metric == ERROR else "{:.4g}"
        mean, tail = errors[TEST].mean, errors[TEST].percentiles[90]
        self._error = f"{self._metric} {number.format(mean)}, p90 {number.format(tail)}"
        self._show(refresh=True)

    def close(self) -> None:
        """End the current bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show(self, *, refresh: bool) -> None:
        """What matters most comes first: a narrow terminal cuts off the end."""
        if self._bar is not None:
            shown = ", ".join(filter(None, (self._error, self._round)))
            self._bar.set_postfix_str(shown, refresh=refresh)
