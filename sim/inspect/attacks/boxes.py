"""Attacks on boxes, links and receipts: forged, replayed, withheld, sent twice, opened later.

A defence is taken away by the parameters of the session, by how devices seal boxes and derive
links, or by devices that are put back to what they were before.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256, shake_256
from typing import Final, ParamSpec, TypeVar, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from deltafl.secagg import ClientId, Refusal, keys, links, prg
from deltafl.secagg.keys import PublicKey, Recipient
from deltafl.secagg.links import End, Link
from deltafl.secagg.masks import subtracts
from deltafl.secagg.params import DIGEST_SIZE, SessionId
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Attack, Left, Loot, Power, presuppose, told
from deltafl.sim.inspect.attacks.evil_server import EvilServer, against_first, opened, served
from deltafl.sim.inspect.attacks.own_session import (
    ONE_WHOLE_SLOT,
    Devices,
    make_params,
    new_enrolment,
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Linking = Callable[[SessionId, End, End, int], Link]

_ZEROS: Final = bytes(links.HALF_SIZE)


class _Apply:
    """Applies functions, but derives links in another way."""

    def __init__(self, link: _Linking) -> None:
        self._link = link

    def __call__(
        self,
        function: Callable[_Arguments, _Result],
        /,
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """What the function gives."""
        if function is links.link:
            function = cast("Callable[_Arguments, _Result]", self._link)
        return function(*arguments, **named)


def _end(evil: EvilServer, position: int, half: bytes = b"", box: bytes = b"") -> End:
    shown = evil.keys[position]
    return End(position, shown.credential.identity, shown.key, half, sha256(box).digest())


def _against_links(devices: Devices, evil: EvilServer, made: Mapping[int, Link]) -> Loot:
    """What is left of the first device's vector without the masks of some links, by position."""
    if evil.refusals:
        raise evil.refusals[0]
    taken = evil.inputs[0][0].copy()
    for peer, link in made.items():
        mask = evil.pair(0, 0, peer, link.keys[0]).key()
        prg.add_mask(taken, mask, negative=not subtracts(0, peer))
    return Loot(taken, devices.vector(0))


def _of_the_higher_end(session_id: SessionId, low: End, high: End, num_slots: int) -> Link:
    """A link without the lower end's half."""
    return links.link(session_id, low._replace(half=_ZEROS), high, num_slots)


@Attack(23, "5.4", Refusal.COHORT_TOO_SMALL)
@told(
    "seals boxes to a device in the names of all others, who are kept out",
    gain="the keys of the device's masks, and so its vector of a whole slot",
    defence="a link takes both halves: who cannot read the device's own boxes shows wrong tags",
)
def forged_boxes(defended: bool) -> Loot:
    """The server takes the device's own halves for zeros.

    Without the defence, a link comes from the half of the higher end alone.
    """
    primitives = PLAIN if defended else Primitives(apply=_Apply(_of_the_higher_end))
    devices = Devices(make_params(4, 3, slots=ONE_WHOLE_SLOT), primitives=primitives)
    evil, made = served(devices), dict[int, Link]()
    evil.share()
    session_id = evil.context(0).session_id
    for peer in evil.honest[1:]:
        half = peer.to_bytes(links.HALF_SIZE, "big")
        info = links.info(session_id, _end(evil, peer), _end(evil, 0))
        box = evil.boxes[peer][0] = keys.seal(half, evil.keys[0].key, info)
        low, high = _end(evil, 0, _ZEROS, evil.boxes[0][peer]), _end(evil, peer, half, box)
        made[peer] = links.link(session_id, low, high, num_slots=1)
    evil.deliver(0)
    # What the others would have said, if these were their links.
    evil.receipts |= {peer: {0: link.tags[1]} for peer, link in made.items()}
    evil.open_slot(0, {0: evil.everyone})
    return _against_links(devices, evil, made)


def _without_tags(session_id: SessionId, low: End, high: End, num_slots: int) -> Link:
    """A link whose tags are zeros."""
    zeros = bytes(links.TAG_SIZE)
    return replace(links.link(session_id, low, high, num_slots), tags=(zeros, zeros))


def _credulous() -> Primitives:
    """Of devices that open any box that was ever sealed to them, and compare no tags."""
    sealed = dict[bytes, bytes]()

    def seal(content: bytes, public: PublicKey, info: bytes) -> bytes:
        box = keys.seal(content, public, info)
        sealed[box] = content
        return box

    return Primitives(
        seal=seal, open=lambda _own, box, _info: sealed[box], apply=_Apply(_without_tags)
    )


@Attack(23, "9.6", Left.NOISE)
@told(
    "declares a device dropped out, and hands its boxes out again in another session",
    gain="both secrets of the device, one from each session, and so its vector of the first",
    defence="boxes are bound to new keys and to the session, and tags to the boxes of both ends",
)
def boxes_of_another_session(defended: bool) -> Loot:
    """In the second session, the device has survived.

    Without the defence, devices open any box that was ever sealed to them, and compare no tags.
    """
    primitives, enrolment = PLAIN if defended else _credulous(), new_enrolment()
    devices, again = (
        Devices(make_params(5, 3, number=n), seed=n, enrolment=enrolment, primitives=primitives)
        for n in range(2)
    )
    first, second = opened(devices), served(again)
    first.unmask(0, first.everyone - {0})
    second.share()
    second.boxes[0] = first.boxes[0]
    second.set_up()
    cohort = dict.fromkeys(second.honest[1:], second.everyone)
    second.open_slot(0, cohort)
    second.unmask(0, cohort)
    first.secrets = second.secrets | first.secrets
    first.refusals |= second.refusals
    return against_first(devices, first)


