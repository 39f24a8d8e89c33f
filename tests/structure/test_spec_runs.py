"""The pseudo-code of docs/spec.md computes what the code does, and a wrong digit is found.

Each check compares some functions of the page with the implementation, on inputs that a generator
of random numbers gives. Played with the page they pass; played with a page in which something was
changed they fail.
"""

import math
import random
import re
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import spec_code
import spec_trace
from spec_code import TEXT, refusal_of, run_page

from deltafl.protocol import participations, update_noise
from deltafl.protocol import wire as envelopes
from deltafl.protocol.anonymity import Tail, expected_apart
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import (
    RoundConfig,
    UpdateParams,
    binding,
)
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile import ballots
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    PeerError,
    SessionParams,
    SlotSpec,
    UsageError,
    codec,
    cohort,
    identity,
    keys,
    labels,
    masks,
    openings,
    pedersen,
    prg,
    proofs,
    ring,
    shamir,
    signing,
    threat,
    wire,
)
from deltafl.secagg.codec import Records
from deltafl.secagg.directory import TrustedKeys
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.graph import Graph
from deltafl.secagg.layout import Field, Layout
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.messages import ConsistencyCheck, SessionOpen, UnmaskRequest
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.threat import Adversary, ThreatModel

PAGE = run_page()
ASSURANCES = ((False, False), (True, False), (True, True))
"""Whether a search is verified, and whether its votes are proved."""


# --- what checks have in common ------------------------------------------------------------------


def some_set(rng, size):
    return np.array([rng.random() < 0.7 for _ in range(size)])


