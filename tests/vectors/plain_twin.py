"""A second reading of the protocol: slow, in Python integers, without a line of `secagg`.

It plays whole sessions from the inputs that a vector states, so that a vector is more than what
`secagg` once said about itself. What an audit computes too is in `sim/inspect/audit/plain.py`.
ChaCha20, Shamir's polynomials, packing and msgpack are written out.
"""

import struct
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from math import ceil, comb, floor

import plain_kem
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from plain_pedersen import LIMBS as BLINDING_LIMBS
from plain_pedersen import ORDER, commit, limbs_of

from deltafl.sim.inspect.audit.plain import (  # noqa: F401 - others take them from here
    LIMBS,
    PREFIX,
    PRIME,
    End,
    advertisement_statement,
    binding,
    bits,
    box_info,
    canonical,
    digest,
    expand,
    from_limbs,
    hidden,
    key_digest,
    lagrange,
    link_key,
    link_secret,
    link_tag,
    mask,
    neighbours,
    pack,
    query_bytes,
    recovery_commitment,
    seed_commitment,
    self_mask_key,
    session_id,
    slot_fields,
    slot_info,
    survivors_statement,
    threshold_bytes,
    tolerant_slot_info,
    value_at,
    whole_slot_info,
)

# ChaCha20 (RFC 8439).


def _rounds(words):
    w = list(words)

    def quarter(a, b, c, d):
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            w[x] = (w[x] + w[y]) & 0xFFFFFFFF
            mixed = w[z] ^ w[x]
            w[z] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return w


_SIGMA = struct.unpack("<4I", b"expand 32-byte k")


