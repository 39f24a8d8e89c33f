"""Devices that lie about what they are asked: their votes, losses, weights and updates.

The liar is the device with the smallest loss. It has nothing to find out; what it wants is to move
the threshold, or the model. The server and all other devices follow the protocol.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.ballots import Voter
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Fault
from deltafl.secagg.errors import present
from deltafl.secagg.openings import Prove
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    UPDATE_ROUND,
    VERIFIED_ROUND,
    PlainDevice,
    RoundDevices,
    Say,
    make_devices,
    with_an_honest_server,
)

LIAR: Final = ClientId(3)
"""The device with the smallest loss."""

_PROVED_ROUND: Final = replace(VERIFIED_ROUND, search=replace(VERIFIED_ROUND.search, proved=True))


def _liar(say: Say) -> Callable[[ClientId], Callable[..., RoundClient]]:
    """What devices run, if one of them says what it likes."""
    return lambda client: partial(PlainDevice, say) if client == LIAR else RoundClient


def _ten_times(vector: Vector) -> Vector:
    """An answer to a query whose vote weighs ten times as much; it is one vote by count."""
    heavier = vector.copy()
    weights = [0, *range(2, 2 + (len(vector) - 2) // 2)]
    heavier[weights] *= heavier.dtype.type(10)
    return heavier


def _heavier(config: RoundConfig) -> Say:
    """The liar's votes, with the proofs of true ones; it trains like an honest device."""
    device, randomness = make_devices(config)[LIAR], SeededRandomness(bytes(32))
    own, search = device.measured(config), config.search_config
    voter = Voter.drawn(search, search.search.weighting.of(own.weight), randomness)
    asked = list[Query]()

    def say(question: Query | Threshold, _model: bytes) -> tuple[Vector, Prove | None]:
        if isinstance(question, Threshold):
            update = device.update if own.passes(question) else None
            return own.contribution(update), None
        prove = partial(
            voter.prove, search, question, own.tick, randomness=randomness, is_first=not asked
        )
        asked.append(question)
        return _ten_times(own.answer(question)), prove if search.search.proved else None

    return say


@attack(
    25,
    "answers the queries of a search with ten times its weight, which is more than any may have",
    power=Power.PEER,
    gain="another threshold: with it, devices train that the search would have left out",
    defence="devices prove that their votes are valid, and the server drops whoever does not; "
    "without quantile.votes = 'proved', nothing stops it",
    spec="12.17",
    end=Fault.BAD_PROOF,
    culprit=LIAR,
)
def vote_that_counts_ten_times(defended: bool) -> Harm:
    """The liar commits to what it sends, so that the search is verified all the same.

    Where it is dropped, the search ends early, as if it had vanished: slots of queries are whole.
    """
    config = _PROVED_ROUND if defended else VERIFIED_ROUND
    lying = RoundDevices(config, runs=_liar(_heavier(config)))
    outcome, learnt = with_an_honest_server(lying)
    honest, _ = with_an_honest_server(RoundDevices(config))
    presuppose(honest.search is not None and honest.search.certified, "the search succeeds else")
    is_summed = any(LIAR in one.contributors for one in learnt if one.slot < config.update_slot)
    moved = outcome.kept_devices > honest.kept_devices
    presuppose(defended or moved, "the vote lowers the threshold")
    found = {(client, drop.fault) for client, drop in outcome.drops.items()}
    return Harm(
        is_summed,
        frozenset((client, fault) for client, fault in found if fault is not None),
        f"{outcome.kept_devices} devices trained, and {honest.kept_devices} of an honest cohort",
    )


@attack(
    25,
    "claims the largest loss that a search can tell, round after round",
    power=Power.PEER,
    gain="its part in the aggregate of Δ-FL, whatever its loss is",
    defence="none: nobody can check a loss; proved votes are those of some loss, and it need not "
    "be the true one",
    spec="14.14",
)
def claimed_top_loss(_defended: bool) -> Harm:
    """The search is verified, and all votes are proved."""
    config, devices = _PROVED_ROUND, make_devices(_PROVED_ROUND)
    bound = float(config.search.grid.bound)
    lying = {**devices, LIAR: replace(devices[LIAR], loss=bound)}
    honest, _ = with_an_honest_server(RoundDevices(config))
    outcome, learnt = with_an_honest_server(RoundDevices(config, lying))
    presuppose(not outcome.drops, "nobody is dropped")
    found, true = present(outcome.search).threshold, present(honest.search).threshold
    presuppose(not devices[LIAR].measured(config).passes(true), "it is not in the true tail")
    return Harm(
        LIAR in learnt[-1].contributors and lying[LIAR].measured(config).passes(found),
        note=f"its true loss is {devices[LIAR].loss}, and the tail begins at "
        f"{found.eta_half_ticks / 512:.4g}; "
        "on real data the attackers' share of the aggregate grows from 9 to 17 % "
        "(docs/limitations.md, 3)",
    )


@attack(
    25,
    "masks numbers of its own making in place of an update: three times what the clip and the "
    "largest weight allow",
    power=Power.PEER,
    gain="the sum that it wants, as long as that is one that honest devices could have",
    defence="none: the update has no proof, and clip and weight bind only devices that run this "
    "code; what helps is who admits devices",
    spec="14.14",
)
def numbers_beyond_every_bound(_defended: bool) -> Harm:
    """The server looks at the sum alone, which is within the bounds of five devices."""
    layout, update = UPDATE_ROUND.update_layout, UPDATE_ROUND.update
    most = round(update.clip * update.max_weight * 2**update.resolution_bits)

    made_up = np.zeros(layout.length, np.uint64)
    made_up[: UPDATE_ROUND.update_length] = 3 * most
    liar = _liar(lambda _question, _model: (made_up, None))
    outcome, learnt = with_an_honest_server(RoundDevices(UPDATE_ROUND, runs=liar))
    honest, _ = with_an_honest_server(RoundDevices(UPDATE_ROUND))
    presuppose(outcome.aborted is None and not outcome.drops, "nobody has noticed anything")
    summed = layout.to_float("update", layout.decode(learnt[-1].vector.astype(np.uint64))["update"])
    least, allowed = float(summed.min()), update.clip * update.max_weight
    return Harm(
        least > 2 * allowed,
        note=f"the smallest number of the sum is {least:.4g}, and a device may add {allowed:g}; "
        f"the largest of an honest mean is {present(honest.update).max():.2g}",
    )