def some_params(rng, **changes):
    num_invited = rng.randint(4, 40)
    is_complete = rng.random() < 0.5
    degree = num_invited - 1 if is_complete else 2 * rng.randint(1, (num_invited - 2) // 2)
    threshold = rng.randint(2, num_invited if is_complete else degree)
    signed = rng.random() < 0.5
    bits = [rng.randint(1, 64) for _ in range(rng.randint(1, 4))]
    verified = [signed and is_complete and b >= 22 and rng.random() < 0.5 for b in bits]
    slots = tuple(
        SlotSpec(
            "sum é"[: rng.randint(0, 5)],
            rng.randint(1, 9),
            b,
            rng.random() < 0.5,
            v,
            v * 32 * rng.randint(0, 3),
        )
        for b, v in zip(bits, verified, strict=True)
    )
    fields = {
        "slots": slots,
        "num_invited": num_invited,
        "degree": degree,
        "threshold": threshold,
        "min_cohort": rng.randint(threshold, num_invited),
        "graph_seed": rng.randbytes(32),
        "context": rng.randbytes(32),
        "min_roster": rng.randint(2, num_invited),
        "signed": signed,
    }
    return SessionParams(**(fields | changes))


def flat(config):
    """A configuration by the names of section 12.1."""
    noise, hidden = config.noise_numbers, config.update.noise
    return SimpleNamespace(
        round_index=config.round_index,
        cohort_size=config.cohort_size,
        theta=config.theta,
        method=config.method,
        num_pivots=config.num_pivots or 0,
        max_queries=config.search.max_queries,
        resolution_bits=config.search.grid.resolution_bits,
        bound=config.search.grid.bound,
        max_weight=config.update.max_weight,
        update_length=config.update_length,
        update_clip=config.update.clip,
        update_resolution_bits=config.update.resolution_bits,
        weighting=config.search.weighting.value,
        epsilon_ticks=config.search.epsilon_ticks,
        min_search_cohort=config.search.min_cohort,
        noise_numerator=noise[0],
        noise_denominator=noise[1],
        noise_devices=noise[2],
        warm_start=config.warm_start_number,
        verified=config.search.assurance,
        min_tail=config.min_tail,
        radius=config.update.radius or 0.0,
        update_norm=0.0 if hidden is None else hidden.norm,
        update_deviation=0 if hidden is None else hidden.deviation,
        update_noise_devices=0 if hidden is None else hidden.num_devices,
    )


def some_config(rng, **changes):
    """A round of any method; of some settings, there is none."""
    while True:
        method = changes.get("method") or rng.choice(["mm", "bracketed", "histogram", "noisy"])
        is_noisy, size = method == "noisy", rng.randint(3, 30)
        hidden = changes.get("hidden", rng.random() < 0.3)
        grid = LossGrid(rng.choice([0, 1, rng.randint(0, 16)]), rng.randint(1, 32))
        warm = rng.choice([None, 0, rng.randint(0, grid.max_tick)])
        try:
            return RoundConfig(
                round_index=rng.choice([0, rng.getrandbits(63)]),
                cohort_size=size,
                theta=Fraction(rng.randint(1, 9), 10) if rng.random() < 0.9 else Fraction(1),
                method=method,
                search=SearchParams(
                    1 if is_noisy else rng.choice([rng.randint(0, 8), 25]),
                    grid,
                    Weighting.EQUAL if is_noisy else rng.choice(list(Weighting)),
                    rng.choice([0, rng.randint(0, grid.max_tick)]) if method == "mm" else 0,
                    rng.choice([0, size, rng.randint(0, size + 1)]),
                    *changes.get("verified", rng.choice(ASSURANCES)),
                ),
                update=UpdateParams(
                    rng.choice([4.0, 2e-320, rng.uniform(0.001, 50)]),
                    rng.randint(0, 20),
                    1
                    if hidden
                    else rng.choice([1, rng.randint(1, 2**20), 2 ** rng.randint(0, 48)]),
                    noise=some_noise(rng, size) if hidden else None,
                    radius=None if hidden else changes.get("radius"),
                ),
                update_length=rng.choice([rng.randint(1, 6), 70]) if hidden else rng.randint(1, 6),
                warm_start=warm,
                num_pivots=None if method in ("mm", "bracketed") else rng.choice([None, 1, 5, 6]),
                noise=Noise(Fraction(rng.randint(1, 90), rng.randint(1, 9)), rng.randint(1, size))
                if is_noisy
                else None,
                min_tail=rng.choice([0, rng.randint(0, size)]),
            )
        except ConfigurationError:
            continue


def some_radius(rng):
    """None, a radius that long updates exceed, or one that may be too small for its round."""
    return {"radius": rng.choice([None, rng.uniform(0.01, 50), 2.0 ** -rng.randint(0, 12)])}


def some_noise(rng, size):
    return UpdateNoise(rng.uniform(0.01, 9), rng.randint(2, 3000), rng.randint(1, size))


def the_same(function, page_function):
    """Two ways to refuse or not: both refuse under one name, or neither does."""
    try:
        function()
        refusal = None
    except PeerError as refused:
        refusal = refused.reason.name
    assert refusal_of(page_function) == refusal


# --- checks: the session -------------------------------------------------------------------------


def check_packing(page, rng):
    parts = [rng.choice([rng.randbytes(rng.randint(0, 9)), rng.getrandbits(64)]) for _ in range(4)]
    assert page.pack(*parts) == labels.pack(*parts)
    assert page.digest(b"label", *parts) == labels.digest(b"label", *parts)
    members = some_set(rng, rng.randint(1, 20))
    assert page.bitmap(members) == np.packbits(members, bitorder="little").tobytes()
    strings = {rng.randint(0, 2**32 - 1): rng.randbytes(3) for _ in range(5)}
    assert page.records(strings) == Records.of(strings, 3).encode()
    number = rng.randint(-(2**63), 2**63 - 1)
    assert page.be64(number) == struct.pack(">q", number)
    assert page.u64(abs(number)) == struct.pack("<Q", abs(number))


def check_keys(page, rng):
    known = [int.from_bytes(key, "little") for key in keys._LOW_ORDER_KEYS]
    assert sorted(page.LOW_ORDER) == sorted(known)
    for number in page.LOW_ORDER:
        spellings = [number, number + page.P, number + 2**255, number + page.P + 2**255]
        for spelling in (x for x in spellings if x < 2**256 and x % 2**255 % page.P == number):
            public = spelling.to_bytes(32, "little")
            assert page.is_low_order(public)
            assert keys.is_low_order(public)
            assert refusal_of(page.agree, rng.randbytes(32), public) == "BAD_KEY"
    one, other = keys.key_pair(rng.randbytes(32)), keys.key_pair(rng.randbytes(32))
    assert page.coordinate(one.public) == keys.coordinate(one.public)
    assert not page.is_low_order(one.public)
    assert page.x25519_base(one.secret) == one.public
    assert page.agree(one.secret, other.public) == one.agree(other.public)
    material, salt, info = rng.randbytes(32), rng.randbytes(32), rng.randbytes(rng.randint(0, 99))
    assert page.hkdf(material, salt, info) == keys.derive(material, salt=salt, info=info)


def check_boxes(page, rng):
    one, other = keys.key_pair(rng.randbytes(32)), keys.key_pair(rng.randbytes(32))
    s, r, session, nonce, plaintext = 3, 5, rng.randbytes(32), rng.randbytes(24), rng.randbytes(72)
    link = masks.Link.between(one, r, other.public, session)
    channel = keys.SealedChannel(link.secret, one.public, other.public, s, r)
    box = channel.seal(plaintext, lambda _: nonce)
    label = page.box_label(s, r, one.public, other.public)
    assert page.seal(one.secret, other.public, session, label, nonce, plaintext) == box
    assert page.open_box(other.secret, one.public, session, label, box) == plaintext
    back = page.box_label(r, s, other.public, one.public)
    assert page.open_box(other.secret, one.public, session, back, box) is None


def check_shares(page, rng):
    threshold, secrets = rng.randint(2, 6), [rng.randbytes(32) for _ in range(4)]
    points, seed = rng.sample(range(1, 2000), threshold + 2), rng.randbytes(32)
    expected = shamir.split(secrets, points, threshold, SeededRandomness(seed))
    found = page.share_secrets(secrets, points, threshold, SeededRandomness(seed))
    assert [found[x] for x in points] == [row.astype("<u4").tobytes() for row in expected]
    some = rng.sample(range(len(points)), threshold)
    for index, secret in enumerate(secrets):
        rows = {points[i]: expected[i, index].tolist() for i in some}
        assert page.combine(rows) == secret
    for last in (0, 2**16 - 1, 2**16, 2**30 - 1, 2**30):
        limbs = [rng.choice([2**30 - 1, rng.getrandbits(30)]) for _ in range(8)] + [last]
        for row in (limbs, limbs[::-1]):
            expected = shamir.from_limbs(np.array([row], dtype=np.uint32))[0]
            assert page.secret_of(row) == expected


def check_redraws(page, rng):
    first = [rng.choice([b"\xff" * 4, b"\xff\xff\xff\x7f", rng.randbytes(4)]) for _ in range(8)]
    seed = rng.randbytes(32)

    def source():
        later, calls = SeededRandomness(seed), iter([b"".join(first)])
        return lambda size: next(calls, None) or later(size)

    assert page.field_elements(8, source()) == shamir._field_elements(8, source()).tolist()


def check_commitments(page, rng):
    index = rng.randint(0, 5)
    assert page.encode_point(page.generator(index)) == pedersen.generator(index)
    assert page.encode_point(page.times(page.ORDER, page.generator(index))) == b"\1" + bytes(31)
    bits = rng.randint(18, 64)
    vectors = [[rng.getrandbits(bits), 2 ** (bits - 1), 2 ** (bits - 1) - 1] for _ in range(2)]
    blindings = [pedersen.draw_blinding(rng.randbytes) for _ in vectors]
    total, committed = [0] * 19, []
    for vector, blinding in zip(vectors, blindings, strict=True):
        commitment, wire_vector = page.commit_vector(vector, bits, blinding)
        values = openings.signed(np.array(vector, dtype=np.uint64), bits)
        assert commitment == pedersen.commit(values, blinding)
        assert wire_vector[3:] == pedersen.split_blinding(blinding)
        total = [(a + b) % 2**bits for a, b in zip(total, wire_vector, strict=True)]
        committed.append(commitment)
    spec = SlotSpec("a", 3, bits, verified=True)
    other = [*total[:18], total[18] ^ 1]
    for numbers in (total, other):
        vector = ring.to_words(np.array(numbers, dtype=np.uint64), bits)
        sent = [commitment + bytes(64) for commitment in committed]
        # A sum of values may wrap around; it then opens for neither.
        assert page.sum_opens(numbers, bits, committed) == openings.opens(spec, vector, sent)
    assert page.blinding_of(total[3:]) == sum(blindings) % page.ORDER
    assert not page.sum_opens(other, bits, committed)
    prime = 2**255 - 19
    numbers = [0, 1, prime - 1, prime, prime + 1, rng.getrandbits(255), rng.getrandbits(255)]
    for number in (sign | y for y in numbers for sign in (0, 2**255)):
        data = number.to_bytes(32, "little")
        assert (page.decode_point(data) is None) == (pedersen.add([data]) is None)
    assert page.decode_point(bytes(31)) is None


def votes_are_drawn_by_the_page(page, c, of, rng):
    """What is drawn for a weight and for a proof follows from the seeds of the page."""
    weight, random, about = rng.randint(0, of.largest_weight), rng.randbytes(32), rng.randbytes(5)
    seeded = SeededRandomness(page.weight_seed(c, weight, random))
    expected = [pedersen.draw_blinding(seeded) for _ in page.weight_parts(c)]
    assert list(ballots.Voter.drawn(of, weight, lambda _: random).blindings) == expected
    known = rng.randint(1, 9)
    target = page.times(known, page.BASE)
    choice = [(target, [page.BASE]), (page.generator(3), [page.BASE, page.generator(4)])]
    cases = [
        proofs.Case(page.encode_point(point), tuple(map(page.encode_point, bases)))
        for point, bases in choice
    ]
    proof = proofs.prove(about, [cases], [proofs.Witness(0, (known,))], lambda _: random)
    seeded = SeededRandomness(page.proof_seed(about, [choice], [(0, [known])], random))
    drawn = [pedersen.draw_blinding(seeded) for _ in range(5)]  # two challenges, three responses
    numbers = [int.from_bytes(proof[i : i + 32], "little") for i in range(0, len(proof), 32)]
    assert [numbers[1], *numbers[3:]] == [drawn[1], *drawn[3:]]
    assert numbers[2] == (drawn[2] + (numbers[0] - drawn[1]) * known) % page.ORDER


def check_votes(page, rng):
    """A proof that holds, and one of which a byte was changed, under either verifier."""
    weighting, largest = rng.choice(list(Weighting)), rng.randint(1, 3)
    config = RoundConfig(
        0,
        9,
        Fraction(1, 2),
        "histogram",
        SearchParams(3, LossGrid(4, 4), weighting, verified=True, proved=True),
        UpdateParams(max_weight=largest),
        1,
        num_pivots=2,
    )
    c, of = flat(config), config.search_config
    assert page.weight_parts(c) == ballots._parts(of)
    pivots = tuple(sorted(rng.choices(range(1, 5), k=2)))
    query, weight = Query("histogram", pivots), weighting.of(rng.randint(0, largest))
    tick, is_first, position = rng.randint(0, 5), rng.random() < 0.5, rng.randint(0, 8)
    voter = ballots.Voter.drawn(of, weight, rng.randbytes)
    own = page.encode_point(page.total_of([page.point_in_group(p) for p in voter.commitments]))
    blinding = pedersen.draw_blinding(rng.randbytes)
    values = page.answer(c, pivots, tick, weight)
    point = page.commit([x for name in values for x in values[name]], blinding)
    signer = signing.Signer(rng.randbytes(32), rng.randbytes(32))
    commitment = openings.Commitment(
        masks.SlotContext(rng.randbytes(32), rng.randbytes(9)), position, signer, point
    )
    proof = voter.prove(of, query, tick, commitment, blinding, rng.randbytes, is_first=is_first)
    assert len(proof) == page.proof_size(c, is_first)
    votes_are_drawn_by_the_page(page, c, of, rng)
    own_keys = signer.identity, signer.sealing_key
    place = rng.randrange(len(proof))
    changed = proof[:place] + bytes([proof[place] ^ 1]) + proof[place + 1 :]
    known = own if rng.random() < 0.5 or not is_first else None
    for data, holds in ((proof, True), (changed, False)):
        place_of = commitment.context.session_id, commitment.context.info, position
        found = page.admitted_weight(c, pivots, *place_of, *own_keys, point, known, is_first, data)
        assert found == (own if holds else None)
        weights = {} if known is None else {position: known}
        assert holds == ballots.admits(of, query, weights, commitment, data, is_first=is_first)


def check_params(page, rng):
    params = some_params(rng)
    roster = np.arange(rng.randint(1, 9), dtype="<u4").tobytes()
    assert page.canonical_params(params) == params.canonical()
    assert page.params_digest(params) == params.digest
    assert page.tag(params) == params.tag
    assert page.session_id(params, roster) == params.session_id(roster)
    slot, shown = rng.randrange(len(params.slots)), rng.randbytes(5)
    info = masks.SlotContext.of(params, bytes(32), slot, shown).info
    assert page.slot_info(params, slot, shown) == info


def check_thresholds(page, rng):
    active = rng.random() < 0.5
    model = ThreatModel(
        rng.choice([0, 0.02, 0.05, 0.1, 0.2] if active else [0, 0.03, 0.1, 0.2, 0.5, 0.6]),
        rng.choice([0.0, 0.02, 0.05, 0.1, 0.3]),
        Adversary.ACTIVE if active else Adversary.CURIOUS,
    )
    size = rng.choice([2, 5, rng.randint(20, 90), rng.randint(90, 220)])
    c, s, d = model.num_colluding(size), model.num_surviving(size), model.num_dropped(size)
    found = page.complete_threshold(size, c, s, active)
    assert found == or_none(threat.complete_threshold, size, model)
    sparse = page.sparse_parameters(size, c, s, d, active)
    assert sparse == or_none(threat.sparse_parameters, size, model)
    if sparse is not None:
        degree, colluders = sparse[0], rng.randint(0, size)
        smallest, missing = rng.randint(degree, size), rng.randint(0, size)
        events = threat.SparseEvents(size, smallest, colluders, missing, model.adversary)
        needed = page.sparse_threshold(size, smallest, colluders, missing, degree, active)
        assert events.safe_threshold(degree) == needed


def or_none(function, *arguments):
    try:
        return function(*arguments)
    except UsageError:
        return None


def check_graph(page, rng):
    size, degree, seed = rng.randint(1, 30), 2 * rng.randint(1, 12), rng.randbytes(32)
    graph = Graph(size, degree, seed)
    for p in range(size):
        assert page.neighbours(p, size, degree, seed) == graph.neighbours(p).tolist()
        assert page.holders(p, size, degree, seed) == graph.holders_of(p).tolist()


def check_masks(page, rng):
    bits, length = rng.choice([32, 33, rng.randint(1, 64)]), rng.randint(1, 40)
    vector = ring.to_words(
        np.array([rng.getrandbits(bits) for _ in range(length)], dtype=np.uint64), bits
    )
    data = ring.pack(vector, bits)
    assert page.packed(vector.tolist(), bits) == data
    assert page.unpacked(data, length, bits) == vector.tolist()
    key, total = rng.randbytes(32), ring.zeros(length, bits)
    prg.add_mask(total, key)
    ring.reduce(total, bits)
    assert page.mask(key, length, bits) == total.tolist()
    params, session = some_params(rng), rng.randbytes(32)
    slot = rng.randrange(len(params.slots))
    context = masks.SlotContext.of(params, session, slot, b"shown")
    assert page.self_mask_key(key, session, context.info) == context.self_mask_key(key)
    one, other = keys.key_pair(rng.randbytes(32)), keys.key_pair(rng.randbytes(32))
    pair = context.pair_secrets(one, [1], [other.public])[0]
    assert page.pair_mask_key(other.secret, other.public, one.public, session, context.info) == (
        pair.key()
    )
    members = some_set(rng, 11)
    link = masks.Link.between(one, 1, other.public, session)
    whole = link.whole(context.whole_slot_info(members)).key()
    ends = (other.secret, other.public, one.public)
    assert page.whole_mask_key(*ends, session, context.info, members) == whole
    committed = masks.seed_commitment(session, slot, 7, key)
    assert page.seed_commitment(session, slot, 7, key) == committed


def check_statements(page, rng):
    public, sealing_key, session = rng.randbytes(32), rng.randbytes(32), rng.randbytes(32)
    assert page.identity_fingerprint(public) == identity.fingerprint(public)
    directory = TrustedKeys({5: public, 3: sealing_key})
    text = directory.dump().encode()
    assert page.directory_fingerprint(text) == directory.fingerprint()
    params, mask_keys = some_params(rng), (rng.randbytes(32), rng.randbytes(32))
    assert page.advertisement_statement(params, 9, sealing_key, mask_keys) == (
        signing.advertisement(params, 9, sealing_key, mask_keys)
    )
    context = masks.SlotContext.of(params, session, 0, b"shown")
    members = some_set(rng, 13)
    assert page.survivors_statement(session, context.info, members, sealing_key) == (
        signing.survivors(context, members, sealing_key)
    )
    assert page.members_statement(session, 2, members, sealing_key) == (
        signing.members(session, 2, members, sealing_key)
    )
    assert page.commitment_statement(session, context.info, public, sealing_key) == (
        openings.statement(context, public, sealing_key)
    )


def check_encoding(page, rng):
    sizes = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1]
    fields = [rng.choice(sizes) for _ in range(rng.choice([0, 3, 15, 16]))]
    fields += [rng.randbytes(rng.choice([0, 255, 256, 65_535, 65_536]))]
    assert page.encode(fields) == codec.write_fields(fields)
    params = some_params(rng, signed=True)
    members = some_set(rng, 9)
    signatures = {2: rng.randbytes(64), 7: rng.randbytes(64)}
    assert wire.encode(ConsistencyCheck(0, members), params) == (
        page.message(params, 0x05, 0, 9, page.bitmap(members))
    )
    assert wire.encode(UnmaskRequest(0, members, signatures), params) == (
        page.message(params, 0x06, 0, 9, page.bitmap(members), page.records(signatures))
    )
    slots = [
        part
        for slot in params.slots
        for part in (slot.label.encode(), slot.length, slot.ring_bits, slot.whole, slot.verified)
    ]
    opened = page.message(
        params,
        0x01,
        page.encode([int(x) if isinstance(x, bool) else x for x in slots]),
        params.num_invited,
        params.degree,
        params.threshold,
        params.min_cohort,
        params.graph_seed,
        params.context,
        params.min_roster,
        1,
    )
    assert wire.encode(SessionOpen(params), params) == opened


