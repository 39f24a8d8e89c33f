"""The messages of a round in which nobody is lost, and how many bytes they have.

Each message is made with the content that matters for its size, and encoded by the code that
writes it in a round (`deltafl.protocol.wire`, `deltafl.secagg.wire`). Only η and δ have a size that
depends on what is found: the largest is taken, a few bytes too many. What a connection adds, such
as TLS, is not counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.protocol import wire as envelopes
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SessionParams, shamir, wire
from deltafl.secagg.codec import Records
from deltafl.secagg.identity import IDENTITY_SIZE, SIGNATURE_SIZE, IdentityKey
from deltafl.secagg.keys import KEY_SIZE, PublicKey
from deltafl.secagg.links import TAG_SIZE
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    Message,
    OpenSlot,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.openings import COMMITTED_SIZE
from deltafl.secagg.params import DIGEST_SIZE, SlotSpec

_LONG: Final = 1 << 16  # from here on, the header of a byte string has one size
_BYTES_PER_PARAMETER: Final = 4


@dataclass(frozen=True, slots=True)
class Trip:
    """One exchange: the server sends each device a message, and each answers.

    Attributes:
        what: what the devices send.
        down: bytes to each device.
        up: bytes from each device.
    """

    what: str
    down: int
    up: int


def trips(
    levels: Levels, params: SessionParams, num_parameters: int, queries: Sequence[int]
) -> list[Trip]:
    """The exchanges of a round in which nobody is lost, in their order.

    Args:
        levels: the round's.
        params: of its session.
        num_parameters: of the model of one level.
        queries: how many queries the search of each level asks.
    """
    session = _Session(levels, params)
    found = list(session.set_up(num_parameters))
    for level, asked in enumerate(queries):
        config = levels.rounds[level]
        first = levels.first_slot(level)
        question = Query(config.method, (0,) * config.quantile.num_pivots)
        for slot in range(first, first + asked):
            found += session.sum_of(slot, question)
        highest = 2 * config.search.grid.top_pivot
        found += session.sum_of(first + config.update_slot, Threshold(highest, highest))
    return found


class _Session:
    """A session in which nobody is lost: all devices are on the roster, and stay.

    Args:
        levels: of the round.
        params: of the session.
    """

    def __init__(self, levels: Levels, params: SessionParams) -> None:
        self._levels, self._params = levels, params
        self._everyone = np.ones(params.num_invited, dtype=np.bool_)
        self._near = params.num_invited - 1 if params.is_complete else params.degree
        self._is_open = False
        self._proof = 0  # bytes of the proof of the last sum, which travels with the next question

    def set_up(self, num_parameters: int) -> Iterator[Trip]:
        """The announcement and keys, then shares, then receipts."""
        params, levels = self._params, self._levels
        models, rest = _long(num_parameters * _BYTES_PER_PARAMETER * len(levels.rounds))
        announced = Announce(levels, models, wire.encode(SessionOpen(params), params))
        key, identity = PublicKey(bytes(KEY_SIZE)), IdentityKey(bytes(IDENTITY_SIZE))
        credential = Credential(identity, bytes(SIGNATURE_SIZE))
        keys = AdvertiseKeys(key, credential)
        yield Trip("keys", len(envelopes.encode(announced)) + rest, self._size(keys))
        roster = wire.encode_roster(
            np.zeros(params.num_invited, dtype=np.uint32),
            _records(self._near, wire.ADVERTISEMENT_SIZE),
            params,
        )
        boxes = _records(self._near, wire.box_size(params))
        shares = ShareKeys((bytes(DIGEST_SIZE),) * (2 * len(params.columns)), boxes)
        yield Trip("shares", _relayed(roster), self._size(shares))
        links = _records(self._near, wire.receipt_size(params))
        delivered = wire.encode(ShareDelivery(self._everyone, boxes), params)
        yield Trip("receipts", _relayed(delivered), self._size(ShareReceipt(links)))

    def sum_of(self, slot: int, question: Query | Threshold) -> Iterator[Trip]:
        """The exchanges of one secure sum."""
        params, everyone = self._params, self._everyone
        spec = params.slots[slot]
        signature = self._size(ConsistencySignature(slot, bytes(SIGNATURE_SIZE)))
        check = _relayed(wire.encode(ConsistencyCheck(slot, everyone), params))
        signatures = _records(params.threshold, SIGNATURE_SIZE)
        tags = {} if self._is_open else _records(self._near, TAG_SIZE)
        opened = OpenSlot(slot, everyone, tags)
        proof, rest = _long(self._proof)
        asked = Ask(question, wire.encode(opened, params), proof)
        yield Trip("masked vectors", len(envelopes.encode(asked)) + rest, self._masked(slot, spec))
        self._is_open = True
        self._proof = self._proof_of(slot, spec)
        if spec.whole:
            return
        yield Trip("signed lists", check, signature)
        request = wire.encode(UnmaskRequest(slot, everyone, signatures), params)
        yield Trip("shares to unmask", _relayed(request), self._size(self._shares(slot)))

    def _masked(self, slot: int, spec: SlotSpec) -> int:
        packed, rest = _long(spec.packed_size)
        committed = bytes(COMMITTED_SIZE) if spec.verified else b""
        proof = bytes(spec.proof_size)
        return self._size(MaskedInput(slot, packed, committed, proof)) + rest

    def _proof_of(self, slot: int, spec: SlotSpec) -> int:
        """Bytes of the proof of a slot's sum; 0 if it has none."""
        if not spec.verified:
            return 0
        packed = bytes(spec.packed_size)
        committed = _records(self._params.num_invited, COMMITTED_SIZE)
        return self._size(SumOpening(slot, packed, committed))

    def _shares(self, slot: int) -> UnmaskShares:
        held = self._params.num_holders
        return UnmaskShares(
            slot,
            np.zeros(held, dtype=np.uint32),
            np.zeros(held, dtype=np.uint8),
            np.zeros((held, shamir.NUM_LIMBS), dtype=np.uint32),
        )

    def _size(self, message: Message) -> int:
        return len(wire.encode(message, self._params))


def _records(num: int, size: int) -> Records:
    """That many byte strings of zeros."""
    return Records(np.arange(num), np.zeros((num, size), dtype=np.uint8))


def _relayed(session: bytes) -> int:
    return len(envelopes.encode(Relay(session)))


def _long(size: int) -> tuple[bytes, int]:
    """Bytes that are encoded like `size` of them, and how many are missing from them.

    So nothing of the size of a model is made.
    """
    kept = min(size, _LONG)
    return bytes(kept), size - kept
