"""A device's side of a round: a state machine that takes envelopes and returns masked messages.

The device keeps its loss to itself. It answers each query under a mask that is bound to the model,
configuration and query it has seen, and it alone decides whether it passes the filter. If the
search is verified, it follows the search by itself, and believes no sum, question or threshold that
it cannot derive. It answers for each model in one round, and in another only to a server that it
takes to follow the protocol, with the same settings (`participations`). What it sends does not show
whether it passed, because the vector always has the same size. The time at which it sends may show
more; see docs/limitations.md.

A session may contain several rounds, one for each conformity level. The device answers them one
after another; see `deltafl.protocol.levels`.

Spec: §12.8, §12.11.
"""

import math
from collections.abc import Sequence
from enum import Enum
from functools import partial
from hashlib import sha256

import numpy as np

from deltafl.protocol import wire
from deltafl.protocol.anonymity import Tail
from deltafl.protocol.configuration import binding
from deltafl.protocol.device import DeviceRound, Update
from deltafl.protocol.errors import SearchError
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask, Envelope, Relay
from deltafl.protocol.participations import Asked, limits_of
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.ballots import Voter
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import (
    TRANSITIONS,
    RoundState,
    SupplyEarlierUpdate,
    SupplyLoss,
    SupplyUpdate,
)
from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    DecodeError,
    LedgerError,
    PeerError,
    Refusal,
    UsageError,
)
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.openings import Prove
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import ClientState, Close, follow
from deltafl.secagg.wire import decode_open, tag_of


class LocalWork(Enum):
    """What the round needs from the device's caller before it can go on.

    Attributes:
        MEASURE_LOSS: measure the loss of each model, then `supply_losses`.
        TRAIN: the device passed the filter: train from `model`, then `supply_update`.
        WAIT: it did not: after the time that training would take, `supply_zeros`.
    """

    MEASURE_LOSS = "measure loss"
    TRAIN = "train"
    WAIT = "wait"