def check_sets(page, rng):
    n, threshold = rng.randint(4, 12), rng.randint(2, 4)
    params = some_params(
        rng,
        num_invited=12,
        degree=11,
        threshold=threshold,
        min_cohort=rng.randint(4, 8),
        min_roster=2,
    )
    position = rng.randrange(n)
    before = rng.choice([None, some_set(rng, n) | (rng.random() < 0.7)])
    members = some_set(rng, n) | (rng.random() < 0.3)
    if before is not None and rng.random() < 0.7:
        members = members & before
    unheard = set(np.flatnonzero(~some_set(rng, n)).tolist()) if rng.random() < 0.5 else set()
    heard = np.array([p not in unheard for p in range(n)])
    own = np.array(sorted({position, *rng.sample(range(n), 3)}))
    the_same(
        lambda: cohort.check_members(
            members, np.ones(n, bool) if before is None else before, heard, position, own, params
        ),
        lambda: page.check_set(members, before, unheard, position, n, own.tolist(), params),
    )
    assert refusal_of(page.check_set, members, before, unheard, 0, n + 1, [0], params) == (
        "MALFORMED"
    )


# --- checks: the round ---------------------------------------------------------------------------


def check_configuration(page, rng):
    config, models = some_config(rng, **some_radius(rng)), rng.randbytes(8)
    c = flat(config)
    assert page.search_bits(c) == config.search_layout.ring_bits
    assert page.update_bits(c) == config.update_layout.ring_bits
    for layout, expected in (
        (page.search_layout(c), config.search_layout),
        (page.update_layout(c), config.update_layout),
    ):
        assert page.canonical_layout(layout, c.cohort_size) == expected.canonical()
    listed = [
        (s.label, s.length, s.ring_bits, s.whole, s.verified, s.proof_size) for s in config.slots()
    ]
    assert page.slots(c) == listed
    assert page.configuration(c) == config.canonical()
    lower = replace(config, theta=config.theta / 2, warm_start=None)
    levels = Levels((config, lower))
    assert page.context([c, flat(lower)], models) == levels.context(models)
    query = Query(config.method, tuple(sorted(rng.randint(0, 2**50) for _ in range(3))))
    context = rng.randbytes(32)
    assert page.query_binding(context, query.method, query.pivots) == binding(context, query)
    eta, delta = rng.getrandbits(62), rng.getrandbits(62)
    assert page.threshold_binding(context, eta, delta) == binding(context, Threshold(eta, delta))
    asked = participations.Asked.of(config, models[:4])
    assert page.model_entry(models[:4]) == asked.model
    ledger, known, most = MemoryLedger(), set(), rng.randint(1, 4)
    for number in range(5):
        c = flat(replace(config, round_index=number))
        told = page.entries_to_admit(known, models[:4], c, most)
        entries = asked.next_round(ledger, most)
        assert ([*entries] == told) if ledger.admit(entries) else (told is None)
        known.update(told or ())
    other = flat(replace(config, min_tail=(config.min_tail + 1) % 2))
    assert page.entries_to_admit(known, models[:4], other, 9) is None


