"""The settings of what devices accept."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from deltafl.sim.settings.constraints import Count, CountOrZero, Interval, Positive


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """What devices accept of a round, beside what the section `privacy` says.

    A limit that is not given is that of `deltafl.protocol.policy`. Simulated devices accept what
    the run's other settings ask for, too; devices on machines of their own do not, for they trust
    no number that a server sends: their owners have to say that they accept more. A run outside of
    a limit that is given is refused.

    Attributes:
        max_levels: most conformity levels of one session.
        max_pivots: most pivots of all queries of a round, of all its levels together, if devices
            weigh differently. The default limit of "histogram" is 5 queries, 320 pivots; known
            weights then name most devices.
        max_pivots_if_equal: the same with `quantile.weights` = "equal", which name nobody.
        max_mm_pivots_per_device: most pivots of all queries of a round by "mm", of all its levels
            together, for each device of the smallest cohort that is searched over. The default
            limit of "mm" is 30 queries; of fewer than a hundred devices, losses then follow from a
            server's choice of pivots.
        max_loss_resolution_bits: finest losses: the largest `quantile.resolution_bits`.
        max_loss_bound: the largest `quantile.loss_bound`.
        max_weight: the largest `privacy.max_weight`. With "private-q-ffl" and "private-tilted-erm",
            devices accept the weights and the whole units that these choose.
        min_update_resolution_bits: coarsest updates: smallest `privacy.update_resolution_bits`.
        min_update_clip: the smallest `privacy.update_clip`.
        max_update_clip: the largest `privacy.update_clip`.
        min_noise: smallest σ of the noise of a search, in devices; above 0, devices refuse a search
            that is not by "noisy".
        min_update_noise: the smallest `dp.noise`; above 0, devices refuse updates without noise.
        max_update_norm: the largest `dp.clip`.
        max_participations: most rounds in which a device answers; 0 counts none.
        max_rounds_per_day: the same in a day, for devices on machines of their own.
        max_rounds_per_model: most rounds over one model, all but the last of which were lost; a
            device that expects an active server takes part in one.
    """

    max_levels: Count | None = None
    max_pivots: CountOrZero | None = None
    max_pivots_if_equal: CountOrZero | None = None
    max_mm_pivots_per_device: Annotated[Fraction, Interval("[0, inf)")] | None = None
    max_loss_resolution_bits: CountOrZero | None = None
    max_loss_bound: Count | None = None
    max_weight: Count | None = None
    min_update_resolution_bits: CountOrZero | None = None
    min_update_clip: Positive | None = None
    max_update_clip: Positive | None = None
    min_noise: Annotated[Fraction, Interval("[0, inf)")] | None = None
    min_update_noise: Annotated[Fraction, Interval("[0, inf)")] | None = None
    max_update_norm: Positive | None = None
    max_participations: Annotated[int, Interval("[0, 65536]")] | None = None
    max_rounds_per_day: Annotated[int, Interval("[0, 65536]")] | None = None
    max_rounds_per_model: Annotated[int, Interval("[1, 65536]")] | None = None
