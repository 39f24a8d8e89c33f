"""Vectors of the parts: hashing, keys, masks, packing, shares, boxes, graphs, thresholds, names."""

from hashlib import sha256

import numpy as np
import plain_kem
from recorded_session import fixed, make_params, params_to_json

from deltafl.secagg import (
    Adversary,
    GraphKind,
    SessionParams,
    SlotSpec,
    ThreatModel,
    keys,
    labels,
    links,
    openings,
    pedersen,
    shamir,
    signing,
    wire,
)
from deltafl.secagg.blame import locate
from deltafl.secagg.graph import Graph
from deltafl.secagg.identity import fingerprint, identity
from deltafl.secagg.labels import Label
from deltafl.secagg.links import End
from deltafl.secagg.masks import SlotContext, recovery_commitment, seed_commitment
from deltafl.secagg.prg import add_masks
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import pack, to_words, unpack, zeros

SESSION = fixed("session id")
BINDING = fixed("binding")


def packing_of_parts():
    parts = ([], [b""], [b"", b""], [b"ab", 1], [0], [2**64 - 1], [b"\x00" * 3, b"x" * 300, 255])
    cases = [
        {
            "description": "Parts joined injectively, and their digest under a label.",
            "parts": [
                {"bytes": p.hex()} if isinstance(p, bytes) else {"integer": str(p)} for p in some
            ],
            "packed": labels.pack(*some).hex(),
            "label": Label.SESSION.hex(),
            "digest": labels.digest(Label.SESSION, *some).hex(),
        }
        for some in parts
    ]
    return cases + [
        {"description": f"The label {label.name}.", "text": label.decode(), "bytes": label.hex()}
        for label in Label
    ]


def parameters():
    slots = (("a first sum", 4, 13), ("", 1, 1, True), ("grüße", 2**28, 64))
    verified = (("quantile", 4, 19, True, True), ("quantile", 4, 64, False, True))
    cases = {
        "Complete graph, one slot.": make_params(5, threshold=3, slots=slots[:1]),
        "Verified slots; the ring of the first is the smallest.": make_params(
            5, threshold=3, slots=verified
        ),
        "Three slots: no label and whole, the longest vector, other letters.": make_params(
            7, threshold=4, min_cohort=6, slots=slots
        ),
        "Sparse graph with a smallest roster.": SessionParams(
            (SlotSpec("a sum", 10, 32),), 100, 20, 9, 50, fixed("seed"), fixed("context"), 60
        ),
        "A degree above all devices is another session than the complete graph's own.": make_params(
            5, degree=10, threshold=3, slots=slots[:1]
        ),
    }
    shown = []
    for description, params in cases.items():
        roster = list(range(3, 3 + 7 * params.num_invited, 7))
        packed = np.array(roster, dtype="<u4").tobytes()
        shown.append(
            {
                "description": description,
                "params": params_to_json(params),
                "canonical": params.canonical().hex(),
                "digest": params.digest.hex(),
                "tag": params.tag.hex(),
                "max_message_bytes": wire.max_bytes(params),
                "roster": roster,
                "session_id": params.session_id(packed).hex(),
            }
        )
    return shown


def key_schedule():
    params = make_params(5, threshold=3, slots=(("a first sum", 4, 13), ("a second sum", 3, 40)))
    cases = []
    for slot, binding in ((0, BINDING), (1, BINDING), (1, b"")):
        context = SlotContext.of(params, SESSION, slot, binding)
        seed, recovery, key = (fixed(name) for name in ("self-mask seed", "recovery key", "key"))
        (pair,) = context.tolerant({4: key})
        cases.append(
            {
                "description": "Keys of masks: self mask, pairwise mask; commitments.",
                "params": params_to_json(params),
                "session_id": SESSION.hex(),
                "slot": slot,
                "binding": binding.hex(),
                "info": context.info.hex(),
                "seed": seed.hex(),
                "self_mask_key": context.self_mask_key(seed).hex(),
                "position": 3,
                "seed_commitment": seed_commitment(SESSION, slot, 3, seed).hex(),
                "recovery_key": recovery.hex(),
                "recovery_commitment": recovery_commitment(SESSION, slot, 3, recovery).hex(),
                "link_key": key.hex(),
                "pairwise_mask_key": pair.key().hex(),
            }
        )
    return cases