def check_noise(page, rng):
    devices = rng.randint(1, 50)
    variance = rng.choice(
        [Fraction(4 * devices), Fraction(rng.getrandbits(40), rng.getrandbits(9) + 1)]
    )
    noise = Noise(variance or Fraction(1), devices)
    c = SimpleNamespace(
        method="noisy",
        num_pivots=rng.choice([0, 1, 2, 7]),
        cohort_size=rng.randint(devices, 300),
        noise_numerator=noise.variance.numerator,
        noise_denominator=noise.variance.denominator,
        noise_devices=devices,
    )
    bound = noise.bound(((c.num_pivots or 16) + 1) * c.cohort_size)
    assert page.noise_share(c) == (noise.resolution_bits, bound)


NOT_FINITE = (math.nan, math.inf, -math.inf)


def check_contributions(page, rng):
    config = some_config(rng, hidden=False, **some_radius(rng))
    c, grid = flat(config), config.search.grid
    usual = [rng.uniform(-1, 40), float(rng.randint(0, 3)), -0.5, -1e300, 1e300]
    loss = rng.choice([*usual, *NOT_FINITE])
    weight = rng.choice([0, 1, rng.randint(0, 2 * config.update.max_weight)])
    device = DeviceRound.measured(config, loss, weight)
    assert page.tick(c, loss) == device.tick
    for eta in range(2 * device.tick - 3, 2 * device.tick + 4):
        assert page.passes(device.tick, eta, 2) == Threshold(eta, 2).passes(device.tick)
    size = page.num_pivots(c)
    near = [device.tick, device.tick + 1, rng.randint(0, grid.max_tick + 1)]
    pivots = tuple(sorted(rng.choice(near) for _ in range(size)))
    seed, share = rng.randbytes(32), None
    if config.noise is not None:
        bins = config.quantile.num_bins
        bound = config.noise.bound(bins * config.cohort_size)
        share = config.noise.share(bins, bound, SeededRandomness(seed)).tolist()
    values = page.answer(c, pivots, device.tick, page.weight_in_search(c, device.weight), share)
    found = page.encode_values(page.search_layout(c), page.search_bits(c), values)
    query = Query(config.method, pivots)
    assert found == device.answer(query, SeededRandomness(seed)).tolist()
    numbers = [rng.gauss(0, config.update.clip) for _ in range(config.update_length)]
    if rng.random() < 0.2:
        numbers[rng.randrange(len(numbers))] = rng.choice(NOT_FINITE)
    delta = np.array(numbers, dtype=np.float32)
    values = page.update_values(
        c, device.tick, device.weight, delta.astype(float).tolist(), device.num_clipped
    )
    found = page.encode_values(page.update_layout(c), page.update_bits(c), values)
    assert found == device.contribution(delta).tolist()
    compare_radius(page, rng, config)


