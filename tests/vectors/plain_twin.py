"""A second reading of the protocol: slow, in Python integers, without a line of `secagg`.

It plays whole sessions from the inputs that a vector states, so that a vector is more than what
`secagg` once said about itself. What an audit computes too is in `sim/inspect/audit/plain.py`.
ChaCha20, Shamir's polynomials, packing and msgpack are written out.
"""

import struct
from fractions import Fraction
from itertools import combinations
from math import ceil, comb, floor

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from plain_pedersen import ORDER, commit

from deltafl.sim.inspect.audit.plain import (  # noqa: F401 - others take them from here
    LIMBS,
    PREFIX,
    PRIME,
    advertisement_statement,
    agree,
    binding,
    bits,
    canonical,
    digest,
    extract,
    from_limbs,
    hkdf,
    lagrange,
    mask,
    members_statement,
    neighbours,
    pack,
    pairwise_mask_key,
    public_key,
    query_bytes,
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

# ChaCha20 (RFC 8439), and XChaCha20-Poly1305 on top of it (draft-irtf-cfrg-xchacha).


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


def seal(key, nonce, associated, plaintext):
    start = (*_SIGMA, *struct.unpack("<8I", key), *struct.unpack("<4I", nonce[:16]))
    words = _rounds(start)
    subkey = struct.pack("<8I", *words[:4], *words[12:])
    inner = bytes(4) + nonce[16:]
    return nonce + ChaCha20Poly1305(subkey).encrypt(inner, plaintext, associated)


def identity_key(seed):
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed, statement):
    return Ed25519PrivateKey.from_private_bytes(seed).sign(statement)


def mask_of_blinding(material, session, info):
    """What a mask adds to a blinding, of the material and info that the mask's key is made of."""
    key = hkdf(material, session, pack(PREFIX + b"mask of a blinding") + info)
    return int.from_bytes(keystream(key, 64), "little") % ORDER


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
    advertised = 32 * (1 + tolerant) + 96
    largest = max(advertised, 40 + 72 * tolerant, 96, 41)
    lists = params["num_invited"] * (8 + largest) + 32 * tolerant
    longest = max(
        (slot["ring_bits"] * slot["length"] + 7) // 8 + 32 * slot["verified"]
        for slot in params["slots"]
    )
    return 64 + longest + max(lists, 2**20)


def message(kind, params, *fields):
    tag = digest(b"session parameters", canonical(params))[:16]
    return array(3, kind, tag, *fields)


def sealing_info(sender, recipient, sender_key, recipient_key):
    return pack(PREFIX + b"share sealing key", sender, recipient, sender_key, recipient_key)


