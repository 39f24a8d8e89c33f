"""Devices that lie about what they are asked: their votes, losses, weights and updates.

The liar is the device with the smallest loss. It has nothing to find out; what it wants is to move
the threshold, or the model. The server and all other devices follow the protocol.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import ClientId, Fault, SlotSum
from deltafl.secagg.openings import Prove
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Left, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    POLICY,
    QUORUM,
    UPDATE_ROUND,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)

LIAR: Final = ClientId(3)
"""The device with the smallest loss."""

_PROVED_ROUND: Final = replace(VERIFIED_ROUND, search=replace(VERIFIED_ROUND.search, proved=True))
_HEAVIER: Final = 1 << 20
_SCALE: Final = np.float32(1000)
_SAMPLES: Final = 100
_CLIP: Final = 1.0

Change = Callable[[Vector], Vector]
"""What becomes of a liar's answer before it is masked."""


def _liars(change: Change, *, to_queries: bool) -> Callable[..., RoundClient]:
    """What devices run, if one of them changes its answers: those to queries, or the update."""

    class Liar(RoundClient):
        def _mask(self, vector: Vector, prove: Prove | None = None) -> bytes:
            is_query = self._level_slot < self._given().common.update_slot
            return super()._mask(change(vector) if is_query == to_queries else vector, prove)

    def made(client: ClientId, *arguments: object, **more: object) -> RoundClient:
        kind: Callable[..., RoundClient] = Liar if client == LIAR else RoundClient
        return kind(client, *arguments, **more)

    return made


def _played(
    config: RoundConfig,
    devices: dict[ClientId, Device] | None = None,
    *,
    client_type: Callable[..., RoundClient] = RoundClient,
    policy: RoundPolicy = POLICY,
) -> tuple[RoundOutcome, list[SlotSum]]:
    """A round of a server that follows the protocol, and the sums that it learns."""
    signed = config.search.verified
    network = RoundDevices(
        config,
        devices,
        client_type=client_type,
        policy=ACTIVE if signed else policy,
        threshold=QUORUM if signed else 2,
        signed=signed,
    )
    learnt = list[SlotSum]()
    outcome = with_an_honest_server(network, lambda _step, _client, data: data, learnt)
    return outcome, learnt