def compare_radius(page, rng, config):
    """Whether a round may have a radius, near the smallest one too."""
    bits, length = config.update.resolution_bits, config.update_length
    least = math.ldexp(math.sqrt(length), -bits)
    above, below = math.nextafter(least, 9), math.nextafter(least, 0)
    radius = rng.choice([above, below, least * rng.uniform(0.5, 2), *NOT_FINITE])
    is_possible = page.may_be_radius(
        SimpleNamespace(radius=radius, update_length=length, update_resolution_bits=bits)
    )
    update = replace(config.update, radius=radius)
    try:
        replace(config, update=update)
    except ConfigurationError:
        assert not is_possible
        return
    assert is_possible


def given_once(stream):
    """Randomness that gives a stream, and then coins that round every number up."""
    parts = [stream]
    return lambda size: parts.pop() if parts else bytes(size)


def check_update_noise(page, rng):
    config = some_config(rng, hidden=True)
    c, noisy = flat(config), config.noisy_updates
    assert page.noise_sizes(c) == tuple(noisy.sizes)
    assert page.update_noise_bound(c) == noisy.noise.bound(noisy.sizes, config.cohort_size)
    assert page.noise_bytes(c) == noisy.noise.packed()
    size = noisy.sizes.length
    values = [rng.gauss(0, 1) for _ in range(size)]
    flipped = [x * y for x, y in zip(values, page.rotation_signs(c), strict=True)]
    np.testing.assert_allclose(
        update_noise.rotate(np.array(values), noisy.seed), page.hadamard(flipped), atol=1e-9
    )
    scale = rng.choice([0.1, 1.0, 10.0]) * noisy.noise.norm / config.update_length**0.5
    delta = np.array([rng.gauss(0, scale) for _ in range(config.update_length)], dtype=np.float32)
    exact, is_longer = noisy._scaled(delta, noisy.sizes)
    steps, told = page.in_steps(c, delta.astype(float).tolist())
    np.testing.assert_allclose(exact, steps, atol=1e-6)
    assert bool(is_longer) is told
    stream, bound = rng.randbytes(4 * size), noisy.sizes.square_bound
    coins = [int.from_bytes(stream[4 * i : 4 * i + 4], "big") for i in range(size)]
    taken = update_noise.rounded(np.array(steps), bound, given_once(stream))
    drawn = page.rounded_by(steps, coins)
    assert page.may_be_sent(c, drawn) is (taken.tolist() == drawn)
    sums = [rng.randint(-9999, 9999) for _ in range(size)]
    fields = {name: np.array([0]) for name in ("count", "weighted_loss", "clipped")}
    surely = 2 * math.sqrt(2) * noisy.noise.deviation + rng.choice([0, 1.5, 9]) * noisy.sizes.scalar
    fields["count"] = np.array([round(surely)])
    read = noisy.read(fields | {"update": np.array(sums)}, config.theta, 2)
    counted = int(fields["count"][0])
    np.testing.assert_allclose(
        read.update, page.noisy_mean(c, sums, counted, 2, config.theta), atol=1e-9
    )
    number = rng.randint(0, 99)
    policy = RoundPolicy(max_participations=1, max_rounds_per_day=1)
    total, of_day = participations.limits_of(policy, today := rng.randrange(2**63))
    assert page.participation_entry(number) == total.entry(number)
    assert page.round_of_day_entry(today, number) == of_day.entry(number)


def check_layouts(page, rng):
    ends = [
        rng.choice([(-8, 7), (0, rng.randint(0, 9)), sorted(rng.uniform(-9, 9) for _ in range(2))])
        for _ in range(rng.randint(1, 2))
    ]
    fields = [(f"f{i}", rng.randint(1, 3), *end, rng.randint(0, 9)) for i, end in enumerate(ends)]
    size = rng.choice([1, 2, rng.randint(1, 20)])
    real = Layout(tuple(Field(*field) for field in fields), size)
    layout = [page.make_field(*field) for field in fields]
    bits = page.layout_bits(layout, size)
    assert bits == real.ring_bits
    total = []
    for field in real.fields:
        low, high = field.sum_range(size)
        inside = [low, high, rng.randint(low, high)]
        for _ in range(field.size):
            rare = rng.random() < 0.1
            sums = [low - 1, high + 1, rng.getrandbits(bits)] if rare else inside
            total.append(rng.choice(sums) % 2**bits)
    try:
        expected = real.decode(np.array(total, dtype=np.uint64))
    except EncodingError:
        assert page.decode_sums(layout, bits, size, total) is None
    else:
        decoded = page.decode_sums(layout, bits, size, total)
        assert decoded == {name: sums.tolist() for name, sums in expected.items()}


def check_which_layouts_exist(page, rng):
    """Fields about as large and as fine as can be, of as large a cohort."""
    f = rng.choice([0, 53, rng.randint(-2, 56)])
    numerator = 2 ** rng.choice([53, rng.randint(0, 53)]) - rng.choice([0, 1])
    high = math.ldexp(numerator, -f)
    low = rng.choice([0.0, -high])
    field, size = ("f", 1, low, high, f), 2 ** rng.choice([0, 10, 11, rng.randint(0, 40)])
    try:
        Layout((Field(*field),), size)
        is_possible = True
    except UsageError:
        is_possible = False
    assert page.exists([page.make_field(*field)], size) is is_possible


def cohort_of(rng, config):
    """Ticks and weights, some of them alike."""
    top = config.search.grid.max_tick
    some, heaviest = [rng.randint(0, top) for _ in range(3)], rng.choice([0, 1, 9, 9, 9])
    return [
        (rng.choice([rng.choice(some), rng.randint(0, top)]), rng.randint(0, heaviest))
        for _ in range(rng.randint(1, config.cohort_size))
    ]


def answered(rng, config, query, devices):
    """The sum of the devices' answers, sometimes a false one."""
    total = ring.zeros(config.search_layout.length, 64)
    for tick, weight in devices:
        capped = min(weight, config.update.max_weight)
        device = DeviceRound(config, tick, capped, 0)
        total += device.answer(query, SeededRandomness(rng.randbytes(32)))
    ring.reduce(total, config.search_layout.ring_bits)
    if rng.random() < 0.1:
        index = rng.randrange(len(total))
        total[index] = rng.choice([0, int(total[index]) ^ 1])
    return total


