"""Vectors of Pedersen commitments: generators, blindings, and what commitments open to."""

import plain_ed25519 as ed
import plain_pedersen
from recorded_session import fixed

from deltafl.secagg import pedersen
from deltafl.secagg.randomness import SeededRandomness


def commitments():
    return [*_generators(), *_blindings(), *_commitments(), *_sums()]


def _generators():
    for index in (0, 1, 2, 3, 4, 5, 1000, 2**32):
        _, attempt = plain_pedersen.generator(index)
        yield {
            "description": "A generator, the attempt that gives it, and the digest of that.",
            "index": index,
            "attempt": attempt,
            "digest": plain_pedersen.hashed(index, attempt).hex(),
            "generator": pedersen.generator(index).hex(),
        }


def _blindings():
    for drawn in (
        bytes(64),
        b"\xff" * 64,
        pedersen.ORDER.to_bytes(64, "little"),
        SeededRandomness(fixed("blinding"))(64),
    ):
        blinding = pedersen.draw_blinding(lambda _, drawn=drawn: drawn)
        yield {
            "description": "A blinding from 64 bytes of randomness.",
            "randomness": drawn.hex(),
            "blinding": str(blinding),
        }


VALUES = (
    ([], 0),
    ([], 1),
    ([0, 0, 0], 0),
    ([0, 0, 0], 5),
    ([1], 0),
    ([-1], pedersen.ORDER - 1),
    ([3, 3, 3, -3, 0, 7], 12345),
    ([2**63 - 1, -(2**63)], 2**252),
    ([pedersen.ORDER, pedersen.ORDER + 2], 3),
)


def _commitments():
    for values, blinding in VALUES:
        yield {
            "description": "A commitment to some values.",
            "values": [str(value) for value in values],
            "blinding": str(blinding),
            "commitment": pedersen.commit(values, blinding).hex(),
        }


def _sums():
    parts = [([1, -2, 3], 7), ([4, 5, -6], pedersen.ORDER - 3), ([0, 0, 1], 2**200)]
    honest = [pedersen.commit(values, blinding) for values, blinding in parts]
    total = [sum(column) for column in zip(*(values for values, _ in parts), strict=True)]
    blinding = sum(blinding for _, blinding in parts) % pedersen.ORDER
    small = _point_of_order_8()
    inverse = (-small[0] % ed.FIELD, small[1])
    moved = [ed.encode(ed.add(ed.decode(honest[0]), small)), *honest[1:]]
    cancelled = [moved[0], ed.encode(ed.add(ed.decode(honest[1]), inverse)), honest[2]]
    high = 1 << 255
    one = (1).to_bytes(32, "little")
    for description, points, values, sum_of_blindings in (
        ("The sum of what was committed to.", honest, total, blinding),
        ("In another order.", honest[::-1], total, blinding),
        ("One value is another.", honest, [*total[:-1], total[-1] + 1], blinding),
        ("Another blinding.", honest, total, blinding + 1),
        ("One commitment is missing.", honest[1:], total, blinding),
        ("No commitments, to zeros.", [], [0, 0, 0], 0),
        ("The neutral point, to zeros.", [one], [0, 0], 0),
        ("A point of small order is added to one.", moved, total, blinding),
        ("Points of small order that cancel each other: accepted.", cancelled, total, blinding),
        ("A string that is no point.", [*honest, (2).to_bytes(32, "little")], total, blinding),
        ("A y above the prime.", [(ed.FIELD + 1).to_bytes(32, "little")], [0], 0),
        ("The neutral point with a sign.", [(1 | high).to_bytes(32, "little")], [0], 0),
        (
            "The point of order 2 with a sign.",
            [(ed.FIELD - 1 | high).to_bytes(32, "little")],
            [],
            0,
        ),
        ("A commitment of 31 bytes.", [one[:-1]], [0], 0),
        ("A commitment of 33 bytes.", [one + b"\x00"], [0], 0),
        ("An empty commitment.", [b""], [0], 0),
    ):
        added = pedersen.add(points)
        yield {
            "description": description,
            "commitments": [point.hex() for point in points],
            "sum": None if added is None else added.hex(),
            "values": [str(value) for value in values],
            "blinding": str(sum_of_blindings % pedersen.ORDER),
            "opens": pedersen.opens(points, values, sum_of_blindings % pedersen.ORDER),
        }


def _point_of_order_8():
    for y in range(2, 100):
        point = ed.decode(y.to_bytes(32, "little"))
        if point is not None and ed.times(4, ed.times(ed.ORDER, point)) != ed.NEUTRAL:
            return ed.times(ed.ORDER, point)
    raise AssertionError("no point of order 8")