def whole_slots():
    """Masks of whole slots, bound to the members."""
    slots = (("a first sum", 4, 13, True), ("a second sum", 3, 40), ("a third sum", 4, 13, True))
    params = make_params(9, threshold=3, slots=slots)
    everybody = np.ones(9, dtype=np.bool_)
    without = np.arange(9) != 4
    cases = []
    for slot, members, binding in (
        (0, everybody, BINDING),
        (2, everybody, BINDING),
        (2, without, BINDING),
        (2, without[:8], b""),
    ):
        context = SlotContext.of(params, SESSION, slot, binding)
        (pair,) = context.whole({2: fixed("key")}, members)
        cases.append(
            {
                "description": "The mask that two devices share in a whole slot.",
                "params": params_to_json(params),
                "session_id": SESSION.hex(),
                "slot": slot,
                "binding": binding.hex(),
                "members": [int(there) for there in members],
                "link_key": fixed("key").hex(),
                "info": pair.info.hex(),
                "pairwise_mask_key": pair.key().hex(),
            }
        )
    return cases


def mask_expansion():
    cases = []
    for bits, lengths in (
        (32, (1, 8, 9, 16, 17, 257, 16384, 16385, 40000)),
        (64, (1, 4, 5, 8, 9, 8192, 8193)),
    ):
        for length in lengths:
            seeds = [fixed(f"mask {i} of {length} x {bits}") for i in range(3)]
            first, total = zeros(length, bits), zeros(length, bits)
            add_masks(first, seeds[:1], [])
            add_masks(total, seeds[:2], seeds[2:])
            case = {
                "description": "Words of a mask, and of the first plus the second less the third.",
                "bits": bits,
                "length": length,
                "seeds": [seed.hex() for seed in seeds],
                "first_digest": sha256(first.astype(f"<u{bits // 8}").tobytes()).hexdigest(),
                "sum_digest": sha256(total.astype(f"<u{bits // 8}").tobytes()).hexdigest(),
            }
            if length <= 17:
                case["first"] = [str(x) for x in first.tolist()]
                case["sum"] = [str(x) for x in total.tolist()]
            cases.append(case)
    return cases


def ring_packing():
    cases = []
    for bits in range(1, 65):
        for length in (5, 67) if bits in (1, 2, 7, 8, 13, 31, 32, 33, 63, 64) else (5,):
            draw = SeededRandomness(fixed(f"packing {bits} {length}"))
            low = 2**bits - 1
            elements = [int.from_bytes(draw(8), "little") & low for _ in range(length - 2)] + [
                0,
                low,
            ]
            packed = pack(to_words(np.array(elements, dtype=np.uint64), bits), bits)
            assert unpack(packed, length, bits).tolist() == elements
            cases.append(
                {
                    "description": "Elements as one little-endian string of bits.",
                    "bits": bits,
                    "elements": [str(x) for x in elements],
                    "packed": packed.hex(),
                }
            )
    return cases


def _drawn(stream):
    """A source of randomness that gives stated bytes; and how many were taken."""
    taken = bytearray()

    def draw(size):
        piece = stream[len(taken) : len(taken) + size]
        assert len(piece) == size
        taken.extend(piece)
        return piece

    return draw, taken


def shamir_sharing():
    cases = []
    plain = SeededRandomness(fixed("coefficients"))(4096)
    rejected = b"\xff\xff\xff\xff" + b"\xff\xff\xff\x7f" + plain
    for description, stream, threshold, points, secrets in (
        ("One secret.", plain, 2, [1, 2, 3], [fixed("secret 0")]),
        ("Two secrets, five of seven holders.", plain, 5, [1, 2, 3, 4, 5, 6, 7], [
            fixed("secret 1"), fixed("secret 2")
        ]),
        ("Points far apart.", plain, 3, [5, 1000000, 2**31 - 2], [b"\xff" * 32]),
        ("Two words of randomness are no field elements and drawn again.", rejected, 3, [1, 2, 4], [
            bytes(32)
        ]),
    ):  # fmt: skip
        draw, taken = _drawn(stream)
        shares = shamir.split(secrets, points, threshold, draw)
        at = points[-threshold:]
        weights = shamir.lagrange_at_zero(np.array([at]))
        combined = shamir.combine(np.repeat(weights, len(secrets), axis=0), shares[-threshold:])
        assert shamir.from_limbs(combined) == secrets
        cases.append(
            {
                "description": description,
                "threshold": threshold,
                "points": points,
                "secrets": [secret.hex() for secret in secrets],
                "limbs": shamir.to_limbs(secrets).tolist(),
                "randomness": bytes(taken).hex(),
                "shares": [[s.astype("<u4").tobytes().hex() for s in row] for row in shares],
                "weights_of_the_last": weights[0].tolist(),
            }
        )
    for description, row in (
        ("The largest secret.", shamir.to_limbs([b"\xff" * 32])[0].tolist()),
        ("A limb of more than 30 bits is no secret.", [2**30, *[0] * 8]),
        ("A last limb of more than 16 bits is no secret.", [*[0] * 8, 2**16]),
        ("The smallest secret.", [0] * 9),
    ):
        (secret,) = shamir.from_limbs(np.array([row], dtype=np.uint32))
        cases.append(
            {
                "description": description,
                "limbs": row,
                "secret": None if secret is None else secret.hex(),
            }
        )
    return cases