def check_search(page, rng):
    config = some_config(rng, verified=(True, False))
    c, devices = flat(config), cohort_of(rng, config)
    search = (page.NoisySearch if config.method == "noisy" else page.Search)(c)
    followed = Followed.begin(config)
    contradicted, searched = False, 0
    while True:
        check_rules(page, rng, config, (followed, search, contradicted, searched))
        query = None if followed.contradicted else followed.search.query
        if query is None:
            assert contradicted or search.query() is None
            break
        assert search.query() == list(query.pivots)
        total = answered(rng, config, query, devices)
        followed = followed.after(total, len(devices))
        searched = len(devices)
        sums = page.decode_sums(
            page.search_layout(c), page.search_bits(c), c.cohort_size, total.tolist()
        )
        try:
            if sums is None:
                raise page.Contradiction
            search.take(sums)
        except page.Contradiction:
            contradicted = True
        assert contradicted == followed.contradicted
    lost = rng.choice([0, 0, rng.randint(0, len(devices))])
    found = followed.search.result(num_lost=lost)
    threshold, tail = found.threshold, found.tail
    assert search.threshold(lost) == (threshold.eta_half_ticks, threshold.half_width_half_ticks)
    assert search.tail(lost) == (None if tail is None else (tail.fewest, tail.most))


def check_rules(page, rng, config, state):
    """A question that is right, or nearly so, at some point of a search."""
    followed, search, contradicted, searched = state
    before = searched or rng.randint(1, config.cohort_size)
    asked = rng.choice([before, rng.randint(0, before)])
    waiting, policy = rng.random() < 0.2, RoundPolicy(min_honest_tail=rng.randint(0, 3))
    client = RoundClient(1, policy)
    client._levels, client._followed, client._is_waiting = Levels((config,)), followed, waiting
    client._follows = True
    client._session = SimpleNamespace(num_members=asked, slot=0)
    right = followed.search.result(num_lost=max(searched - asked, 0)).threshold
    eta = rng.choice([right.eta_half_ticks] * 3 + [0, 5])
    delta = rng.choice([right.half_width_half_ticks] * 3 + [1])
    least = page.least_tail(policy, config.cohort_size)
    assert least == policy.min_tail(config.cohort_size)
    rest = (waiting, searched, asked, asked < before, eta, delta, least)
    the_same(
        lambda: client._check_search(Threshold(eta, delta), before),
        lambda: page.check_threshold(search, contradicted, *rest),
    )
    if client._summed_tail is not None and client._summed_tail.fewest >= least:
        tail, counted = page.check_threshold(search, contradicted, *rest)
        found = page.among(tail, counted, asked, asked)
        assert found == (client._summed_tail.fewest, client._summed_tail.most)
    pivots = rng.choice([search.pivots, search.pivots, [1]])
    method = rng.choice([config.method, config.method, "mm"])
    if asked >= config.search.min_cohort:  # else another rule of 12.8 comes first
        the_same(
            lambda: client._check_search(Query(method, tuple(pivots)), before),
            lambda: page.check_query(search, contradicted, waiting, method, pivots),
        )


# --- check: what devices accept of a round -------------------------------------------------------


class OfRounds(RoundPolicy):
    """Without the limits on sessions, which are those of 3.7."""

    __slots__ = ()

    def check(self, params):
        del params


def check_round_policy(page, rng):
    config = some_config(rng, hidden=rng.random() < 0.4)
    thetas = sorted({config.theta, *(Fraction(rng.randint(1, 9), 9) for _ in range(2))})
    if rng.random() < 0.5:
        config = replace(config, min_tail=config.cohort_size)
    levels = Levels.at(config, thetas[::-1][: rng.randint(1, 3)])
    most = levels.common.cohort_size
    params = SimpleNamespace(min_cohort=rng.randint(1, most), num_invited=most)
    close = rng.sample(sorted(NEAR), rng.randint(0, 3))  # more would hide one another
    policy = OfRounds(
        adversary=rng.choice(list(Adversary)),
        colluding_rate=rng.choice([0.0, 0.1, 0.3]),
        **{name: near(config) if name in close else lax for name, (lax, near) in NEAR.items()},
    )
    flattened = [flat(one) for one in levels.rounds]
    the_same(
        lambda: policy.check_round(levels, params),
        lambda: page.check_round_policy(policy, flattened, params),
    )
    above, below = Fraction(rng.randint(5, 9), 9), Fraction(rng.randint(1, 4), 9)
    assert page.expected_apart(above, below, most) == expected_apart(above, below, most)


def check_tails(page, rng):
    first, second = (tuple(sorted((rng.randint(0, 9), rng.randint(0, 9)))) for _ in range(2))
    assert page.apart(first, second) == Tail(*first).apart(Tail(*second))
    searched = first[1] + rng.randint(0, 3)
    asked = searched - rng.randint(0, min(searched, 3))
    left = asked - rng.randint(0, min(asked, 3))
    found = Tail(*first).among(searched, asked, left)
    assert page.among(first, searched, asked, left) == (found.fewest, found.most)
    least, before = rng.randint(0, 4), rng.choice([None, second])
    is_enough = first[0] >= least
    if before is not None:
        is_enough = is_enough and Tail(*first).apart(Tail(*before)) >= least
    told = refusal_of(lambda: page.check_tail(first, least, before))
    assert told == (None if is_enough else "TAIL_TOO_SMALL")


def multiplier_of(config):
    """About that of the updates' noise; 0 without."""
    noisy = config.noisy_updates
    if noisy is None:
        return Fraction(0)
    return Fraction(math.sqrt(noisy.noise.square_multiplier(noisy.sizes)))


NEAR = {
    "min_honest_tail": (0, lambda c: 1 + c.round_index % 4),
    "max_levels": (16, lambda _: 2),
    "max_pivots": (
        1 << 32,
        lambda c: max(c.search.max_queries * c.quantile.num_pivots - 1 + c.round_index % 3, 0),
    ),
    "max_pivots_if_equal": (
        1 << 32,
        lambda c: max(c.search.max_queries * c.quantile.num_pivots - 1, 0),
    ),
    "max_mm_pivots_per_device": (
        Fraction(1 << 32),
        lambda c: Fraction(c.search.max_queries, c.cohort_size),
    ),
    "max_loss_resolution_bits": (64, lambda c: max(c.search.grid.resolution_bits - 1, 0)),
    "max_loss_bound": (1 << 32, lambda c: max(c.search.grid.bound - 1, 1)),
    "max_weight": (1 << 53, lambda c: max(c.update.max_weight - 1, 1)),
    "min_update_resolution_bits": (0, lambda c: c.update.resolution_bits + 1),
    "min_update_clip": (0.0, lambda c: c.update.clip * 2),
    "max_update_clip": (2.0**1000, lambda c: c.update.clip / 2),
    "min_noise": (Fraction(0), lambda _: Fraction(3)),
    "min_update_noise": (
        Fraction(0),
        lambda c: multiplier_of(c) * Fraction(9 + 2 * (c.round_index % 2), 10),
    ),
    "max_update_norm": (2.0**1000, lambda c: c.update.noise.norm / 2 if c.update.noise else 0.0),
}
"""For each limit, what admits everything, and what is beyond the configuration or near it."""


# --- check: the session of section 15 ------------------------------------------------------------