@Attack(4, "9.10", Refusal.COHORT_TOO_SMALL)
@told(
    "withholds from a device the tags of all devices that are not its own",
    gain="the device's vector, which only its own devices mask, and whose seed they have",
    defence="devices without a link count neither for min_cohort nor for t",
)
def withheld_tags(defended: bool) -> Loot:
    """Two of eight devices collude, and all eight are on every list.

    Without the defence, three devices are enough: the two and the device itself.
    """
    devices = Devices(make_params(8, 6 if defended else 3))
    evil = served(devices, num_colluders=2)
    evil.set_up()
    for peer in evil.honest[1:]:
        del evil.receipts[peer][0]
    evil.open_slot(0, dict.fromkeys([0, 6, 7], evil.everyone))
    evil.unmask(0, {0: evil.everyone})
    return against_first(devices, evil)


@Attack(6, "9.3", Refusal.OUT_OF_ORDER)
@told(
    "hands a device other boxes after its receipt, so that it hides two keys in one way",
    gain="the difference of two keys of each link",
    defence="a device takes boxes once, and draws for every session anew what hides keys",
)
def second_receipt(defended: bool) -> Loot:
    """The other boxes are of the same devices, and sealed anew.

    Without the defence, they go to a device that knows of no first ones.
    """
    derived: list[dict[int, bytes]] = []
    sealed = cache(keys.seal)

    def devices() -> Devices:
        """The same devices once more, whose boxes are the same."""
        found = dict[int, bytes]()
        derived.append(found)

        def noting(session_id: SessionId, low: End, high: End, num_slots: int) -> Link:
            link = links.link(session_id, low, high, num_slots)
            found[high.position] = link.keys[0]
            return link

        primitives = Primitives(seal=sealed, apply=_Apply(noting))
        return Devices(make_params(5, 3), primitives=primitives)

    first = asked = served(devices())
    first.share()
    first.deliver(0)
    receipt = first.receipts[0]
    if not defended:
        asked = served(devices())
        asked.share()
    anew = served(Devices(first.params))
    anew.share()
    asked.boxes |= {peer: anew.boxes[peer] for peer in first.honest[1:]}
    asked.deliver(0)
    once, twice = derived
    peers = sorted(receipt)
    hidden = [_words(of[p][-DIGEST_SIZE:] for p in peers) for of in (receipt, asked.receipts[0])]
    true = [_words(of[p] for p in peers) for of in (once, twice)]
    return Loot(hidden[0] ^ hidden[1], true[0] ^ true[1])


def _words(parts: Iterable[bytes]) -> Vector:
    return np.frombuffer(b"".join(parts), dtype="<u4").astype(np.uint32)


def _seeded(client: ClientId) -> Randomness:
    return SeededRandomness(client.to_bytes(32, "little"))


def _half_broken(secret: bytes) -> Recipient:
    """A device's key, as far as it is known to somebody who has broken X25519."""
    public = keys.recipient(secret).public
    curve = X25519PrivateKey.from_private_bytes(shake_256(secret).digest(96)[64:])
    presuppose(public.endswith(curve.public_key().public_bytes_raw()), "X25519 is broken")
    guess = MLKEM768PrivateKey.from_seed_bytes(bytes(64))
    return Recipient(public, MLKEM768X25519PrivateKey(guess, curve))


@Attack(26, "2.3", Left.NOISE, power=Power.NETWORK)
@told(
    "records a session, and later breaks X25519",
    gain="what is in every box, and so the device's vector of a whole slot",
    defence="keys are X-Wing, whose boxes stay closed as long as ML-KEM-768 holds",
)
def recorded_traffic(defended: bool) -> Loot:
    """The attacker has all that passed through an honest server, and the X25519 half of every key.

    Without the defence, it has the ML-KEM half as well.
    """
    devices = Devices(make_params(4, 3, slots=ONE_WHOLE_SLOT), source=_seeded)
    evil, made = opened(devices), dict[int, Link]()
    broken = _half_broken if defended else keys.recipient
    own = [broken(_seeded(client)(keys.SECRET_SIZE)) for client in devices.roster]
    presuppose(all(own[p].public == evil.keys[p].key for p in evil.everyone), "keys are these")
    session_id = evil.context(0).session_id

    def end(sender: int, receiver: int) -> End:
        """As far as the attacker can read its box."""
        box = evil.boxes[sender][receiver]
        info = links.info(session_id, _end(evil, sender), _end(evil, receiver))
        return _end(evil, sender, own[receiver].open(box, info) or _ZEROS, box)

    for peer in evil.honest[1:]:
        made[peer] = links.link(session_id, end(0, peer), end(peer, 0), num_slots=1)
    return _against_links(devices, evil, made)
