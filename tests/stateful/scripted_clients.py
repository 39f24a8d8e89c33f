"""A lying server with all of a device's peers in its hands: it can say anything, and sign it too.

Whatever an honest server could say to the device is said by the methods of `ScriptedClients`; their
arguments make lies of it.
"""

import numpy as np
from parties import BINDING, make_ids

from deltafl.secagg import Enrolment, keys, shamir, signing, wire
from deltafl.secagg.graph import Graph
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    Credential,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    UnmaskRequest,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.sealing import SealedChannel

ROSTER_FLAWS = ("key twice", "low-order key", "missing", "stranger", "bad signature", "identity")
REQUEST_FLAWS = ("too few", "other list", "other slot", "no say")


class ScriptedClients:
    """All devices of a session but one, and the server's words to that one.

    Args:
        params: The session.
        seed: Of the peers' keys.

    Attributes:
        victim: The id of the one honest device.
        advertised: What it advertised, once it has.
        own_signatures: What it signed, by slot and list.
    """

    def __init__(self, params, seed=0):
        self.params = params
        self.ids = np.array(sorted(make_ids(params.num_invited)), dtype=np.uint32)
        self.victim = int(self.ids[len(self.ids) // 2])
        self.advertised = None
        self.own_signatures = {}
        self._randomness = SeededRandomness(bytes([seed]) * 32)
        self.enrolment = Enrolment(SeededRandomness(b"identities".ljust(32, b"\0")))
        self._keys = {
            int(i): [keys.generate(self._randomness) for _ in range(1 + len(params.slots))]
            for i in self.ids
        }
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
        theirs, sealing = named[chosen], named[other].sealing_key
        match flaw:
            case "key twice":
                named[chosen] = AdvertiseKeys(sealing, theirs.mask_keys, theirs.credential)
            case "low-order key":
                named[chosen] = AdvertiseKeys(bytes(32), theirs.mask_keys, theirs.credential)
            case "missing":
                del named[chosen]
            case "stranger":
                named[len(self.roster)] = theirs
            case "bad signature" if theirs.credential is not None:
                bad = Credential(theirs.credential.identity, named[other].credential.signature)
                named[chosen] = AdvertiseKeys(theirs.sealing_key, theirs.mask_keys, bad)
            case "identity" if theirs.credential is not None:
                # The server's own key, which proves everything except who it is.
                posed = self._advertisement(int(self.roster[chosen]), signer=2**32 - 1)
                named[chosen] = posed
        return self.encode(RosterMessage(self.roster, named))

    def _advertisement(self, client, signer=None):
        sealing, *masks = (pair.public for pair in self._keys[client])
        credential = None
        if self.params.signed:
            identity = self.enrolment.credentials(signer or client).identity
            statement = signing.advertisement(self.params, client, sealing, tuple(masks))
            credential = Credential(identity.public, identity.sign(statement))
        return AdvertiseKeys(sealing, tuple(masks), credential)

    def deliver(self, members, spoilt=False, without=None):
        """Boxes of the neighbours among `members`; perhaps spoilt, or without one of them."""
        limbs = np.arange(len(self.params.slots) * 2 * shamir.NUM_LIMBS, dtype="<u4").tobytes()
        boxes = {}
        for peer in self.neighbours:
            if members[peer] and peer != without:
                own = self._keys[int(self.roster[peer])][0]
                sealing = self.advertised.sealing_key
                channel = SealedChannel(own, sealing, peer, self.position, self.session_id)
                boxes[peer] = channel.seal(limbs, self._randomness)
                if spoilt:
                    boxes[peer] = boxes[peer][:-1] + bytes([boxes[peer][-1] ^ 1])
        return self.encode(ShareDelivery(members, boxes))

    def open_slot(self, slot, members):
        return self.encode(OpenSlot(slot, members))

    def check(self, slot, survivors):
        return self.encode(ConsistencyCheck(slot, survivors))

    def statement(self, slot, survivors, position):
        """What the device at a position signs of a list of survivors."""
        context = SlotContext.of(self.params, self.session_id, slot, BINDING)
        own = self._keys[int(self.roster[position])][0].public
        sealing = self.advertised.sealing_key if position == self.position else own
        return signing.survivors(context, survivors, sealing)

    def request(self, slot, survivors, flaw=None, which=0):
        """A request to unmask, signed by every peer that has a say; perhaps with a flaw."""
        if not self.params.signed:
            return self.encode(UnmaskRequest(slot, survivors))
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
            p: self.enrolment.credentials(int(self.roster[p])).identity.sign(
                self.statement(signed_slot, signed_list, p)
            )
            for p in signers
            if p != self.position
        }
        own = self.own_signatures.get((slot, survivors.tobytes()))
        if own is not None and self.position in self.holders and flaw != "too few":
            signatures[self.position] = own
        return self.encode(UnmaskRequest(slot, survivors, signatures))