def check_trace(page, rng):
    """All messages of all devices, from seeds and the page alone."""
    del rng
    session, params = spec_trace.played(), spec_trace.PARAMS
    c = flat(spec_trace.CONFIG)
    ids, everybody = spec_trace.IDS, [True] * 3
    context = page.context([c], spec_trace.MODEL)
    roster = b"".join(page.u32(device) for device in ids)
    sid = page.session_id(params, roster)
    parties = [TracedDevice(page, params, device, p, sid) for p, device in enumerate(ids)]
    for party in parties:
        party.advertise()
    for party in parties:
        party.meet(parties)
    for party in parties:
        party.say(0x13, b"")
        party.sign(0, page.members_statement(sid, 0, everybody, party.sealing))
    search = page.Search(c)
    shown = page.query_binding(context, c.method, search.query())
    info, b = page.slot_info(params, 0, shown), page.search_bits(c)
    total = [0] * (len(page.search_layout(c)) + 16)
    for party in parties:
        tick = page.tick(c, spec_trace.LOSSES[party.device])
        values = page.answer(c, search.query(), tick, 1)
        vector = party.answer_whole(
            page.encode_values(page.search_layout(c), b, values), b, info, everybody
        )
        total = [(x + y) % 2**b for x, y in zip(total, vector, strict=True)]
    assert total[:-16] == session.sums[0].vector.tolist()
    committed = [party.committed[:32] for party in parties]
    assert page.sum_opens(total, b, committed)
    search.take(page.decode_sums(page.search_layout(c), b, 3, total[:-16]))
    eta, delta = search.threshold(0)
    assert page.check_threshold(search, False, False, 3, 3, False, eta, delta, 2) == ((2, 2), 3)
    asked = envelopes.decode(session.to[3][5])
    assert asked.question == Threshold(eta, delta)
    info = page.slot_info(params, 1, page.threshold_binding(context, eta, delta))
    b = page.update_bits(c)
    for party in parties:
        tick = page.tick(c, spec_trace.LOSSES[party.device])
        update = spec_trace.update_of(party.device).astype(float).tolist()
        values = page.update_values(c, tick, 1, update, 0)
        vector = page.encode_values(page.update_layout(c), b, values)
        party.answer_tolerant(vector if page.passes(tick, eta, delta) else [0] * 8, b, info)
        party.sign(1, page.survivors_statement(sid, info, everybody, party.sealing))
        party.give_shares(parties)
    for party in parties:
        sent = session.by[party.device]
        assert [len(data) for data in party.sent] == [len(data) for data in sent]
        assert party.sent == sent
    masked = [page.unpacked(party.masked, 8, b) for party in parties]
    keys_of = [page.self_mask_key(party.seed, sid, info) for party in parties]
    plain = [page.masked([0] * 8, b, 0, key, {}) for key in keys_of]
    summed = [
        (sum(vectors) - sum(selves)) % 2**b
        for vectors, selves in zip(zip(*masked, strict=True), zip(*plain, strict=True), strict=True)
    ]
    assert summed == session.sums[1].vector.tolist()


class TracedDevice:
    """A device of section 15, made of the page's functions."""

    def __init__(self, page, params, device, position, sid):
        self.page, self.params, self.device = page, params, device
        self.position, self.sid = position, sid
        seed, self.identity_seed = spec_trace.seeds_of(device)
        self.draw = SeededRandomness(seed)
        self.sent = []

    def say(self, kind, *fields):
        self.sent.append(self.page.message(self.params, kind, *fields))

    def signature(self, statement):
        return self.page.sign(self.identity_seed, statement)

    def sign(self, slot, statement):
        self.say(0x15, slot, self.signature(statement))

    def advertise(self):
        page = self.page
        self.secret, self.mask_secret = self.draw(32), self.draw(32)
        self.sealing = page.x25519_base(self.secret)
        self.mask_key = page.x25519_base(self.mask_secret)
        own = identity.identity(self.identity_seed).public
        statement = page.advertisement_statement(
            self.params, self.device, self.sealing, [self.mask_key]
        )
        self.say(0x11, self.sealing, self.mask_key, own + self.signature(statement))

    def meet(self, parties):
        page = self.page
        self.seed = self.draw(32)
        self.peers = {p.position: p for p in parties if p is not self}
        near = page.neighbours(self.position, 3, self.params.degree, self.params.graph_seed)
        points = [p + 1 for p in page.holders(self.position, 3, 2, self.params.graph_seed)]
        self.dealt = page.share_secrets(
            [self.seed, self.mask_secret], points, self.params.threshold, self.draw
        )
        boxes = {}
        for p in near:
            label = page.box_label(self.position, p, self.sealing, self.peers[p].sealing)
            ends = (self.secret, self.peers[p].sealing, self.sid, label)
            boxes[p] = page.seal(*ends, self.draw(24), self.dealt[p + 1])
        committed = page.seed_commitment(self.sid, 1, self.position, self.seed)
        self.say(0x12, committed, page.records(boxes))

    def answer_whole(self, vector, b, info, members):
        page = self.page
        blinding = int.from_bytes(self.draw(64), "little") % page.ORDER
        commitment, wire_vector = page.commit_vector(vector, b, blinding)
        pairs = {
            p: page.whole_mask_key(self.secret, self.sealing, q.sealing, self.sid, info, members)
            for p, q in self.peers.items()
        }
        statement = page.commitment_statement(self.sid, info, commitment, self.sealing)
        self.committed = commitment + self.signature(statement)
        masked = page.masked(wire_vector, b, self.position, None, pairs)
        self.say(0x14, 0, page.packed(masked, b), self.committed)
        return masked

    def answer_tolerant(self, vector, b, info):
        page = self.page
        own = page.self_mask_key(self.seed, self.sid, info)
        pairs = {
            p: page.pair_mask_key(self.mask_secret, self.mask_key, q.mask_key, self.sid, info)
            for p, q in self.peers.items()
        }
        self.masked = page.packed(page.masked(vector, b, self.position, own, pairs), b)
        self.say(0x14, 1, self.masked, b"")

    def give_shares(self, parties):
        shares = [p.dealt[self.position + 1][:36] for p in parties]
        joined = b"".join(self.page.u32(p) + b"\0" + share for p, share in enumerate(shares))
        self.say(0x16, 1, joined)


# --- the checks are played -----------------------------------------------------------------------

CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and name != "check_rules"
}
TIMES = {
    "keys": 3,
    "commitments": 3,
    "trace": 1,
    "votes": 3,
    "search": 300,
    "thresholds": 40,
    "encoding": 6,
    "sets": 200,
    "tails": 500,
    "which_layouts_exist": 1000,
    "configuration": 60,
    "round_policy": 4000,
    "contributions": 150,
}
"""How often a check is played, if not 20 times."""


def play(name, page):
    for seed in range(TIMES.get(name, 20)):
        CHECKS[name](page, random.Random(seed))  # noqa: S311 inputs, no secrets


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_the_page_computes_what_the_code_does(name):
    play(name, PAGE)