def decoding():
    cases = []
    for points, threshold, wrong in (
        ([1, 2, 3, 4, 5], 3, []),
        ([1, 2, 3, 4, 5], 3, [1]),
        ([1, 2, 3, 4, 5], 3, [0, 4]),
        ([1, 2, 3, 4], 3, [2]),
        ([1, 2, 3], 3, [0]),
        ([2, 3, 5, 7, 11, 13, 17], 3, [1, 5]),
        ([2, 3, 5, 7, 11, 13, 17], 3, [1, 2, 5]),
        ([4, 9, 1000, 2**31 - 2, 1, 7], 2, [3, 5]),
        ([8, 7, 6, 5, 4, 3, 2, 1], 2, [0, 1, 2]),
        ([8, 7, 6, 5, 4, 3, 2, 1], 2, [0, 1, 2, 3]),
    ):
        draw = SeededRandomness(fixed(f"decoding {points} {threshold} {wrong}"))
        polynomial = [int.from_bytes(draw(4), "little") % shamir.PRIME for _ in range(threshold)]
        shares = shamir.split_plain(polynomial[0], points, polynomial[1:], shamir.PRIME)
        values = [
            (shares[p] + (1 + int.from_bytes(draw(3), "little") if i in wrong else 0))
            % shamir.PRIME
            for i, p in enumerate(points)
        ]
        found = _decoded(points, values, threshold)
        verdict = "told apart." if found and found[1] == wrong else "nothing to tell them by."
        cases.append(
            {
                "description": (
                    f"{len(wrong)} wrong of {len(points)}, threshold {threshold}: "
                    + ("too many to tell." if found is None else verdict)
                ),
                "threshold": threshold,
                "points": points,
                "values": values,
                "value_at_zero": found and found[0],
                "wrong": found and found[1],
            }
        )
    return cases


def _decoded(points, values, threshold):
    """The value at zero and the indices of wrong shares; None if they are too many to tell."""
    located = locate(np.array(points), np.array(values, dtype=np.uint32)[:, None], threshold)
    if located is None:
        return None
    wrong = np.flatnonzero(located[:, 0]).tolist()
    right = [i for i in range(len(points)) if i not in wrong][:threshold]
    weights = shamir.lagrange_at_zero(np.array([[points[i] for i in right]]))[0].tolist()
    products = (w * values[i] for w, i in zip(weights, right, strict=True))
    return sum(products) % shamir.PRIME, wrong