def keystream(key, size):
    stream = b""
    for counter in range(-(-size // 64)):
        start = (*_SIGMA, *struct.unpack("<8I", key), counter, 0, 0, 0)
        words = [(a + b) & 0xFFFFFFFF for a, b in zip(start, _rounds(start), strict=True)]
        stream += struct.pack("<16I", *words)
    return stream[:size]


def identity_key(seed):
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed, statement):
    return Ed25519PrivateKey.from_private_bytes(seed).sign(statement)


class Draws:
    """Seeded randomness: the keystream of a seed, taken piece by piece."""

    def __init__(self, seed):
        self._stream, self._at = keystream(seed, 256), 0
        self._seed = seed

    def __call__(self, size):
        self._at += size
        if self._at > len(self._stream):
            self._stream = keystream(self._seed, 2 * self._at)
        return self._stream[self._at - size : self._at]


# Shamir's shares.


def limbs(secret):
    number = int.from_bytes(secret, "little")
    return [(number >> (30 * i)) % 2**30 for i in range(LIMBS)]


def split(secrets, points, threshold, draw):
    """Shares by point: for each secret nine limbs."""
    constants = [limb for secret in secrets for limb in limbs(secret)]
    count = (threshold - 1) * len(constants)
    drawn = _elements(count, draw)
    rows = [constants, *(drawn[i : i + len(constants)] for i in range(0, count, len(constants)))]
    shares = {}
    for point in points:
        flat = [
            sum(row[i] * pow(point, power, PRIME) for power, row in enumerate(rows)) % PRIME
            for i in range(len(constants))
        ]
        shares[point] = [flat[i : i + LIMBS] for i in range(0, len(flat), LIMBS)]
    return shares


def _elements(count, draw):
    data = draw(4 * count)
    elements = [word % 2**31 for (word,) in struct.iter_unpack("<I", data)]
    while again := [i for i, element in enumerate(elements) if element == PRIME]:
        for i, element in zip(again, _elements(len(again), draw), strict=True):
            elements[i] = element
    return elements


def decode(points, values, threshold):
    """All sets of agreeing shares of the size that unique decoding asks for: slow and certain."""
    size = len(points) - (len(points) - threshold) // 2
    for chosen in combinations(range(len(points)), size):
        some = chosen[:threshold]
        at, given = [points[i] for i in some], [values[i] for i in some]
        if all(value_at(at, given, points[i]) == values[i] for i in chosen):
            wrong = [i for i, p in enumerate(points) if value_at(at, given, p) != values[i]]
            return value_at(at, given, 0), wrong
    return None


# Rings.


def pack_vector(elements, bits):
    number = sum(element << (i * bits) for i, element in enumerate(elements))
    return number.to_bytes((len(elements) * bits + 7) // 8, "little")


# msgpack, as far as it is needed.


def _header(number, wide):
    for size, code in zip((1, 2, 4, 8), wide, strict=False):
        if number < 256**size:
            return bytes([code]) + number.to_bytes(size, "big")
    raise ValueError(number)


def _field(value):
    if isinstance(value, bytes):
        return _header(len(value), (0xC4, 0xC5, 0xC6)) + value
    return bytes([value]) if value < 128 else _header(value, (0xCC, 0xCD, 0xCE, 0xCF))


def array(*fields):
    num = len(fields)
    short = bytes([0x90 + num]) if num < 16 else b"\xdc" + num.to_bytes(2, "big")
    return short + b"".join(_field(field) for field in fields)


def records(strings):
    return b"".join(struct.pack("<I", p) + strings[p] for p in sorted(strings))


# Parameters and messages.


def open_message(params):
    slots = [field for slot in params["slots"] for field in slot_fields(slot)]
    names = ("num_invited", "degree", "threshold", "min_cohort")
    return message(
        0x01,
        params,
        array(*slots),
        *(params[name] for name in names),
        bytes.fromhex(params["graph_seed"]),
        bytes.fromhex(params["context"]),
        params["min_roster"],
    )


def max_message_bytes(params):
    """Above any message of the session."""
    tolerant = sum(not slot["whole"] for slot in params["slots"])
    largest = max(1216 + 96, 1168 + 72 * tolerant, 16 + 48 * tolerant, 96, 41)
    lists = params["num_invited"] * (8 + largest) + 64 * tolerant
    longest = max(
        (slot["ring_bits"] * (slot["length"] + 16 * slot["verified"]) + 7) // 8
        for slot in params["slots"]
    )
    return 64 + longest + max(lists, 2**20)


def message(kind, params, *fields):
    tag = digest(b"session parameters", canonical(params))[:16]
    return array(4, kind, tag, *fields)


def commitment_statement(session, info, commitment, key):
    return pack(PREFIX + b"committed vector", session, info, commitment, key)


def two_s_complement(element, bits):
    return element - 2**bits if element >= 2 ** (bits - 1) else element


# A session.

SET_UP = ("advertise", "share", "receipt")


class PlainSession:
    """Plays a session that a vector describes; `rounds`, `sums` and `drops` are what comes out."""

    def __init__(self, case):
        self.params = case["params"]
        self.bindings = [bytes.fromhex(b) for b in case["bindings"]]
        self.devices = {device["id"]: device for device in case["devices"]}
        self.vanishing = {v["id"]: (v["slot"], v["stage"]) for v in case["vanishing"]}
        self.spoiling = {(s["sender"], s["recipient"]) for s in case["spoiling"]}
        self.draws = {i: Draws(bytes.fromhex(d["randomness"])) for i, d in self.devices.items()}
        self.rounds, self.sums, self.drops = [], [], {}
        slots = self.params["slots"]
        self.tolerant = [index for index, slot in enumerate(slots) if not slot["whole"]]
        self.linked, self.agreed = None, None
        self.asked = case.get("asked", range(len(slots)))
        self.remaining = sorted(self.devices)

    def run(self):
        self._advertise()
        self._share()
        self._receipt()
        for slot in self.asked:
            if self.params["slots"][slot]["whole"]:
                self._sum_whole(slot)
            else:
                self._sum(slot)
        return self

    def _stays(self, client, stage, slot):
        if client not in self.vanishing:
            return True
        when, last = self.vanishing[client]
        order = ("mask", "confirm", "unmask")
        if stage in SET_UP:
            return last not in SET_UP or SET_UP.index(stage) < SET_UP.index(last)
        return last not in SET_UP and (slot, order.index(stage)) < (when, order.index(last))

    def _round(self, stage, asked, fields, kind, slot=0):
        """Record a round; who vanishes at it is lost. Fields are one for the kinds that need it."""
        answers = {}
        for client in list(self.remaining):
            if self._stays(client, stage, slot):
                own = fields[client] if isinstance(fields[client], tuple) else (fields[client],)
                answers[client] = message(kind, self.params, *own)
            else:
                self._lose(client, "timed out", stage, slot)
        self.rounds.append({"stage": stage, "slot": slot, "to": asked, "from": answers})

    def _lose(self, client, fault, stage, slot):
        self.remaining.remove(client)
        self.drops[client] = {"fault": fault, "stage": stage, "slot": slot}

    def _advertise(self):
        params, fields = self.params, {}
        self.secrets, self.keys = {}, {}
        for client in self.remaining:
            self.secrets[client] = self.draws[client](32)
            key = self.keys[client] = plain_kem.public_key(self.secrets[client])
            seed = bytes.fromhex(self.devices[client]["identity"])
            statement = advertisement_statement(params, client, key)
            fields[client] = key + identity_key(seed) + sign(seed, statement)
        self.advertised = fields
        opening = open_message(params)
        self._round("advertise", dict.fromkeys(self.remaining, opening), fields, 0x11)

    def _share(self):
        params = self.params
        self.ids = ids = list(self.remaining)
        num, degree = len(ids), params["degree"]
        seed = bytes.fromhex(params["graph_seed"])
        self.session = session_id(params, ids)
        self.near = [neighbours(num, degree, seed, p) for p in range(num)]
        complete = degree >= num - 1
        self.holders = [sorted([*n, p]) if complete else n for p, n in enumerate(self.near)]
        asked, fields = {}, {}
        self.seeds, self.recovery, self.shares, self.ends, self.boxes = {}, {}, {}, {}, {}
        packed_ids = struct.pack(f"<{num}I", *ids)
        for position, client in enumerate(ids):
            near = {p: self.advertised[ids[p]] for p in self.near[position]}
            asked[client] = message(0x02, params, packed_ids, records(near))
            draw = self.draws[client]
            secrets = [draw(32) for _ in range(2 * len(self.tolerant))]
            points = [p + 1 for p in self.holders[position]]
            shares = split(secrets, points, params["threshold"], draw)
            self.seeds[position], self.recovery[position] = secrets[::2], secrets[1::2]
            self.shares[position] = {point - 1: share for point, share in shares.items()}
            own = {peer: self._box(position, peer, draw) for peer in self.near[position]}
            commitments = b"".join(
                seed_commitment(self.session, slot, position, seed)
                + recovery_commitment(self.session, slot, position, key)
                for slot, seed, key in zip(
                    self.tolerant, self.seeds[position], self.recovery[position], strict=True
                )
            )
            fields[client] = (commitments, records(own))
        self._round("share", asked, fields, 0x12)
        self._drop_isolated("share", 0)

    def _end(self, position, half=b"", box=b""):
        client = self.ids[position]
        identity = identity_key(bytes.fromhex(self.devices[client]["identity"]))
        return End(position, identity, self.keys[client], half, box)

    def _box(self, sender, recipient, draw):
        """Seal a box; the sender remembers what it sent, not what becomes of it on the way."""
        half = draw(32)
        flat = [x for share in self.shares[sender][recipient] for x in share]
        content = half + struct.pack(f"<{len(flat)}I", *flat)
        info = box_info(self.session, self._end(sender), self._end(recipient))
        box = plain_kem.seal(content, self.keys[self.ids[recipient]], info)
        self.ends[sender, recipient] = self._end(sender, half, sha256(box).digest())
        spoiled = (self.ids[sender], self.ids[recipient]) in self.spoiling
        self.boxes[sender, recipient] = box[:-1] + bytes([box[-1] ^ spoiled])
        return self.boxes[sender, recipient]

    def _receipt(self):
        """Deliver boxes, and learn which pairs have a link: those of which both boxes opened."""
        deliveries, receipts, there = {}, {}, self._there()
        self.links = {}
        for position in range(len(self.ids)):
            for peer in self.near[position]:
                ends = self.ends[position, peer], self.ends[peer, position]
                if position < peer:
                    self.links[position, peer] = link_secret(self.session, *ends)
                    self.links[peer, position] = self.links[position, peer]
        opened = {
            pair
            for pair in self.boxes
            if there[pair[0]] and (self.ids[pair[0]], self.ids[pair[1]]) not in self.spoiling
        }
        for position, client in enumerate(self.ids):
            if client in self.remaining:
                come = {p: self.boxes[p, position] for p in self.near[position] if there[p]}
                members = bits(there)
                deliveries[client] = message(0x03, self.params, *members, records(come))
                receipts[client] = records(
                    {p: self._receipt_for(position, p) for p in come if (p, position) in opened}
                )
        self._round("receipt", deliveries, receipts, 0x13)
        there = self._there()
        self.linked = {(p, q) for p, q in opened if (q, p) in opened and there[p] and there[q]}

    def _receipt_for(self, position, peer):
        secret, parts = self.links[position, peer], []
        for slot, recovery in zip(self.tolerant, self.recovery[position], strict=True):
            key = link_key(secret, slot)
            parts.append(key_digest(key) + hidden(recovery, position, peer, key))
        return link_tag(secret, position) + b"".join(parts)

    def _there(self):
        return [client in self.remaining for client in self.ids]

    def _drop_isolated(self, stage, slot):
        while True:
            there = self._there()
            isolated = [
                client
                for position, client in enumerate(self.ids)
                if there[position]
                and self._count_holders(position, there) < self.params["threshold"]
            ]
            if not isolated:
                return
            for client in isolated:
                self._lose(client, "too few neighbours left", stage, slot)

    def _count_holders(self, position, there):
        return sum(there[h] and self._has_link(position, h) for h in self.holders[position])

    def _has_link(self, position, peer):
        return self.linked is None or position == peer or (position, peer) in self.linked

    def _vectors(self, slot, opened):
        """What the devices of a slot mask, by position, and what they send beside it."""
        spec, info = self.params["slots"][slot], self._info(slot)
        vectors, committed = {}, {}
        for position in (p for p, there in enumerate(opened) if there):
            client = self.ids[position]
            vector = [int(x) for x in self.devices[client]["inputs"][slot]]
            committed[position] = b""
            if spec["verified"]:
                blinding = int.from_bytes(self.draws[client](64), "little") % ORDER
                values = [two_s_complement(x, spec["ring_bits"]) for x in vector]
                commitment, key = commit(values, blinding), self.keys[client]
                statement = commitment_statement(self.session, info, commitment, key)
                seed = bytes.fromhex(self.devices[client]["identity"])
                committed[position] = commitment + sign(seed, statement)
                vector = vector + limbs_of(blinding)
            vectors[position] = vector
        return vectors, committed

    def _info(self, slot):
        return slot_info(self.params, slot, self.bindings[slot])

    def _masked(self, slot, vector, masks):
        """A packed vector under masks, which are pairs of sign and key."""
        width, total = self.params["slots"][slot]["ring_bits"], list(vector)
        for sign_of, key in masks:
            words = mask(key, len(vector), width)
            total = [(x + sign_of * w) % 2**width for x, w in zip(total, words, strict=True)]
        return pack_vector(total, width)

    def _signed_by(self, client, statement):
        return sign(bytes.fromhex(self.devices[client]["identity"]), statement)

    def _counted(self, client, signatures):
        """The first t signatures, by position, of those that count with a device."""
        own = self.ids.index(client)
        holders = [p for p in self.holders[own] if self._has_link(own, p)]
        signers = [p for p in holders if self.ids[p] in self.remaining]
        return {p: signatures[self.ids[p]] for p in signers[: self.params["threshold"]]}

    def _open(self, slot, opened):
        """What opens a slot: with the first one, the tags of those with whom there is a link."""
        asked, is_first = {}, not any(one["stage"] == "mask" for one in self.rounds)
        for client in self.remaining:
            own = self.ids.index(client)
            near = [p for p in self.near[own] if is_first and (own, p) in self.linked]
            tags = {p: link_tag(self.links[own, p], p) for p in near}
            asked[client] = message(0x04, self.params, slot, *bits(opened), records(tags))
        return asked

    def _pairs(self, position, slot, opened, info):
        """The masks that a device shares with those of a slot, as pairs of sign and key."""
        masks = []
        for peer in self.near[position]:
            if opened[peer] and (position, peer) in self.linked:
                key = expand(link_key(self.links[position, peer], slot), info)
                masks.append((-1 if position > peer else 1, key))
        return masks

    def _sum_whole(self, slot):
        """A whole slot: one message, under masks that cancel if all of it come."""
        there = self._there()
        if self.agreed is None:
            self._drop_isolated("mask", slot)
            self.agreed = self._there()
        elif any(was and not now for was, now in zip(self.agreed, there, strict=True)):
            return
        opened = self.agreed
        asked = self._open(slot, opened)
        vectors, committed = self._vectors(slot, opened)
        fields, info = {}, whole_slot_info(self._info(slot), opened)
        for position, vector in vectors.items():
            packed = self._masked(slot, vector, self._pairs(position, slot, opened, info))
            fields[self.ids[position]] = (slot, packed, committed[position])
        self._round("mask", asked, fields, 0x14, slot)
        if self._there() == opened:
            self._reveal(slot, vectors, committed)

    def _sum(self, slot):
        """A tolerant slot: masks are removed with what is left of the devices."""
        params = self.params
        column, info = self.tolerant.index(slot), self._info(slot)
        self._drop_isolated("mask", slot)
        opened = self._there()
        vectors, committed = self._vectors(slot, opened)
        fields, bound = {}, tolerant_slot_info(info)
        for position, vector in vectors.items():
            own = self_mask_key(self.session, info, self.seeds[position][column])
            masks = [(1, own), *self._pairs(position, slot, opened, bound)]
            packed = self._masked(slot, vector, masks)
            fields[self.ids[position]] = (slot, packed, committed[position])
        self._round("mask", self._open(slot, opened), fields, 0x14, slot)
        survived = self._there()
        signatures = {
            client: sign(
                bytes.fromhex(self.devices[client]["identity"]),
                survivors_statement(self.session, info, survived, self.keys[client]),
            )
            for client in self.remaining
        }
        asked = message(0x05, params, slot, *bits(survived))
        fields = {client: (slot, signature) for client, signature in signatures.items()}
        self._round("confirm", dict.fromkeys(self.remaining, asked), fields, 0x15, slot)
        asked, fields = {}, {}
        for client in self.remaining:
            few = records(self._counted(client, signatures))
            asked[client] = message(0x06, params, slot, *bits(survived), few)
            own = self.ids.index(client)
            rows = {}
            for p in vectors:
                if own in self.holders[p] and self._has_link(own, p):
                    kind = 0 if survived[p] else 1
                    share = self.shares[p][own][2 * column + kind]
                    rows[p] = bytes([kind]) + struct.pack(f"<{LIMBS}I", *share)
            fields[client] = (slot, records(rows))
        self._round("unmask", asked, fields, 0x16, slot)
        self.agreed = survived
        kept = {p: vector for p, vector in vectors.items() if survived[p]}
        self._reveal(slot, kept, committed)

    def _reveal(self, slot, vectors, committed):
        spec, params = self.params["slots"][slot], self.params
        width = spec["ring_bits"]
        total = [sum(column) % 2**width for column in zip(*vectors.values(), strict=True)]
        contributors = [self.ids[p] for p in vectors]
        vector = total[: spec["length"]]
        self.sums.append({"slot": slot, "vector": vector, "contributors": contributors})
        if spec["verified"]:
            assert len(total) == spec["length"] + BLINDING_LIMBS
            proof = records({p: committed[p] for p in vectors})
            shown = message(0x07, params, slot, pack_vector(total, width), proof)
            to = dict.fromkeys(self.remaining, shown)
            self.rounds.append({"stage": "opening", "slot": slot, "to": to, "from": {}})


# Thresholds, in exact fractions.


def complete_threshold(num, colluding_rate, dropout_rate, active):
    colluding = floor(Fraction(str(colluding_rate)) * num)
    survivors = ceil((1 - Fraction(str(dropout_rate))) * num)
    quorum = (num + colluding) // 2 + 1 if active else min(num // 2 + 1, survivors)
    threshold = max(quorum, colluding + 2)
    return threshold if threshold <= survivors else None


def sparse_parameters(num, colluding_rate, dropout_rate, active):
    """The smallest even degree, and its threshold; None where there is none."""
    rates = Fraction(str(colluding_rate)), Fraction(str(dropout_rate))
    colluding, dropped = (floor(rate * num) for rate in rates)
    survivors = ceil((1 - rates[1]) * num)
    smallest = num - dropped
    for degree in range(2, smallest - 1, 2):
        gone = colluding + dropped
        gaps = num * (num - degree - 1) * comb(num - degree, gone - degree) if gone >= degree else 0
        if gaps << 40 >= comb(num, gone):
            continue
        drawn = comb(smallest, degree)
        # The largest number of colluding neighbours, but for a tail of 2^−41.
        tail, most = 0, degree
        while most >= 0:
            tail += comb(colluding, most) * comb(smallest - colluding, degree - most)
            if tail * num << 41 > drawn:
                break
            most -= 1
        drawn = comb(num, degree)
        tail, fewest = comb(num - survivors, degree), 0
        while tail * num << 20 < drawn:
            fewest += 1
            tail += comb(survivors, fewest) * comb(num - survivors, degree - fewest)
        threshold = (degree + most) // 2 + 1 if active else most + 1
        if threshold <= fewest:
            return degree, max(threshold, 2)
    return None