WRONG = [
    ("round_policy", "4 * square + 3 * Q**2)", "square + 3 * Q**2)"),
    (
        "round_policy",
        "    honest = params.min_cohort - floor(rate",
        "    honest = 99 - floor(rate",
    ),
    ("update_noise", "7 * S + 7 * R", "7 * S + 6 * R"),
    ("update_noise", "max(norm, c.update_norm)", "norm"),
    ("update_noise", "max(share * num_summed, min(surely, num_summed))", "num_summed"),
    ("update_noise", "min(surely, num_summed)", "surely"),
    ("update_noise", "(count - 2 * sqrt(num_summed) * c.update_deviation)", "count"),
    ("contributions", "* 4**c.update_resolution_bits >=", "* 2**c.update_resolution_bits >="),
    ("contributions", "if not length > c.radius", "if not length > 2 * c.radius"),
    ("contributions", "(c.radius / length)", "c.radius"),
    ("configuration", "float(c.radius).hex()", "float(1).hex()"),
    ("round_policy", "*(floor(theta * n)", "*(ceil(theta * n)"),
    ("round_policy", "min(c.min_tail, *(", "min(*("),
    ("round_policy", "levels, params.num_invited, n)", "levels, n, n)"),
    ("round_policy", "floor(rate * N) + policy.min_honest_tail", "policy.min_honest_tail"),
    ("round_policy", "c.update_resolution_bits >= policy", "c.update_resolution_bits > policy"),
    ("round_policy", "if variance < policy.min_noise**2 or", "if"),
    ("round_policy", "num_pivots(c) * sum(c.max_queries", "sum(c.max_queries"),
    ("round_policy", "for level in levels if selects(level))", "for level in levels[:1])"),
    ("round_policy", "policy.max_mm_pivots_per_device * n", "policy.max_mm_pivots_per_device"),
    ("round_policy", "        or c.max_queries == 0\n", ""),
    ("packing", 'return x.to_bytes(4, "little")', 'return x.to_bytes(4, "big")'),
    ("keys", "    32560625091655743", "    32560625091655734"),
    ("keys", "    if shared == bytes(32):", "    if shared == bytes(31):"),
    ("boxes", 'b"deltafl/secagg/v3/share sealing key"', 'b"share sealing key"'),
    ("shares", "return [(number >> 30 * i)", "return [(number >> 31 * i)"),
    ("shares", "PRIME = 2**31 - 1", "PRIME = 2**31 - 3"),
    ("redraws", '"little") % 2**31 for', '"little") % 2**32 for'),
    ("commitments", 'generator", j, attempt', 'generator", attempt, j'),
    ("commitments", "return [(blinding >> 16 * i)", "return [(blinding >> 15 * i)"),
    (
        "params",
        "int(params.signed),\n        params.graph_seed",
        "params.graph_seed,\n        int(params.signed)",
    ),
    ("thresholds", "x in range(k + 1) if", "x in range(1, k + 1) if"),
    ("graph", "key=lambda q: (words[q], q)", "key=lambda q: (words[q] % 2**32, q)"),
    ("masks", "w = 4 if b <= 32 else 8", "w = 8"),
    ("masks", "info, len(members), bitmap", "len(members), info, bitmap"),
    (
        "statements",
        "session_id,\n        slot,\n        len(members)",
        "session_id,\n        len(members),\n        slot",
    ),
    ("encoding", "(0xC5, 2)", "(0xC6, 2)"),
    ("sets", "if len(counted) < params", "if len(counted) <= params"),
    (
        "configuration",
        "c.warm_start,\n        int(c.verified),",
        "int(c.verified),\n        c.warm_start,",
    ),
    ("configuration", "b + 1, 16 + c.cohort_size", "b, 16 + c.cohort_size"),
    ("contributions", "j = 2 * (F - pivots[0]) + 1", "j = 2 * (F - pivots[0]) - 1"),
    ("layouts", "C * min(0, lo), C * max(0, hi)", "C * min(0, lo), C * hi"),
    ("which_layouts_exist", "        0 <= f <= 53\n", "        f <= 53\n"),
    ("which_layouts_exist", "        0 <= f <= 53\n", "        0 <= f\n"),
    ("which_layouts_exist", "< 2**53\n", "<= 2**53\n"),
    ("which_layouts_exist", "(64 if lo < 0 else 63)", "64"),
    ("search", "half = 2 ** (queries_left - 1)", "half = 2 ** queries_left"),
    ("search", "missing / 0.7,", "missing / 0.71,"),
    ("tails", "max(first[0] - second[1], second[0] - first[1], 0)", "max(first[0] - second[1], 0)"),
    ("tails", "tail[0] - max(searched - left, 0)", "tail[0] - max(asked - left, 0)"),
    ("tails", "0), min(tail[1], asked)", "0), tail[1]"),
    ("tails", "apart(before, tail) < least", "apart(before, tail) + 1 < least"),
    ("search", "return self.total[2] - max(self.c.min_tail, 1)", "return self.total[2] - 1"),
    ("search", "        most = self.most_below() - lost\n", "        most = self.most_below()\n"),
    ("search", "* total[1] and rank[2] <= self.most_below()", "* total[1]"),
    ("search", "share = min(share, (target - low[1])", "share = max(share, (target - low[1])"),
    ("search", "Fraction(4 * sqrt(variance * bins))", "Fraction(3 * sqrt(variance * bins))"),
    ("search", "low - 1 if is_tie and low % 2 else low", "low"),
    ("masks", "key if w * length <= 32", "key if w * length <= 16"),
    ("search", "if waiting and not shrank", "if waiting"),
    ("search", " or method != search.c.method", ""),
    ("search", "search.threshold(lost), search.tail(lost)", "search.threshold(0), search.tail(0)"),
    ("votes", "(m + 1) + 1 + 2 * (m + 1)", "(m + 1) + 2 * (m + 1)"),
    ("votes", "about = pack(described, D)", "about = described"),
    ("votes", "% 2**252", "% 2**253"),
    ("trace", "sign = 1 if position < peer else -1", "sign = -1 if position < peer else 1"),
    ("trace", "return encode([3, kind", "return encode([2, kind"),
]
"""A check, and a change of the page that it finds."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_a_wrong_page_is_found(name, old, new):
    assert TEXT.count(old) == 1
    with pytest.raises(Exception):  # noqa: B017, PT011 whatever comes of it
        play(name, run_page(TEXT.replace(old, new)))


def test_two_digits_that_are_exchanged_are_found():
    """The page once had the fifth coordinate of low order with two digits exchanged."""
    number = str(max(n for n in PAGE.LOW_ORDER if n < PAGE.P - 1))
    digits = list(number)
    digits[25], digits[28] = digits[28], digits[25]
    wrong = "".join(digits)
    assert wrong != number
    with pytest.raises(AssertionError):
        play("keys", run_page(TEXT.replace(number, wrong)))


@pytest.mark.slow
def test_every_function_of_the_page_is_compared():
    """By name, in a check or in a function that is compared itself."""
    checks = Path(__file__).read_text(encoding="utf-8")
    blocks = "".join(spec_code.BLOCK.findall(TEXT))
    defined = re.findall(r"^(?:def|class) (\w+)", blocks, re.MULTILINE)
    assert len(defined) > 80
    for name in defined:
        called = len(re.findall(rf"\b{name}\b", blocks)) - 1
        assert f"page.{name}" in checks or called, name


def test_code_blocks_of_the_page_import_nothing():
    assert not re.search(r"\bimport\b", "".join(spec_code.BLOCK.findall(TEXT)))