def linking():
    """Boxes both ways between two devices, the link that they make, and a deposit."""
    pairs = {name: keys.recipient(fixed(f"key {name}")) for name in ("A", "B", "C")}
    cases = []
    for low, high, content in (("A", "B", b""), ("A", "C", bytes(72)), ("C", "B", b"x" * 144)):
        positions = {low: 2, high: 7}
        ends = {
            name: End(
                positions[name],
                identity(fixed(f"identity {name}")).public,
                pairs[name].public,
                fixed(f"half of {name}"),
                b"",
            )
            for name in (low, high)
        }
        boxes = {}
        for name, other in ((low, high), (high, low)):
            info = links.info(SESSION, ends[name], ends[other])
            boxes[name] = plain_kem.seal(ends[name].half + content, pairs[other].public, info)
            assert pairs[other].open(boxes[name], info) == ends[name].half + content
            assert pairs[name].open(boxes[name], info) is None
            ends[name] = ends[name]._replace(box=sha256(boxes[name]).digest())
        link, recovery = links.link(SESSION, ends[low], ends[high], 2), fixed("recovery key")
        cases.append(
            {
                "description": "Two boxes, the link that they make, a deposit of its first key.",
                "session_id": SESSION.hex(),
                "ends": [
                    {
                        "position": positions[name],
                        "identity": ends[name].identity.hex(),
                        "secret": fixed(f"key {name}").hex(),
                        "key": pairs[name].public.hex(),
                        "half": ends[name].half.hex(),
                        "content": content.hex(),
                        "box": boxes[name].hex(),
                    }
                    for name in (low, high)
                ],
                "tags": [tag.hex() for tag in link.tags],
                "keys": [key.hex() for key in link.keys],
                "key_digest": links.key_digest(link.keys[0]).hex(),
                "recovery_key": recovery.hex(),
                "deposit": links.hide(recovery, 2, 7, link.keys[0]).hex(),
            }
        )
    return cases


def graphs():
    cases = []
    for num, degree in ((2, 1), (5, 4), (5, 100), (8, 4), (9, 4), (20, 6), (33, 10), (200, 30)):
        seed = fixed(f"graph of {num}")
        graph = Graph(num, degree, seed)
        positions = range(num) if num <= 33 else (0, 1, num // 2, num - 1)
        cases.append(
            {
                "description": "The neighbours of some positions, and who holds their shares.",
                "num_devices": num,
                "degree": degree,
                "seed": seed.hex(),
                "neighbours": {str(p): graph.neighbours(p).tolist() for p in positions},
                "holders": {str(p): graph.holders_of(p).tolist() for p in positions},
            }
        )
    return cases


def thresholds():
    cases = []
    rates = ((0.1, 0.1), (0.05, 0.3), (0.3, 0.05), (0.0, 0.0), (0.2, 0.2))
    for adversary in ("curious", "active"):
        for colluding, dropped in rates:
            threat = ThreatModel(colluding, dropped, Adversary(adversary))
            for num in (2, 5, 10, 50, 100, 300, 1000):
                for kind in GraphKind:
                    case = {
                        "description": "Degree and threshold; null where there are none.",
                        "num_invited": num,
                        "colluding_rate": colluding,
                        "dropout_rate": dropped,
                        "adversary": adversary,
                        "graph": kind.value,
                    }
                    cases.append(case | _numbers(num, threat, kind))
    return cases


def _numbers(num, threat, kind):
    names = ("degree", "threshold", "min_cohort", "min_roster")
    try:
        params = SessionParams.for_threat(
            num,
            (SlotSpec("a sum", 1, 32),),
            threat=threat,
            graph=kind,
            graph_seed=bytes(32),
            context=bytes(32),
        )
    except ValueError:
        return dict.fromkeys(names)
    return {name: getattr(params, name) for name in names}


def identities():
    params = make_params(5, threshold=3, slots=(("a first sum", 4, 13),))
    cases = []
    for client in (3, 10):
        own = identity(fixed(f"identity {client}"))
        key = keys.recipient(fixed(f"key of {client}")).public
        advertisement = signing.advertisement(params, client, key)
        members = np.array([True, client == 3, True, True, False])
        context = SlotContext.of(params, SESSION, 0, BINDING)
        survivors = signing.survivors(context, members, key)
        commitment = pedersen.commit([1, -2, 3], 5)
        committed = openings.statement(context, commitment, key)
        cases.append(
            {
                "description": "An identity, and what it signs.",
                "seed": fixed(f"identity {client}").hex(),
                "public": own.public.hex(),
                "fingerprint": fingerprint(own.public),
                "params": params_to_json(params),
                "id": client,
                "key": key.hex(),
                "advertisement": advertisement.hex(),
                "advertisement_signature": own.sign(advertisement).hex(),
                "session_id": SESSION.hex(),
                "slot": 0,
                "binding": BINDING.hex(),
                "survivors": [int(there) for there in members],
                "survivors_statement": survivors.hex(),
                "survivors_signature": own.sign(survivors).hex(),
                "commitment": commitment.hex(),
                "commitment_statement": committed.hex(),
                "commitment_signature": own.sign(committed).hex(),
            }
        )
    return cases