def _ten_times(vector: Vector) -> Vector:
    """An answer to a query whose vote weighs ten times as much; it is one vote by count."""
    heavier = vector.copy()
    weights = [0, *range(2, 2 + (len(vector) - 2) // 2)]
    heavier[weights] *= heavier.dtype.type(10)
    return heavier


@attack(
    "vote-that-counts-ten-times",
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
    liars = _liars(_ten_times, to_queries=True)
    outcome, learnt = _played(config, client_type=liars)
    honest, _ = _played(config)
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
    "claimed-top-loss",
    25,
    "claims the largest loss that a search can tell, round after round",
    power=Power.PEER,
    gain="its part in the aggregate of Δ-FL, whatever its loss is",
    defence="none: nobody can check a loss; proved votes are those of some loss, and it need not "
    "be the true one",
    spec="14.14",
    end=Left.EXPOSED,
)
def claimed_top_loss(defended: bool) -> Harm:
    """The search is verified, and all votes are proved."""
    del defended
    config, devices = _PROVED_ROUND, make_devices(_PROVED_ROUND)
    bound = float(config.search.grid.bound)
    lying = {**devices, LIAR: replace(devices[LIAR], loss=bound)}
    (honest, _), (outcome, learnt) = _played(config), _played(config, lying)
    presuppose(not outcome.drops, "nobody is dropped")
    presuppose(honest.search is not None and outcome.search is not None, "both searches end")
    tick = 2 * devices[LIAR].measured(config).tick
    honest_from = 0 if honest.search is None else honest.search.threshold.eta_half_ticks
    found = 0 if outcome.search is None else outcome.search.threshold.eta_half_ticks
    presuppose(tick < honest_from, "the device is not in the true tail")
    return Harm(
        LIAR in learnt[-1].contributors and 2 * lying[LIAR].measured(config).tick >= found,
        note=f"its true loss is {devices[LIAR].loss}, and the tail begins at {found / 512:.4g}; "
        "on real data the attackers' share of the aggregate grows from 9 to 17 % "
        "(docs/limitations.md, 3)",
    )


@attack(
    "claimed-weight",
    25,
    "claims a million samples",
    power=Power.PEER,
    gain="nearly the whole weight of the aggregate",
    defence="a weight counts up to max_weight, which is to be what honest devices have; up to it, "
    "nobody can check what is claimed",
    spec="12.4",
    end=Left.BOUNDED,
)
def claimed_weight(defended: bool) -> Harm:
    """The others have a hundred samples each. Harm is to have more than half of the weight."""
    most = _SAMPLES if defended else _HEAVIER
    config = replace(UPDATE_ROUND, update=replace(UPDATE_ROUND.update, max_weight=most))
    devices = {
        client: replace(device, weight=_HEAVIER if client == LIAR else _SAMPLES)
        for client, device in make_devices(UPDATE_ROUND).items()
    }
    outcome, _ = _played(config, devices, policy=replace(POLICY, max_weight=most))
    share = 1 - _SAMPLES * (len(devices) - 1) / outcome.kept_weight
    return Harm(share > 0.5, note=f"its share of the weight is {share:.1%}")


@attack(
    "scaled-update",
    25,
    "sends a thousand times its update",
    power=Power.PEER,
    gain="a sum that is nearly its own update alone",
    defence="every number is clipped, at what honest updates have; up to that, a device sends what "
    "it likes",
    spec="12.4",
    end=Left.BOUNDED,
)
def scaled_update(defended: bool) -> Harm:
    """All weigh the same. Harm is to outweigh the sum of all others, by its L2 norm."""
    clip = _CLIP if defended else _CLIP * float(_SCALE)
    update = UpdateParams(clip=clip, resolution_bits=12, max_weight=_SAMPLES)
    config = replace(UPDATE_ROUND, update=update)
    devices = {
        client: replace(device, weight=_SAMPLES)
        for client, device in make_devices(UPDATE_ROUND).items()
    }
    others = sum(device.update for client, device in devices.items() if client != LIAR)
    devices[LIAR] = replace(devices[LIAR], update=devices[LIAR].update * _SCALE)
    policy = replace(POLICY, max_update_clip=clip)
    outcome, _ = _played(config, devices, policy=policy)
    presuppose(outcome.update is not None, "there is a sum")
    summed = np.zeros(0) if outcome.update is None else outcome.update * len(devices)
    ratio = float(np.linalg.norm(summed - others) / np.linalg.norm(others))
    return Harm(ratio > 1, note=f"its part is {ratio:.3g} times as long as the sum of the others")


@attack(
    "numbers-beyond-every-bound",
    25,
    "masks numbers of its own making in place of an update: three times what the clip and the "
    "largest weight allow",
    power=Power.PEER,
    gain="the sum that it wants, as long as that is one that honest devices could have",
    defence="none: the update has no proof, and clip and weight bind only devices that run this "
    "code; what helps is who admits devices",
    spec="14.14",
    end=Left.EXPOSED,
)
def numbers_beyond_every_bound(defended: bool) -> Harm:
    """The server looks at the sum alone, which is within the bounds of five devices."""
    del defended
    layout, update = UPDATE_ROUND.update_layout, UPDATE_ROUND.update
    most = round(update.clip * update.max_weight * 2**update.resolution_bits)

    def beyond(vector: Vector) -> Vector:
        changed = vector.copy()
        changed[: UPDATE_ROUND.update_length] = changed.dtype.type(3 * most)
        return changed

    liars = _liars(beyond, to_queries=False)
    (outcome, learnt), (honest, _) = _played(UPDATE_ROUND, client_type=liars), _played(UPDATE_ROUND)
    presuppose(outcome.aborted is None and not outcome.drops, "nobody has noticed anything")
    summed = layout.to_float("update", layout.decode(learnt[-1].vector.astype(np.uint64))["update"])
    least, allowed = float(summed.min()), update.clip * update.max_weight
    had = np.zeros(1) if honest.update is None else honest.update
    return Harm(
        least > 2 * allowed,
        note=f"the smallest number of the sum is {least:.4g}, and a device may add {allowed:g}; "
        f"the largest of an honest mean is {had.max():.2g}",
    )
