"""Attacks on verified searches: a server that wants a tail of one device, and what devices check.

In most of them the server shows sums of devices that do not exist, of which two have the largest
loss of all. Devices that believe it accept a threshold that only one of them passes.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from nacl.bindings import crypto_scalarmult_ed25519_base_noclamp

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.client import RoundClient
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile import ranks
from deltafl.protocol.quantile.noisy import NoisySearch
from deltafl.protocol.quantile.search import Query, SearchResult
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import Client, Refusal, openings, pedersen, ring
from deltafl.secagg.errors import present
from deltafl.secagg.identity import identity
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.attacks.attack import Harm, Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    UPDATE_ROUND,
    VERIFIED_ROUND,
    make_devices,
)
from deltafl.sim.inspect.attacks.replaced import replaced
from deltafl.sim.inspect.attacks.rounds import Unbound
from deltafl.sim.inspect.attacks.steering import (
    UNVERIFIED_ROUND,
    Shown,
    Steering,
    above,
    pretend,
)

_CREDULOUS = replace(ACTIVE, unverified_if_active=True)
_COUNTING_NOBODY = replace(ACTIVE, min_honest_tail=0)
UPDATE = "the update of the device with the largest loss, though not its name"

NOISY_ROUND = replace(
    VERIFIED_ROUND,
    method="noisy",
    warm_start=4 << VERIFIED_ROUND.search.grid.resolution_bits,
    noise=Noise(Fraction(1, 10**12), 1),
    search=replace(VERIFIED_ROUND.search, max_queries=1, weighting=Weighting.EQUAL),
)

_check_sum, _statement, _check_threshold, _result = (
    Client._check_sum,
    openings.statement,
    Followed.check_threshold,
    NoisySearch.result,
)


@attack(
    "tail-of-one-device",
    4,
    "announces to all devices one threshold that only a single device passes (a tail of one)",
    power=Power.SERVER,
    gain=UPDATE,
    defence="verified searches: a device works out the threshold itself, from sums that are proved",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="where the sums give",
)
def tail_of_one_device(defended: bool) -> Loot:
    """All devices are shown the same threshold, so that the masks cancel.

    Without the defence, devices take the server's word for it, though they expect an active server.
    """
    if defended:
        steering = Steering()
        steering.run()
    else:
        steering = Steering(UNVERIFIED_ROUND, policy=_CREDULOUS)
    return steering.update(above(steering.highest))


class _Unfollowing(RoundClient):
    """A device that follows no search in a round without queries."""

    def _check_search(self, question: Query | Threshold, members: int) -> None:
        pass


@attack(
    "tail-of-one-without-a-search",
    4,
    "announces a round that asks nothing, and a threshold that only a single device passes",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a device knows the threshold of a round without queries: it keeps everybody",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="where the sums give",
)
def tail_of_one_without_a_search(defended: bool) -> Loot:
    """At θ = 1 no query is asked, and there is no sum to be proved."""
    steering = Steering(UPDATE_ROUND, client_type=RoundClient if defended else _Unfollowing)
    return steering.update(above(steering.highest))


@attack(
    "tail-of-one-by-the-level",
    4,
    "announces so small a θ that the true threshold keeps a single device",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a device works out how many devices θ can keep, and insists on some that do not "
    "collude",
    spec="12.14",
    end=Refusal.POLICY,
    saying="fewer than min_honest_tail=1",
)
def tail_of_one_by_the_level(defended: bool) -> Loot:
    """The search is an honest one. Without the defence, devices accept any tail."""
    policy = ACTIVE if defended else _COUNTING_NOBODY
    config = replace(VERIFIED_ROUND, theta=Fraction(1, 10_000), min_tail=policy.min_tail(5))
    steering = Steering(config, policy=policy)
    steering.run()
    return steering.update()


@attack(
    "tail-of-one-and-a-device-without-samples",
    4,
    "has a device of its own without samples claim the largest loss of all, when the second "
    "largest belongs to a device with half of the weight",
    power=Power.SERVER,
    gain="the update of the other device, though not its name",
    defence="devices of weight 0 do not count towards the tail",
    spec="12.4",
    end=Left.BOUNDED,
)
def tail_of_one_and_a_device_without_samples(defended: bool) -> Harm:
    """The search is an honest one. A device of weight 0 adds nothing to the sum of updates."""
    config = VERIFIED_ROUND
    devices = {i: replace(one, weight=100) for i, one in make_devices(config).items()}
    *_, without, worst = sorted(devices)
    devices[worst] = replace(devices[worst], weight=config.update.max_weight)
    own = devices[without] = replace(devices[without], loss=devices[worst].loss + 1, weight=0)
    with replaced(ranks, "counted", lambda *_: 1, unless=defended):
        steering = Steering(config, devices=devices)
        steering.run()
        loot = steering.update()
    known = own.measured(config).contribution(own.update)
    taken = (loot.taken - known) & np.uint64(2**loot.ring_bits - 1)
    return Harm(done=replace(loot, taken=taken).is_complete)


@attack(
    "tail-of-one-by-a-wide-bin",
    4,
    "announces a search by `noisy` with two bins, at a level at which the upper bin is split where "
    "only a single device is above",
    power=Power.SERVER,
    gain=UPDATE,
    defence="devices that expect an active server refuse searches that do not count the tail",
    spec="12.12",
    end=Refusal.POLICY,
)
def tail_of_one_by_a_wide_bin(defended: bool) -> Loot:
    """The sums are proved, and an estimate says that two devices are in the tail."""
    policy = ACTIVE if defended else replace(_COUNTING_NOBODY, unverified_if_active=True)
    config = replace(NOISY_ROUND, theta=Fraction(3, 10), num_pivots=1, warm_start=199)
    config = replace(config, min_tail=policy.min_tail(config.cohort_size))
    steering = Steering(config, policy=policy)
    steering.run()
    return steering.update()


@attack(
    "tail-cut-by-drop-outs",
    4,
    "waits for the updates of a tail of three, and then declares two of the three dropped out",
    power=Power.SERVER,
    gain="the update of the third",
    defence="a device counts whoever is lost after the threshold as lost to the tail",
    spec="12.12",
    end=Refusal.TAIL_TOO_SMALL,
    saying="1 devices, fewer than 2",
)
def tail_cut_by_drop_outs(defended: bool) -> Loot:
    """The server guesses well who is in the tail. The search is an honest one."""
    policy = replace(ACTIVE, min_cohort=3, min_threshold=3, colluding_rate=0.0, min_honest_tail=2)
    with replaced(RoundClient, "_check_tail", lambda *_: None, unless=defended):
        steering = Steering(policy=policy, threshold=3)
        steering.run()
        tail = steering.search.result().tail
        presuppose(tail == Tail(3, 3), "three devices are in the tail")
        everyone = steering.evil.everyone
        loot = steering.update(survivors=everyone - {steering.worst - 1, steering.worst - 2})
        if loot.refusals:
            raise loot.refusals[0]
        return loot


def _guess(search: NoisySearch, *, shrank: bool = False, num_lost: int = 0) -> SearchResult:
    """The result, if a search without an answer guesses."""
    guess = 2 * (search.config.warm_start or 0)
    return replace(_result(search, shrank=shrank, num_lost=num_lost), eta_half_ticks=guess)


@attack(
    "tail-of-one-by-the-warm-start",
    4,
    "announces a warm start that a single device passes for a search by `noisy`, asks nothing, and "
    "claims a drop-out",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a verified search that was never answered keeps everybody",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="where the sums give",
)
def tail_of_one_by_the_warm_start(defended: bool) -> Loot:
    """The device with the largest loss is above four nats, and the others below."""
    with replaced(NoisySearch, "result", _guess, unless=defended):
        policy = replace(ACTIVE, unverified_if_active=True)  # the tail of `noisy` is not counted
        steering = Steering(NOISY_ROUND, policy=policy)
        guess = above(present(NOISY_ROUND.warm_start))
        return steering.update(guess, cohort=steering.evil.everyone - {0})


@attack(
    "forged-sum",
    8,
    "shows devices the sums of a search over devices that do not exist",
    power=Power.SERVER,
    gain=UPDATE,
    defence="devices commit to their answers, and the commitments open to the true sum only",
    spec="9.13",
    end=Refusal.BAD_OPENING,
)
def forged_sum(defended: bool) -> Loot:
    """Without the defence, devices do not open the commitments."""
    with replaced(openings, "opens", lambda *_: True, unless=defended):
        steering = Steering()
        steering.run(pretend)
        return steering.update()


def _committed_by_nobody(steering: Steering, query: Query, _: Shown) -> Shown:
    """A false sum, and commitments to its parts that nobody has signed."""
    slot = len(steering.asked) - 1
    spec, randomness = steering.evil.params.slots[slot], SeededRandomness(bytes(32))
    parts = [
        openings.commit(
            steering.evil.context(slot, position),
            spec,
            steering.total([answer]),
            identity(bytes(32)),
            steering.evil.keys[position].sealing_key,
            randomness,
        )
        for position, answer in enumerate(steering.made_up(query))
    ]
    total = steering.total([part for part, _ in parts])
    return total, {position: committed for position, (_, committed) in enumerate(parts)}


@attack(
    "forged-commitments",
    8,
    "shows devices commitments of its own in place of the devices', and the sum that they open to",
    power=Power.SERVER,
    gain=UPDATE,
    defence="devices sign their commitments",
    spec="9.13",
    end=Refusal.BAD_SIGNATURE,
    saying="the commitment of member",
)
def forged_commitments(defended: bool) -> Loot:
    """Without the defence, devices do not check who has signed."""
    with replaced(openings, "is_signed", lambda *_: True, unless=defended):
        steering = Steering()
        steering.run(_committed_by_nobody)
        return steering.update()


def _statement_of_any_question(context: SlotContext, commitment: bytes, key: bytes) -> bytes:
    """What devices sign, if it does not name the question and its slot."""
    return _statement(replace(context, info=b""), commitment, key)


def _an_earlier_answer(steering: Steering, query: Query, truth: Shown) -> Shown:
    """Up to the largest loss, the answer to the first question; above it, the truth."""
    return steering.answers[0] if query.pivots[0] <= steering.highest else truth


@attack(
    "answer-to-another-question",
    8,
    "shows devices the proved sum of an earlier query as the answer to this one",
    power=Power.SERVER,
    gain=UPDATE,
    defence="what a device signs with its commitment names the session, the slot and the question",
    spec="6.5",
    end=Refusal.BAD_SIGNATURE,
    saying="the commitment of member",
)
def answer_to_another_question(defended: bool) -> Loot:
    """The first pivot is below all losses, so that nobody is below any pivot that the server likes.

    When the search is over, devices count five in the tail.
    """
    with replaced(openings, "statement", _statement_of_any_question, unless=defended):
        steering = Steering(replace(VERIFIED_ROUND, warm_start=64))
        steering.run(_an_earlier_answer)
        return steering.update()


def _sum_over_whom_it_names(device: Client, message: SumOpening) -> None:
    """Believe a sum over whatever devices."""
    agreed = present(device._agreed)
    device._agreed = np.isin(np.arange(len(agreed)), list(message.committed))
    try:
        _check_sum(device, message)
    finally:
        device._agreed = agreed


def _of_the_colluder(steering: Steering, query: Query, _: Shown) -> Shown:
    """A sum over the colluding device alone."""
    wanted = steering.total(steering.made_up(query))
    spec = steering.evil.params.slots[0]
    zeros = ring.zeros(spec.wire_length, spec.ring_bits)
    return steering.with_colluder((zeros, {}), wanted)


@attack(
    "sum-of-the-colluder",
    8,
    "proves a sum over its own device alone, in place of one over the cohort",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a device wants the commitments of exactly the devices that were agreed on",
    spec="9.13",
    end=Refusal.MISSING_NEIGHBOUR,
)
def sum_of_the_colluder(defended: bool) -> Loot:
    """One of five devices colludes. Without the defence, devices believe sums over any devices."""
    with replaced(Client, "_check_sum", _sum_over_whom_it_names, unless=defended):
        steering = Steering(num_colluders=1)
        steering.run(_of_the_colluder)
        return steering.update()


def _known(index: int) -> int:
    """The discrete logarithm of a generator."""
    return index + 1


def _generator_of_known_logarithm(index: int) -> bytes:
    return crypto_scalarmult_ed25519_base_noclamp(_known(index).to_bytes(32, "little"))


def _another_blinding(steering: Steering, query: Query, truth: Shown) -> Shown:
    """A false sum, and the blinding that makes the true commitments open to it."""
    total, committed = truth
    spec = steering.evil.params.slots[0]
    false = steering.total(steering.made_up(query))
    blinding = pedersen.join_blinding(total[spec.length :].tolist()) + sum(
        (true - made_up) * _known(index)
        for index, (true, made_up) in enumerate(
            zip(
                openings.signed(total[: spec.length], spec.ring_bits),
                openings.signed(false, spec.ring_bits),
                strict=True,
            )
        )
    )
    limbs = np.array(pedersen.split_blinding(blinding % pedersen.ORDER), dtype=total.dtype)
    return np.concatenate((false, limbs)), committed


@attack(
    "another-blinding",
    8,
    "opens the devices' true commitments to a false sum, with another blinding",
    power=Power.SERVER,
    gain=UPDATE,
    defence="generators that come out of a hash, so that nobody knows a relation between them",
    spec="2.9",
    end=Refusal.BAD_OPENING,
)
def another_blinding(defended: bool) -> Loot:
    """Without the defence, generators are known multiples of the base point."""
    no_sums = {0: pedersen._sums[0]}
    with (
        replaced(pedersen, "generator", _generator_of_known_logarithm, unless=defended),
        replaced(pedersen, "_sums", no_sums, unless=defended),
    ):
        steering = Steering()
        steering.run(_another_blinding)
        return steering.update()


@attack(
    "split-views",
    8,
    "has its own device sign two commitments, and shows one device another sum than the others",
    power=Power.SERVER,
    gain=UPDATE,
    defence="masks and signatures are bound to the question, and different sums lead to different "
    "questions",
    spec="12.6",
    end=Refusal.BAD_SIGNATURE,
    saying="the list of devices",
)
def split_views(defended: bool) -> Loot:
    """One device is told that all are below the pivot, and the others that nobody is.

    Without the defence, masks do not depend on the question.
    """
    config = replace(
        VERIFIED_ROUND,
        warm_start=VERIFIED_ROUND.search.grid.max_tick - 1,
        search=replace(VERIFIED_ROUND.search, max_queries=1),
    )
    client_type = RoundClient if defended else Unbound
    steering = Steering(config, client_type=client_type, num_colluders=1, bound=defended)
    query = present(steering.search.query)
    truth = steering.query(query)
    views = {}
    for position in steering.evil.honest:
        tick = 0 if position == steering.worst else config.search.grid.max_tick
        made_up = DeviceRound(config, tick, 1, 0).answer(query)
        wanted = steering.total([made_up] * config.cohort_size)
        views[position] = steering.with_colluder(truth, wanted)
    steering.show(views)
    shown = {p: above(0 if p == steering.worst else query.pivots[0]) for p in views}
    return steering.update({**shown, len(steering.ids) - 1: above(query.pivots[0])})


class _Trusting(RoundClient):
    """A device that follows a search only as far as sums are proved, and believes the rest."""

    def _check_search(self, question: Query | Threshold, members: int) -> None:
        if not self._is_waiting:
            super()._check_search(question, members)


@attack(
    "unproved-sum",
    4,
    "asks the queries of a search, and proves no sum to anybody",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a device takes no question before the last sum is proved, unless a device has left",
    spec="12.12",
    end=Refusal.UNPROVED,
)
def unproved_sum(defended: bool) -> Loot:
    """One query, and then the threshold."""
    steering = Steering(client_type=RoundClient if defended else _Trusting)
    steering.query(present(steering.search.query))
    return steering.update(above(steering.highest))


def _accept_before_the_end(
    followed: Followed, threshold: Threshold, num_devices: int, *, shrank: bool
) -> Tail | None:
    """Accept any threshold while the search could go on."""
    if followed.search.query is not None:
        return None
    return _check_threshold(followed, threshold, num_devices, shrank=shrank)


@attack(
    "search-cut-short",
    4,
    "announces a threshold of its own after one query, though nobody has dropped out",
    power=Power.SERVER,
    gain=UPDATE,
    defence="a device knows whether the search is over",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="the search is to go on",
)
def search_cut_short(defended: bool) -> Loot:
    """The sum is proved. Without the defence, a search may end at any time."""
    with replaced(Followed, "check_threshold", _accept_before_the_end, unless=defended):
        steering = Steering()
        steering.run(most=1)
        return steering.update(above(steering.highest))


def _accept_if_one_left(
    followed: Followed, threshold: Threshold, num_devices: int, *, shrank: bool
) -> Tail | None:
    """Accept any threshold if a device has left."""
    if shrank:
        return None
    return _check_threshold(followed, threshold, num_devices, shrank=shrank)


@attack(
    "threshold-after-a-drop-out",
    4,
    "claims that a device has dropped out, and announces a threshold above all that is proved",
    power=Power.SERVER,
    gain=UPDATE,
    defence="when a device has left, the threshold is the highest pivot that the proved sums show "
    "to be at or below the quantile",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="where the sums give",
)
def threshold_after_a_drop_out(defended: bool) -> Loot:
    """Two queries are asked and proved. What the server may get is `search-ended-early`."""
    with replaced(Followed, "check_threshold", _accept_if_one_left, unless=defended):
        steering = Steering()
        steering.run(most=2)
        everyone = steering.evil.everyone
        return steering.update(above(steering.highest), cohort=everyone - {0})


@attack(
    "another-query",
    14,
    "asks a query that does not follow, with a pivot just below the largest loss that it expects",
    power=Power.SERVER,
    gain="the weight of the device with the largest loss",
    defence="a device works out every query itself",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="Query(",
)
def another_query(defended: bool) -> Loot:
    """It is the first query. The largest loss may be known from the round before."""
    with replaced(Followed, "check_query", lambda *_: None, unless=defended):
        steering = Steering()
        total, _ = steering.query(Query("bracketed", (steering.highest,)))
        layout = steering.config.search_layout
        sums = layout.decode(total[: layout.length].astype(np.uint64))
        device = steering.devices[steering.worst]
        return Loot(
            (sums["weight"] - sums["weight_below"]).astype(np.uint64),
            np.array([device.weight], dtype=np.uint64),
            layout.ring_bits,
        )
