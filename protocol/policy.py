"""The limits that a device enforces on rounds, whatever the server announces.

A server chooses how losses and updates become integers, what is asked of them, and of how many
devices. Each of these choices can make a sum that of one device, so a device has limits of its own.

Spec: §12.14.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import ClassVar, Final

from deltafl.protocol.anonymity import expected_apart, expected_tail, least_tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.update_noise import Sizes
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DevicePolicy, SessionParams
from deltafl.secagg.policy import Range

MOST_PARTICIPATIONS: Final = 1 << 16
"""The largest limit on rounds; a ledger has room for several times as many entries."""


@dataclass(frozen=True, slots=True)
class RoundPolicy(DevicePolicy):
    """A device's own limits on a round and on its session.

    A round searches if its θ is below 1 and its cohort is not smaller than the announced smallest
    one. Such a search is certain to be over `min_cohort` devices or more; the limits on θ count
    those that the server announces. It asks at least one query: without one, the threshold would be
    whatever the server expects it to be.

    Attributes:
        min_cohort: Smallest cohort that the device may be searched over, or summed with. With fewer
            devices, losses follow from the sums.
        min_honest_tail: Fewest devices that do not collude in a tail, and in the difference of the
            tails of two levels, besides the share `colluding_rate` of the invited ones that may
            collude (`deltafl.protocol.anonymity`). So many must be left by θ, of those that are
            certain to be searched over, if all weigh the same; and by a threshold, whatever they
            weigh: in a verified search the device counts them, in others it believes the server. 2
            is the fewest at which a sum is not one device's own numbers. 0 counts none.
        max_levels: Most conformity levels of one session.
        max_pivots: Most pivots of all queries of a session, of all levels together, if weights
            differ. Between two pivots, known weights name the devices. 0 accepts only searches of
            equal weights. Levels count together because a server may give them nearly equal models,
            and so make one search of them.
        max_pivots_if_equal: Most pivots of all queries of a session in which devices weigh the
            same.
        max_mm_pivots_per_device: Most pivots of all queries of a session by `mm`, for each device
            that is certain to be searched over. A sum of `mm` tells how far losses are from its
            pivot; with many such sums, the losses follow (docs/limitations.md has measurements).
        max_loss_resolution_bits: Finest grid of losses, in binary digits after the point.
        max_loss_bound: Largest loss that may be told from larger ones, in units of the loss. A
            single larger one would stand out in the sum of losses.
        max_weight: Largest weight that may count in full. A heavier device would stand out.
        min_update_resolution_bits: Coarsest updates, in binary digits after the point. In coarser
            ones, all but the heaviest devices round to zero.
        min_update_clip: Smallest clip of the numbers of an update. Below the resolution, a clip
            lets only heavy devices contribute.
        max_update_clip: Largest clip of the numbers of an update. A single update that is larger
            than the others would stand out in their sum.
        min_noise: Smallest σ of the noise in every sum of a search, in devices. Above 0, a search
            without noise is refused too.
        min_update_noise: Smallest noise multiplier of a sum of updates: its σ over the most that
            another contribution of one device could change. Above 0, an update without noise is
            refused too.
        max_update_norm: Largest L2 norm to which updates are scaled down before noise is added.
        max_participations: Most rounds over a model in which the device answers, as long as its
            ledger lasts; 0 counts none. What noisy sums reveal adds up over them.
        max_rounds_per_day: The same in a day, if its caller says which day it is; 0 counts none.
            The default is a round in 21 seconds, all day, and fills the ledger's default capacity
            in 12 days or more.
        max_rounds_per_model: Most rounds over one model in which the device answers, if the rounds
            before were lost; to an ACTIVE server, it answers in one. It has the server's word that
            their updates were not summed.
    """

    min_cohort: int = 10
    min_honest_tail: int = 2
    max_levels: int = 8
    max_pivots: int = 32
    max_pivots_if_equal: int = 320
    max_mm_pivots_per_device: Fraction = Fraction(3, 10)
    max_loss_resolution_bits: int = 16
    max_loss_bound: int = 32
    max_weight: int = 8192
    min_update_resolution_bits: int = 8
    min_update_clip: float = 0.0625
    max_update_clip: float = 4.0
    min_noise: Fraction = Fraction(0)
    min_update_noise: Fraction = Fraction(0)
    max_update_norm: float = 64.0
    max_participations: int = 0
    max_rounds_per_day: int = 4096
    max_rounds_per_model: int = 8

    _ranges: ClassVar[Mapping[str, Range]] = {
        **DevicePolicy._ranges,
        "max_levels": Range(1),
        "max_loss_bound": Range(1),
        "max_weight": Range(1),
        "max_participations": Range(0, MOST_PARTICIPATIONS, is_closed=True),
        "max_rounds_per_day": Range(0, MOST_PARTICIPATIONS, is_closed=True),
        "max_rounds_per_model": Range(1, MOST_PARTICIPATIONS, is_closed=True),
    }

    def check_number(self, levels: Levels) -> None:
        """Accept so many levels.

        Raises:
            PeerError: they are more than `max_levels`.
        """
        number = len(levels.rounds)
        self._insist(
            number <= self.max_levels, f"{number} levels are more than max_levels={self.max_levels}"
        )

    def check_round(self, levels: Levels, params: SessionParams) -> None:
        """Accept what is announced for a session: its rounds and its parameters.

        Args:
            levels: The rounds.
            params: The parameters of their session.

        Raises:
            PeerError: they fall short of this policy; the message names the value and the limit.
        """
        self.check_number(levels)
        unverified, radius = self.profile.takes_unverified, levels.common.update.radius
        self._insist(
            levels.can_be_followed or unverified,
            f"the search is not verified, and the device expects an {self.adversary} server",
        )
        self._insist(
            radius is None or unverified,
            f"radius={radius}: the server chooses it, and the device expects an "
            f"{self.adversary} one",
        )
        self.check(params)
        self._check_numbers(levels.common)
        fewest = max(params.min_cohort, levels.common.search.min_cohort)
        self._check_noise(levels.common.noise, params, fewest)
        self._check_update_noise(levels.common, params)
        if any(config.selects for config in levels.rounds):
            self._check_search(levels, fewest)
            self._check_tails(levels, fewest, params.num_invited)

    def _check_numbers(self, config: RoundConfig) -> None:
        """Refuse numbers whose sums may be about single devices, whatever is asked."""
        grid, update = config.search.grid, config.update
        self._check_limit("resolution_bits", grid.resolution_bits, "max_loss_resolution_bits")
        self._check_limit("bound", grid.bound, "max_loss_bound")
        self._check_limit("max_weight", update.max_weight, "max_weight")
        resolution_bits = update.resolution_bits
        self._check_limit("update_resolution_bits", resolution_bits, "min_update_resolution_bits")
        self._check_limit("update_clip", update.clip, "min_update_clip")
        self._check_limit("update_clip", update.clip, "max_update_clip")

    def _check_noise(self, noise: Noise | None, params: SessionParams, fewest: int) -> None:
        """Refuse too little noise, or noise from more devices than are certain to add theirs."""
        if noise is None:
            return
        self._insist(
            noise.variance >= self.min_noise**2,
            f"noise of variance {noise.variance} is below that of min_noise={self.min_noise}",
        )
        honest = fewest - self.num_colluding(params.num_invited)
        self._insist(
            noise.num_devices <= honest,
            f"noise from {noise.num_devices} devices, of which only {honest} are certain to be "
            f"in a sum over {fewest} and honest",
        )

    def _check_update_noise(self, config: RoundConfig, params: SessionParams) -> None:
        """Refuse too little noise in the sum of updates, or from devices that may not be in it."""
        noise, least = config.update.noise, self.min_update_noise
        if noise is None:
            self._insist(
                least == 0, f"the update is without noise, which is below min_update_noise={least}"
            )
            return
        square = noise.square_multiplier(Sizes.of(config.update_length, config.cohort_size))
        self._insist(
            square >= least**2,
            f"noise in the update of multiplier {math.sqrt(square):.4g} is below "
            f"min_update_noise={least}",
        )
        self._insist(
            noise.norm <= self.max_update_norm,
            f"updates of norm {noise.norm:g} are above max_update_norm={self.max_update_norm:g}",
        )
        honest = params.min_cohort - self.num_colluding(params.num_invited)
        self._insist(
            noise.num_devices <= honest,
            f"noise in the update from {noise.num_devices} devices, of which only {honest} are "
            f"certain to be in a sum over {params.min_cohort} and honest",
        )

    def _check_search(self, levels: Levels, fewest: int) -> None:
        """Refuse a search that asks too much."""
        common = levels.common
        self._insist(
            common.search.max_queries > 0,
            "max_queries=0 with a theta below 1: all devices would be kept, and a round that keeps "
            "everybody has theta=1",
        )
        self._insist(
            common.noise is not None or self.min_noise == 0,
            f"the search is without noise, which is below min_noise={self.min_noise}",
        )
        queries = sum(config.num_query_slots for config in levels.rounds)
        pivots = queries * common.quantile.num_pivots
        equal = common.search.weighting is Weighting.EQUAL
        most, limit = (
            (self.max_pivots_if_equal, "max_pivots_if_equal")
            if equal
            else (self.max_pivots, "max_pivots")
        )
        self._insist(pivots <= most, f"a search with {pivots} pivots is above {limit}={most}")
        per_device = self.max_mm_pivots_per_device
        self._insist(
            not isinstance(common.quantile, MajoriseMinimise) or pivots <= per_device * fewest,
            f"a search by 'mm' with {pivots} pivots over {fewest} devices is above "
            f"max_mm_pivots_per_device={per_device}: take another method, more devices or fewer "
            "queries",
        )

    def _check_tails(self, levels: Levels, fewest: int, num_invited: int) -> None:
        """Refuse θ, or levels, that leave too few honest devices in a tail or in a difference."""
        needed, common = self.min_tail(num_invited), levels.common
        colluding = needed - self.min_honest_tail
        self._insist(
            common.min_tail >= needed,
            f"min_tail={common.min_tail} is below min_honest_tail={self.min_honest_tail} besides "
            f"{colluding} devices that may collude",
        )
        for config in levels.rounds:
            kept = expected_tail(config.theta, fewest)
            self._insist(
                kept >= needed,
                f"theta={config.theta} keeps {kept} of {fewest} devices, and {colluding} of "
                f"{num_invited} may collude, which leaves fewer than min_honest_tail="
                f"{self.min_honest_tail}: {self._remedy(kept, num_invited)}",
            )
        for above, below in pairwise(config.theta for config in levels.rounds):
            apart = expected_apart(above, below, fewest)
            self._insist(
                apart >= needed,
                f"theta={above} and theta={below} are {apart} of {fewest} devices apart, and "
                f"{colluding} of {num_invited} may collude, which leaves fewer than "
                f"min_honest_tail={self.min_honest_tail}: {self._remedy(apart, num_invited)}",
            )

    @property
    def rounds_per_model(self) -> int:
        """Rounds in which the device answers for one model, by what it expects of the server."""
        return self.max_rounds_per_model if self.profile.repeats_rounds else 1

    def min_tail(self, num_invited: int) -> int:
        """The fewest devices of a tail that the device accepts, those that may collude among them.

        Args:
            num_invited: Devices of the cohort.
        """
        return least_tail(self.num_colluding(num_invited), self.min_honest_tail)

    def _remedy(self, num_kept: int, num_invited: int) -> str:
        """What would hold, where so many devices are too few."""
        colluding = num_kept - self.min_honest_tail
        if colluding < 0:
            return "too few even if nobody colludes, so take a larger theta or more devices"
        rate = floor(1000 * Fraction(colluding, num_invited)) / 1000
        return (
            f"it holds if a share of {rate:g} may collude, or with a larger theta or more devices"
        )