class RoundClient:
    """One device in one round.

    Pass it each envelope with `receive`. It returns bytes to send, a `LocalWork` for the caller, or
    None. After an error it is FAILED and sends nothing more.

    Args:
        client_id: The device's id.
        policy: What the device insists on.
        credentials: Its identity, and how it recognises other devices.
        randomness: Source of every secret.
        noise: Source of the noise of searches and updates; None to use `randomness`.
        primitives: What the device computes with.
        ledger: The models that the device has answered for, and the sessions it answered in. It
            belongs to the device and outlives its rounds; by default, nothing is remembered.
        graph_seed: The session's, if the device knows it; others are refused. A caller who makes it
            the digest of all that a server says beside the announcement has bound that, too, to
            what devices agree on.
        today: The day, in days since any date that stays the same, such as the time since 1970; it
            counts for all of the round. None not to count the day's rounds.

    Attributes:
        models: The bytes of the announced models, one per level, once announced.
        tail: After the threshold of a verified search, the devices that it keeps. None before, in
            other searches, and where all are kept because nothing was asked.
    """

    def __init__(
        self,
        client_id: ClientId,
        policy: RoundPolicy,
        credentials: Credentials,
        randomness: Randomness = system_randomness,
        noise: Randomness | None = None,
        primitives: Primitives = PLAIN,
        ledger: Ledger | None = None,
        graph_seed: bytes | None = None,
        today: int | None = None,
    ) -> None:
        self._state = RoundState.IDLE
        self._graph_seed = graph_seed
        self.models: tuple[bytes, ...] = ()
        self.tail: Tail | None = None
        if ledger is None and policy.max_participations:
            raise UsageError(
                f"max_participations={policy.max_participations} without a ledger: nothing would "
                "be counted; pass the device's own"
            )
        self._ledger = MemoryLedger() if ledger is None else ledger
        self._session = Client(client_id, policy, credentials, randomness, primitives, self._ledger)
        self._apply = primitives.apply
        self._policy = policy
        self._limits = limits_of(policy, today)
        self._randomness = randomness
        self._noise = randomness if noise is None else noise
        self._voter: Voter | None = None
        self._levels: Levels | None = None
        self._opening = b""
        self._tag: bytes | None = None
        self._context = b""
        self._level = 0
        self._devices: tuple[DeviceRound, ...] = ()
        self._follows = False
        self._followed: Followed | None = None
        self._later_cohort: int | None = None
        self._is_waiting = False
        self._passes = False
        self._asked_for_updates = -1, 0, 0  # the slot; devices that were asked, and searched over
        self._summed_tail: Tail | None = None
        self._earlier_tail: Tail | None = None
        self._asked: tuple[Asked, ...] = ()
        self._answered = -1
        self._binding = b""
        self._seen: set[bytes] = set()

    @property
    def state(self) -> RoundState:
        """The round's state."""
        return self._state

    @property
    def level(self) -> int:
        """The current level, counted from 0."""
        return self._level

    @property
    def levels(self) -> Levels | None:
        """What was announced; None before."""
        return self._levels

    @property
    def model(self) -> bytes:
        """The model of the current level; empty before the announcement."""
        return self.models[self._level] if self.models else b""

    @property
    def update_length(self) -> int:
        """Numbers in an update; 0 before the announcement."""
        return 0 if self._levels is None else self._levels.common.update_length

    def receive(self, data: bytes) -> bytes | LocalWork | None:
        """Take one envelope from the server. Repeats and envelopes of other sessions are ignored.

        Raises:
            PeerError: the server broke the protocol or the device's policy; the round is over.
            LedgerError: the device's ledger cannot be used; the round is over.
            UsageError: the round was already over.
        """
        if self.state is RoundState.FAILED:
            raise UsageError("the device has ended this round")
        fingerprint = self._apply(_fingerprint, data)
        if fingerprint in self._seen:
            return None
        try:
            envelope = self._apply(_decode, data)
            if self._tag is not None and tag_of(envelope.session) not in (None, self._tag):
                return None  # delayed in another session
            reply = self._take(envelope)
        except (PeerError, LedgerError):
            self.close()
            raise
        self._seen.add(fingerprint)
        return reply

    def supply_loss(self, loss: float, weight: int) -> bytes:
        """Supply the device's loss under the only model, and its weight; see `supply_losses`."""
        return self.supply_losses((loss,), weight)

    def supply_losses(self, losses: Sequence[float], weight: int) -> bytes:
        """Supply the device's loss under each announced model, and its weight; joins the session.

        A device does not fall silent because of its data: if a loss overflows, or cannot be
        measured, supply it as NaN. It counts as the largest (docs/spec.md, 12.4).

        Args:
            losses: F_k(w) for each of `models`.
            weight: n_k ≥ 0.

        Returns:
            The message to send.

        Raises:
            EncodingError: the weight is negative or no whole number; nothing changed.
            LedgerError: the device's ledger cannot be used; the round is over.
            PeerError: the session falls short of the device's policy; the round is over.
            UsageError: no loss is due, or there is not one loss per model; nothing changed.
        """
        self._require(SupplyLoss)
        rounds = self._given().rounds
        if len(losses) != len(rounds):
            raise UsageError(f"{len(losses)} losses for {len(rounds)} models: give one for each")
        devices = tuple(
            DeviceRound.measured(config, loss, weight)
            for config, loss in zip(rounds, losses, strict=True)
        )
        try:
            reply = self._session.receive(self._opening)
        except (PeerError, LedgerError):
            self.close()
            raise
        if reply is None:
            raise UsageError("the session had begun before the loss was known")
        self._devices = devices
        self._move(SupplyLoss)
        return reply

    def supply_update(self, update: Update | None) -> bytes:
        """Supply the update of `model` that the device has trained; return the message to send.

        A device does not fall silent because of its data: if training fails or takes too long,
        supply None. It counts as an update with a number that is not finite: as zeros, all of them
        clipped (docs/spec.md, 12.4). `deltafl.protocol.answering` does so.

        Args:
            update: Δ_k, float32 of shape (update_length,); or None.

        Raises:
            EncodingError: the update has another shape or type; nothing changed.
            UsageError: no update is due, or the device did not pass the filter; nothing changed.
        """
        self._require_update(passed=True)
        if update is None:
            length = self._measured().config.update_length
            update = np.full(length, math.nan, dtype=np.float32)
        return self._contribute_update(update)

    def supply_zeros(self) -> bytes:
        """Contribute nothing, as a device does that did not pass the filter.

        Returns:
            The message to send; it looks like that of a device that has trained.

        Raises:
            UsageError: no update is due, or the device passed the filter; nothing changed.
        """
        self._require_update(passed=False)
        return self._contribute_update(None)

    def close(self) -> None:
        """End the round for good and discard its secrets."""
        if self.state is not RoundState.FAILED:
            self._move(Close)
        self._session.close()
        self._devices, self._voter = (), None

    def _take(self, envelope: Envelope) -> bytes | LocalWork | None:
        event = type(envelope.question) if isinstance(envelope, Ask) else type(envelope)
        if event not in TRANSITIONS[self.state]:
            raise PeerError(Refusal.OUT_OF_ORDER, f"{event.__name__} in state {self.state}")
        match envelope:
            case Announce():
                self._check_announcement(envelope)
                self._move(event)
                return LocalWork.MEASURE_LOSS
            case Relay(session):
                self._move(event)
                return self._relay(session)
            case Ask(question, session, opening):
                members = self._session.num_members
                if self._level > 0 and self._later_cohort is None:
                    self._later_cohort = members
                self._check_opening(opening)
                self._session.receive(session)
                if self._session.state is not ClientState.OPENED:
                    raise PeerError(Refusal.OUT_OF_ORDER, "a question that opens no slot")
                self._check_slot(question)
                self._check_search(question, members)
                self._binding = binding(self._context, question)
                device = self._measured()
                answer = _answer(device, question, self._noise)
                self._admit_model()
                self._move(event)
                self._is_waiting = answer is not None
                if isinstance(question, Query) and answer is not None:
                    return self._mask(answer, self._prover(question))
                # The state is the same whether it passes or not, so that the server cannot tell by
                # another message what the device does next.
                self._passes = isinstance(question, Threshold) and device.passes(question)
                return LocalWork.TRAIN if self._passes else LocalWork.WAIT

    def _relay(self, session: bytes) -> bytes | None:
        reply = self._session.receive(session)
        # Only a question may open a slot, because the cohort is then compared with the last one.
        if self._session.state is ClientState.OPENED:
            raise PeerError(Refusal.OUT_OF_ORDER, "a slot opened without a question")
        self._check_cohort(self._session.num_members)
        self._check_tail(self._session.num_members)
        return reply

    def _check_announcement(self, announced: Announce) -> None:
        """Refuse a session that does not match the announced configurations and models."""
        levels = announced.levels
        self._policy.check_number(levels)  # before anything is computed for each of them
        try:
            params = self._apply(decode_open, announced.session).params
        except DecodeError as error:
            raise PeerError(Refusal.MALFORMED, str(error)) from None
        context, common = self._apply(_context, announced), levels.common
        if params.context != context:
            raise PeerError(Refusal.MALFORMED, "the session is not bound to this model and round")
        if self._graph_seed not in (None, params.graph_seed):
            raise PeerError(Refusal.MALFORMED, "the graph seed is not the one that was expected")
        if params.slots != levels.slots() or params.num_invited != common.cohort_size:
            raise PeerError(Refusal.MALFORMED, "the session's slots are not those of this round")
        each, asked = self._apply(_split, announced), self._apply(_asked, announced)
        if len({one.model for one in asked}) != len(asked):
            # Both would keep a tail of the same losses, and the difference of the two sums would
            # be a sum over only the devices between the two thresholds.
            raise PeerError(Refusal.POLICY, "two levels have the same model")
        for one in asked:
            one.check(self._ledger, self._policy.rounds_per_model)
        self._policy.check_round(levels, params)  # before anything is asked for or worked out
        for limit in self._limits:
            limit.check_left(self._ledger, len(levels.rounds))
        self._follows = levels.can_be_followed or common.search.verified
        self._levels, self._opening, self.models = levels, announced.session, each
        self._context, self._tag = context, params.tag
        self._asked = asked

    @property
    def _level_slot(self) -> int:
        """The open slot, counted from the first slot of the current level."""
        return self._session.slot - self._given().first_slot(self._level)

    def _check_slot(self, question: object) -> None:
        """Refuse a question in the wrong kind of slot, or in a slot of another level."""
        last = self._given().rounds[self._level].update_slot
        is_update = self._level_slot == last
        if is_update == isinstance(question, Query) or self._level_slot > last:
            raise PeerError(
                Refusal.OUT_OF_ORDER, f"{type(question).__name__} in slot {self._session.slot}"
            )

    def _check_opening(self, opening: bytes) -> None:
        """Take the proof of the last query's sum, and go on with the search that it gives."""
        if not opening:
            return
        if not (self._follows and self._is_waiting):
            raise PeerError(Refusal.OUT_OF_ORDER, "a proof of a sum that was not waited for")
        self._session.receive(opening)
        proved = self._session.proved
        if proved is None or proved.slot != self._session.slot:
            raise PeerError(Refusal.OUT_OF_ORDER, "a proof that proves no sum")
        self._followed = self._search.after(proved.vector, self._session.num_members)
        self._is_waiting = False

    @property
    def _search(self) -> Followed:
        """The search of the current level, as far as the device follows it."""
        if self._followed is None:
            self._followed = Followed.begin(self._given().rounds[self._level])
        return self._followed

    def _check_cohort(self, num_left: int) -> None:
        """Refuse to lose a device after the first level to a server that may be lying about it.

        Levels of nearly equal models have nearly equal sums. Their difference is what a device gave
        that is in one and not in the other.
        """
        fewest = self._later_cohort
        if fewest is not None and num_left < fewest and self._policy.expects_active:
            raise PeerError(Refusal.NOT_AGREED, f"{num_left} of the {fewest} of the first level")

    def _check_search(self, question: Query | Threshold, members: int) -> None:
        """Refuse a question that may not be asked now, of these devices.

        Args:
            question: What is asked.
            members: The devices that were left before.
        """
        asked, needed = self._session.num_members, self._given().common.search.min_cohort
        if isinstance(question, Query) and asked < needed:
            raise PeerError(
                Refusal.COHORT_TOO_SMALL, f"a query over {asked} devices, fewer than {needed}"
            )
        self._check_cohort(asked)
        if not self._follows:
            return
        followed, shrank = self._search, asked < members
        if self._is_waiting and (isinstance(question, Query) or not shrank):
            raise PeerError(Refusal.UNPROVED, "the sum of the query before has no proof")
        if isinstance(question, Query):
            followed.check_query(question)
            return
        self.tail = followed.check_threshold(question, asked, shrank=shrank)
        self._earlier_tail = self._summed_tail
        searched = asked if self.tail is None else followed.num_searched
        self._asked_for_updates = self._session.slot, asked, searched
        self._check_tail(asked)

    def _check_tail(self, num_left: int) -> None:
        """Refuse a sum of updates over too few devices, if all that were lost were in the tail.

        A server that waits for the updates and then calls devices lost would otherwise cut a tail
        of many down to one. Likewise, refuse it if it may differ by too few from the tail of the
        level before: under nearly equal models, the difference of the two sums is theirs.

        Args:
            num_left: Devices that are left in the session.
        """
        slot, asked, searched = self._asked_for_updates
        if slot < 0 or self._session.slot != slot:
            return  # no updates are being summed, or their tail is not known
        self._summed_tail = (self.tail or Tail(asked, asked)).among(searched, asked, num_left)
        needed = self._policy.min_tail(self._given().common.cohort_size)
        if self._summed_tail.fewest < needed:
            raise PeerError(
                Refusal.TAIL_TOO_SMALL, f"{self._summed_tail.fewest} devices, fewer than {needed}"
            )
        if self._earlier_tail is not None and self._given().can_be_followed:
            apart = self._earlier_tail.apart(self._summed_tail)
            if apart < needed:
                raise PeerError(
                    Refusal.TAIL_TOO_SMALL,
                    f"{apart} devices may be the difference from the level before, fewer than "
                    f"{needed}",
                )

    def _contribute_update(self, update: Update | None) -> bytes:
        event = self._supply_event
        reply = self._mask(self._measured().contribution(update, self._noise))
        self._move(event)
        if event is SupplyEarlierUpdate:
            self._level, self._followed = self._level + 1, None
        return reply

    def _mask(self, vector: Vector, prove: Prove | None = None) -> bytes:
        """Answer the open question."""
        return self._session.contribute(vector, self._binding, prove)

    def _prover(self, query: Query) -> Prove | None:
        """Proves the answer to a query of this level; None if answers come without a proof."""
        device = self._measured()
        config = device.config.search_config
        if not config.search.proved:
            return None
        if self._voter is None:  # the same at all levels
            weight = config.search.weighting.of(device.weight)
            self._voter = Voter.drawn(config, weight, self._randomness)
        return partial(
            self._voter.prove,
            config,
            query,
            device.tick,
            randomness=self._randomness,
            is_first=self._level_slot == 0,
        )

    @property
    def _supply_event(self) -> type:
        """The event of an update at the current level."""
        is_last = self._levels is None or self._level + 1 == len(self._levels.rounds)
        return SupplyUpdate if is_last else SupplyEarlierUpdate

    def _require_update(self, *, passed: bool) -> None:
        """Refuse a caller's update where none is due, or zeros are, or the other way round."""
        self._require(self._supply_event)
        if passed != self._passes:
            due = "an update" if self._passes else "zeros"
            raise UsageError(f"{due} must be supplied: see what `receive` returned")

    def _admit_model(self) -> None:
        """Note that the device answers for the model of this level.

        The first question decides it, before the device looks at its data: what it answers, and
        when, must not show in what it remembers.
        """
        if self._answered < self._level:
            asked, most = self._asked[self._level], self._policy.rounds_per_model
            asked.admit(self._ledger, most, self._limits, self._session.admit)
            self._answered = self._level

    def _require(self, event: type) -> None:
        """Refuse a caller's event that is illegal in the state."""
        follow(TRANSITIONS, self._state, event)

    def _move(self, event: type) -> None:
        self._state = follow(TRANSITIONS, self._state, event)

    def _given(self) -> Levels:
        if self._levels is None:
            raise UsageError("no round has been announced")
        return self._levels

    def _measured(self) -> DeviceRound:
        if not self._devices:
            raise UsageError("the device's loss is not known yet")
        return self._devices[self._level]


def _fingerprint(data: bytes) -> bytes:
    """A digest by which a repeated envelope is recognised; 32 bytes."""
    return sha256(data).digest()


def _split(announced: Announce) -> tuple[bytes, ...]:
    """Each level's model."""
    return announced.levels.split(announced.models)


def _context(announced: Announce) -> bytes:
    """The context of a session of these levels and models."""
    return announced.levels.context(announced.models)


def _asked(announced: Announce) -> tuple[Asked, ...]:
    """What a ledger remembers of each level's model. Spec: §12.13."""
    each = zip(announced.levels.rounds, _split(announced), strict=True)
    return tuple(Asked.of(config, model) for config, model in each)


def _decode(data: bytes) -> Envelope:
    try:
        return wire.decode(data)
    except DecodeError as error:
        raise PeerError(Refusal.MALFORMED, str(error)) from None


def _answer(device: DeviceRound, question: Query | Threshold, noise: Randomness) -> Vector | None:
    """What the device answers to a query; None to a threshold."""
    if isinstance(question, Threshold):
        return None
    try:
        return device.answer(question, noise)
    except SearchError as error:
        raise PeerError(Refusal.MALFORMED, str(error)) from None
