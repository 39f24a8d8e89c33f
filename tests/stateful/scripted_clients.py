"""A lying server with all of a device's peers in its hands: it can say anything, and sign it too.

Whatever an honest server could say to the device is said by the methods of `ScriptedClients`; their
arguments make lies of it.
"""

from dataclasses import replace
from hashlib import sha256

import numpy as np
from parties import BINDING, make_ids

from deltafl.secagg import Enrolment, keys, links, openings, pedersen, ring, shamir, signing, wire
from deltafl.secagg.graph import Graph
from deltafl.secagg.links import End
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    Credential,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    SumOpening,
    UnmaskRequest,
)
from deltafl.secagg.randomness import SeededRandomness

ROSTER_FLAWS = ("key twice", "low-order key", "missing", "stranger", "bad signature", "identity")
TAG_FLAWS = ("withheld", "wrong", "reflected", "stranger")
REQUEST_FLAWS = ("too few", "other list", "other slot", "no say")
PROOF_FLAWS = (
    *("other sum", "other blinding", "swapped", "other slot", "bad signature"),
    *("missing", "stranger", "own replaced"),
)


class ScriptedClients:
    """All devices of a session but one, and the server's words to that one.

    Args:
        params: The session.
        seed: Of the peers' keys.

    Attributes:
        victim: The id of the one honest device.
        advertised: What it advertised, once it has.
        shared: The boxes that it sent, once it has.
        own_signatures: What it signed, by slot and list.
        own_committed: By slot, the vector that it committed to, the blinding, and what it sent of
            them: commitment and signature.
    """

    def __init__(self, params, seed=0):
        self.params = params
        self.ids = np.array(sorted(make_ids(params.num_invited)), dtype=np.uint32)
        self.victim = int(self.ids[len(self.ids) // 2])
        self.advertised = None
        self.shared = None
        self.own_signatures = {}
        self.own_committed = {}
        self._randomness = SeededRandomness(bytes([seed]) * 32)
        self.enrolment = Enrolment(SeededRandomness(b"identities".ljust(32, b"\0")))
        self._keys = {int(i): keys.generate(self._randomness) for i in self.ids}
        self._sent = {}
        self.delivered = {}
        self.place(self.ids)

    def place(self, ids):
        """Fix the roster: who is where, and the session's id."""
        self.roster = np.array(ids, dtype=np.uint32)
        self.position = int(np.searchsorted(self.roster, self.victim))
        self.session_id = self.params.session_id(self.roster.astype("<u4").tobytes())
        self.graph = Graph(len(self.roster), self.params.degree, self.params.graph_seed)
        self.holders = self.graph.holders_of(self.position).tolist()
        self.neighbours = self.graph.neighbours(self.position).tolist()

    def encode(self, message):
        return wire.encode(message, self.params)

    def everybody(self):
        return np.ones(len(self.roster), dtype=np.bool_)

    def open(self, params=None):
        return wire.encode(SessionOpen(params or self.params), params or self.params)

    def give_roster(self, ids, flaw=None, which=0):
        """The roster of some ids, after which the session is over them; perhaps with a flaw."""
        if self.victim in ids and len(ids) > 1:
            self.place(ids)
        named = {p: self._advertisement(int(self.roster[p])) for p in self.neighbours}
        chosen = self.neighbours[which % len(self.neighbours)]
        other = self.neighbours[(which + 1) % len(self.neighbours)]
        theirs = named[chosen]
        match flaw:
            case "key twice":
                named[chosen] = replace(theirs, key=named[other].key)
            case "low-order key":
                named[chosen] = replace(theirs, key=theirs.key[:-32] + bytes(32))
            case "missing":
                del named[chosen]
            case "stranger":
                named[len(self.roster)] = theirs
            case "bad signature":
                bad = Credential(theirs.credential.identity, named[other].credential.signature)
                named[chosen] = replace(theirs, credential=bad)
            case "identity":
                # The server's own key, which proves everything except who it is.
                posed = self._advertisement(int(self.roster[chosen]), signer=2**32 - 1)
                named[chosen] = posed
        return self.encode(RosterMessage(self.roster, named))

    def _advertisement(self, client, signer=None):
        key = self._keys[client].public
        identity = self.enrolment.credentials(signer or client).identity
        statement = signing.advertisement(self.params, client, key)
        return AdvertiseKeys(key, Credential(identity.public, identity.sign(statement)))

    def _end(self, position, half=b"", box=b""):
        """A device as an end of a link."""
        sent = sha256(box).digest()
        return End(position, self.identity(position).public, self.key(position), half, sent)

    def deliver(self, members, spoilt=False, without=None):
        """Boxes of the neighbours among `members`; perhaps spoilt, or without one of them."""
        limbs = np.arange(len(self.params.columns) * 2 * shamir.NUM_LIMBS, dtype="<u4").tobytes()
        boxes, own = {}, self._end(self.position)
        for peer in self.neighbours:
            if members[peer] and peer != without:
                half = self._randomness(links.HALF_SIZE)
                info = links.info(self.session_id, self._end(peer), own)
                boxes[peer] = keys.seal(half + limbs, own.key, info)
                if spoilt:
                    boxes[peer] = boxes[peer][:-1] + bytes([boxes[peer][-1] ^ 1])
                else:
                    self._sent[peer, boxes[peer]] = self._end(peer, half, boxes[peer])
        return self.encode(ShareDelivery(members, boxes))

    def tags(self):
        """Both tags of each link, by the peer's position: what it shows, what the device does."""
        own, tags = self._end(self.position), {}
        for peer, box in self.delivered.items():
            if (peer, bytes(box)) not in self._sent:
                continue
            sent = self.shared[peer]
            info = links.info(self.session_id, own, self._end(peer))
            half = self._keys[int(self.roster[peer])].open(sent, info)[: links.HALF_SIZE]
            ends = sorted([self._end(self.position, half, sent), self._sent[peer, bytes(box)]])
            link = links.link(self.session_id, *ends, len(self.params.slots))
            is_high = peer > self.position
            tags[peer] = link.tags[is_high], link.tags[not is_high]
        return tags

    def open_slot(self, slot, members, *, first=False, flaw=None, which=0):
        """The opening of a slot; with the tags of all links if it is the first."""
        both = self.tags() if first and self.shared is not None else {}
        told = {peer: theirs for peer, (theirs, _) in both.items()}
        if told:
            chosen = list(told)[which % len(told)]
            match flaw:
                case "withheld":
                    del told[chosen]
                case "wrong":
                    told[chosen] = told[chosen][:-1] + bytes([told[chosen][-1] ^ 1])
                case "reflected":
                    told[chosen] = both[chosen][1]
                case "stranger":
                    told[self.position] = told[chosen]
        return self.encode(OpenSlot(slot, members, dict(sorted(told.items()))))

    def check(self, slot, survivors):
        return self.encode(ConsistencyCheck(slot, survivors))

    def statement(self, slot, survivors, position):
        """What the device at a position signs of a list of survivors."""
        return signing.survivors(self.context(slot), survivors, self.key(position))

    def context(self, slot):
        return SlotContext.of(self.params, self.session_id, slot, BINDING)

    def key(self, position):
        """What the device at a position advertised."""
        is_own = position == self.position
        return self.advertised.key if is_own else self._keys[int(self.roster[position])].public

    def identity(self, position):
        return self.enrolment.credentials(int(self.roster[position])).identity

    def request(self, slot, survivors, flaw=None, which=0):
        """A request to unmask, signed by every peer that has a say; perhaps with a flaw."""
        signatures = self._signatures(slot, survivors, flaw, which)
        return self.encode(UnmaskRequest(slot, survivors, signatures))

    def _signatures(self, slot, survivors, flaw, which):
        """Signatures of a list by every peer that has a say; perhaps with a flaw."""
        signed_slot, signed_list = slot, survivors.copy()
        if flaw == "other list":
            signed_list[which % len(signed_list)] ^= True
        if flaw == "other slot":
            signed_slot = (slot + 1) % len(self.params.slots)
        signers = [p for p in self.holders if survivors[p] and p != self.position]
        if flaw == "no say":
            strangers = [p for p in range(len(survivors)) if p not in signers]
            signers.append(strangers[which % len(strangers)])
        if flaw == "too few":
            signers = signers[: which % self.params.threshold]
        signatures = {
            p: self.identity(p).sign(self.statement(signed_slot, signed_list, p))
            for p in signers
            if p != self.position
        }
        own = self.own_signatures.get((slot, survivors.tobytes()))
        if own is not None and self.position in self.holders and flaw != "too few":
            signatures[self.position] = own
        return signatures

    def prove(self, slot, members, flaw=None, which=0):
        """The proof of a sum to which all peers add nothing but a blinding; perhaps with a flaw."""
        spec, context = self.params.slots[slot], self.context(slot)
        vector, blinding, own = self.own_committed[slot]
        committed, total = {}, [int(value) for value in vector]
        for position in np.flatnonzero(members).tolist():
            if position == self.position:
                committed[position] = own
                continue
            commitment = pedersen.commit([0] * spec.length, position)
            blinding += position
            signed_in = self.context(slot - 1 if slot else 1) if flaw == "other slot" else context
            statement = openings.statement(signed_in, commitment, self.key(position))
            committed[position] = commitment + self.identity(position).sign(statement)
        peers = [position for position in committed if position != self.position]
        chosen, other = (peers[(which + i) % len(peers)] for i in range(2))
        match flaw:
            case "other sum":
                total[which % len(total)] ^= 1
            case "other blinding":
                blinding ^= 1 << which % 252
            case "swapped":
                committed[chosen], committed[other] = committed[other], committed[chosen]
            case "bad signature":
                wrong = committed[chosen]
                committed[chosen] = wrong[:-1] + bytes([wrong[-1] ^ 1])
            case "missing":
                del committed[chosen]
            case "stranger":
                outside = [p for p in range(len(self.roster) + 1) if p not in committed]
                committed[outside[which % len(outside)]] = own
            case "own replaced":
                commitment = pedersen.commit([0] * spec.length, 1)
                committed[self.position] = commitment + own[pedersen.COMMITMENT_SIZE :]
        words = ring.to_words(np.array(total, dtype=np.uint64), spec.ring_bits)
        ordered = dict(sorted(committed.items()))
        return self.encode(SumOpening(slot, openings.pack(spec, words, blinding), ordered))