def commitment_statement(session, info, commitment, sealing_key):
    return pack(PREFIX + b"committed vector", session, info, commitment, sealing_key)


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
        self.agreed, self.asked = None, case.get("asked", range(len(slots)))
        self.remaining = sorted(self.devices)

    def run(self):
        self._advertise()
        self._share()
        self._round("receipt", self.deliveries, self.receipts, 0x13)
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
        order = ("list", "mask", "confirm", "unmask")
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
        self.secrets, self.keys, self.advertised = {}, {}, {}
        for client in self.remaining:
            draw = self.draws[client]
            secrets = [draw(32) for _ in range(1 + len(self.tolerant))]
            public = [public_key(secret) for secret in secrets]
            if self.devices[client].get("highest_bit"):
                public = [key[:-1] + bytes([key[-1] | 0x80]) for key in public]
            credential = b""
            seed = bytes.fromhex(self.devices[client]["identity"])
            statement = advertisement_statement(params, client, public[0], public[1:])
            credential = identity_key(seed) + sign(seed, statement)
            fields[client] = (public[0], b"".join(public[1:]), credential)
            self.secrets[client], self.keys[client] = secrets, public
            self.advertised[client] = b"".join(fields[client])
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
        self.seeds, self.shares, boxes = {}, {}, {}
        packed_ids = struct.pack(f"<{num}I", *ids)
        for position, client in enumerate(ids):
            near = {p: self.advertised[ids[p]] for p in self.near[position]}
            asked[client] = message(0x02, params, packed_ids, records(near))
            draw = self.draws[client]
            own_seeds = [draw(32) for _ in self.tolerant]
            mask_secrets = self.secrets[client][1:]
            pairs = zip(own_seeds, mask_secrets, strict=True)
            secrets = [secret for pair in pairs for secret in pair]
            points = [p + 1 for p in self.holders[position]]
            shares = split(secrets, points, params["threshold"], draw)
            self.seeds[position] = own_seeds
            self.shares[position] = {point - 1: share for point, share in shares.items()}
            for peer in self.near[position]:
                boxes[position, peer] = self._box(position, peer, draw)
            commitments = b"".join(
                seed_commitment(self.session, slot, position, seed)
                for slot, seed in zip(self.tolerant, own_seeds, strict=True)
            )
            own = {peer: boxes[position, peer] for peer in self.near[position]}
            fields[client] = (commitments, records(own))
        self._round("share", asked, fields, 0x12)
        self._drop_isolated("share", 0)
        self.deliveries, self.receipts = {}, {}
        self.refused = {position: [] for position in range(num)}
        there = self._there()
        for position, client in enumerate(ids):
            if client in self.remaining:
                come = {p: boxes[p, position] for p in self.near[position] if there[p]}
                self.deliveries[client] = message(0x03, params, *bits(there), records(come))
                self.refused[position] = [p for p in come if (ids[p], client) in self.spoiling]
                self.receipts[client] = struct.pack(
                    f"<{len(self.refused[position])}I", *self.refused[position]
                )

    def _box(self, sender, recipient, draw):
        from_id, to_id = self.ids[sender], self.ids[recipient]
        info = sealing_info(sender, recipient, self.keys[from_id][0], self.keys[to_id][0])
        shared = agree(self.secrets[from_id][0], self.keys[to_id][0])
        flat = [x for share in self.shares[sender][recipient] for x in share]
        content = struct.pack(f"<{len(flat)}I", *flat)
        box = seal(hkdf(shared, self.session, info), draw(24), info, content)
        return box[:-1] + bytes([box[-1] ^ ((from_id, to_id) in self.spoiling)])

    def _there(self):
        return [client in self.remaining for client in self.ids]

    def _drop_isolated(self, stage, slot):
        while True:
            there = self._there()
            isolated = [
                client
                for position, client in enumerate(self.ids)
                if there[position]
                and sum(there[h] for h in self.holders[position]) < self.params["threshold"]
            ]
            if not isolated:
                return
            for client in isolated:
                self._lose(client, "too few neighbours left", stage, slot)

    def _vectors(self, slot, opened):
        """What the devices of a slot mask, by position: vectors and blindings; and commitments."""
        spec, info = self.params["slots"][slot], self._info(slot)
        vectors, committed = {}, {}
        for position in (p for p, there in enumerate(opened) if there):
            client = self.ids[position]
            vector = [int(x) for x in self.devices[client]["inputs"][slot]]
            committed[position], blinding = b"", 0
            if spec["verified"]:
                blinding = int.from_bytes(self.draws[client](64), "little") % ORDER
                values = [two_s_complement(x, spec["ring_bits"]) for x in vector]
                commitment, key = commit(values, blinding), self.keys[client][0]
                statement = commitment_statement(self.session, info, commitment, key)
                seed = bytes.fromhex(self.devices[client]["identity"])
                committed[position] = commitment + sign(seed, statement)
            vectors[position] = vector, blinding
        return vectors, committed

    def _info(self, slot):
        return slot_info(self.params, slot, self.bindings[slot])

    def _masked(self, slot, own, masks):
        """A vector and its blinding under masks: sign, key, and what it adds to the blinding."""
        (total, blinding), width = own, self.params["slots"][slot]["ring_bits"]
        for sign_of, key, of_blinding in masks:
            words = mask(key, len(total), width)
            total = [(x + sign_of * w) % 2**width for x, w in zip(total, words, strict=True)]
            blinding += sign_of * of_blinding
        return self._packed(slot, total, blinding)

    def _packed(self, slot, total, blinding):
        spec = self.params["slots"][slot]
        tail = (blinding % ORDER).to_bytes(32, "little") if spec["verified"] else b""
        return pack_vector(total, spec["ring_bits"]) + tail

    def _pairwise(self, info, secret, own, theirs):
        """The key of a mask of two devices, and their mask of the blinding."""
        key = pairwise_mask_key(self.session, info, secret, own, theirs)
        ends = min(own, theirs) + max(own, theirs)
        return key, mask_of_blinding(agree(secret, theirs), self.session, info + ends)

    def _signed_by(self, client, statement):
        return sign(bytes.fromhex(self.devices[client]["identity"]), statement)

    def _counted(self, client, signatures):
        """The first t signatures, by position, of those that count with a device."""
        own = self.ids.index(client)
        holders = [p for p in self.holders[own] if p not in self.refused[own]]
        signers = [p for p in holders if self.ids[p] in self.remaining]
        return {p: signatures[self.ids[p]] for p in signers[: self.params["threshold"]]}

    def _sum_whole(self, slot):
        """A whole slot: one message, under masks from the agreements of the boxes."""
        params = self.params
        there = self._there()
        if self.agreed is not None and any(
            was and not now for was, now in zip(self.agreed, there, strict=True)
        ):
            return
        asked, is_first = {}, self.agreed is None
        if is_first:
            self._drop_isolated("mask", slot)
            self.agreed = self._there()
        opened = self.agreed
        if is_first:
            signatures = {
                client: self._signed_by(
                    client, members_statement(self.session, slot, opened, self.keys[client][0])
                )
                for client in self.remaining
            }
            listed = message(0x05, params, slot, *bits(opened))
            fields = {client: (slot, signature) for client, signature in signatures.items()}
            self._round("list", dict.fromkeys(self.remaining, listed), fields, 0x15, slot)
            if self._there() != opened:
                return
            for client in self.remaining:
                few = records(self._counted(client, signatures))
                asked[client] = message(0x04, params, slot, *bits(opened), few)
        else:
            data = message(0x04, params, slot, *bits(opened), b"")
            asked = dict.fromkeys(self.remaining, data)
        vectors, committed = self._vectors(slot, opened)
        fields, info = {}, whole_slot_info(self._info(slot), opened)
        for position, unmasked in vectors.items():
            own, masks = self.keys[self.ids[position]][0], []
            secret = self.secrets[self.ids[position]][0]
            for peer in self.near[position]:
                if opened[peer]:
                    theirs = self.keys[self.ids[peer]][0]
                    both = self._pairwise(info, secret, own, theirs)
                    masks.append((-1 if position > peer else 1, *both))
            packed = self._masked(slot, unmasked, masks)
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
        for position, unmasked in vectors.items():
            client = self.ids[position]
            own, secret = self.keys[client][1 + column], self.secrets[client][1 + column]
            seed = self.seeds[position][column]
            of_blinding = mask_of_blinding(seed, self.session, pack(PREFIX + b"self mask", info))
            masks = [(1, self_mask_key(self.session, info, seed), of_blinding)]
            for peer in self.near[position]:
                if opened[peer]:
                    theirs = self.keys[self.ids[peer]][1 + column]
                    both = self._pairwise(bound, secret, own, theirs)
                    masks.append((-1 if position > peer else 1, *both))
            fields[client] = (slot, self._masked(slot, unmasked, masks), committed[position])
        asked = message(0x04, params, slot, *bits(opened), b"")
        self._round("mask", dict.fromkeys(self.remaining, asked), fields, 0x14, slot)
        survived = self._there()
        request = dict.fromkeys(self.remaining, (slot, *bits(survived), b""))
        if signed:
            signatures = {
                client: self._signed_by(
                    client,
                    survivors_statement(self.session, info, survived, self.keys[client][0]),
                )
                for client in self.remaining
            }
            asked = message(0x05, params, slot, *bits(survived))
            fields = {client: (slot, signature) for client, signature in signatures.items()}
            self._round("confirm", dict.fromkeys(self.remaining, asked), fields, 0x15, slot)
            for client in self.remaining:
                few = records(self._counted(client, signatures))
                request[client] = (slot, *bits(survived), few)
        asked = {client: message(0x06, params, *request[client]) for client in self.remaining}
        fields = {}
        for client in self.remaining:
            own = self.ids.index(client)
            rows = {}
            for p in vectors:
                if own not in self.holders[p] or p in self.refused[own]:
                    continue
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
        each, blindings = zip(*vectors.values(), strict=True)
        total = [sum(column) % 2**width for column in zip(*each, strict=True)]
        contributors = [self.ids[p] for p in vectors]
        self.sums.append({"slot": slot, "vector": total, "contributors": contributors})
        if spec["verified"]:
            proof = records({p: committed[p] for p in vectors})
            packed = self._packed(slot, total, sum(blindings))
            shown = message(0x07, params, slot, packed, proof)
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
