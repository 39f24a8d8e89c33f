"""A device's side of a round: a machine that takes envelopes and gives masked messages.

It keeps its loss to itself, answers each query under a mask bound to the model, configuration and
query that it has seen, and decides alone whether it passes the filter. Nobody can tell from what it
sends whether it did: it always sends a vector of the same size (when it sends it is another matter,
see docs/limitations.md).

Spec: §12.8.
"""

from enum import Enum
from hashlib import sha256

from protocol import wire
from protocol.configuration import binding
from protocol.device import DeviceRound, Update
from protocol.errors import SearchError
from protocol.messages import Announce, Ask, Envelope, Relay
from protocol.quantile.search import Query
from protocol.states import TRANSITIONS, RoundState, SupplyLoss, SupplyUpdate
from secagg import (
    Client,
    ClientId,
    Credentials,
    DecodeError,
    DevicePolicy,
    PeerError,
    Refusal,
    UsageError,
)
from secagg.randomness import Randomness, system_randomness
from secagg.ring import Vector
from secagg.states import ClientState
from secagg.wire import decode_open, tag_of


class Task(Enum):
    """What the device's caller has to do before the round goes on."""

    MEASURE_LOSS = "measure loss"
    TRAIN = "train"


class RoundClient:
    """One device in one round.

    Feed it with `receive`. It returns bytes to send, a `Task` for the caller, or None. After an
    error it is FAILED and says nothing more.

    Args:
        client_id: The device's id.
        policy: What the device insists on.
        randomness: Source of every secret.
        credentials: What signed sessions need; without them, the device refuses those.
        noise: Source of the noise of `noisy`; None for `randomness`.

    Attributes:
        state: Where the round stands.
        model: The announced model's bytes, once announced.
    """

    def __init__(
        self,
        client_id: ClientId,
        policy: DevicePolicy,
        randomness: Randomness = system_randomness,
        credentials: Credentials | None = None,
        noise: Randomness | None = None,
    ) -> None:
        self.state = RoundState.IDLE
        self.model = b""
        self._session = Client(client_id, policy, randomness, credentials)
        self._policy = policy
        self._noise = randomness if noise is None else noise
        self._announced: Announce | None = None
        self._tag: bytes | None = None
        self._context = b""
        self._device: DeviceRound | None = None
        self._binding = b""
        self._seen: set[bytes] = set()

    def receive(self, data: bytes) -> bytes | Task | None:
        """Take one envelope of the server. Repetitions and those of other sessions are ignored.

        Raises:
            PeerError: the server broke the protocol or the device's policy; the round is over.
            UsageError: the round was over before.
        """
        if self.state is RoundState.FAILED:
            raise UsageError("the device has ended this round")
        fingerprint = sha256(data).digest()
        if fingerprint in self._seen:
            return None
        try:
            reply = self._take(_decode(data))
        except PeerError:
            self.close()
            raise
        self._seen.add(fingerprint)
        return reply

    def supply_loss(self, loss: float, weight: int) -> bytes:
        """Give the device's loss under the announced model and its weight; joins the session.

        Args:
            loss: F_k(w), finite.
            weight: n_k ≥ 0.

        Returns:
            The message to send.

        Raises:
            EncodingError: the loss is NaN or infinite, or the weight negative; nothing changed.
            PeerError: the session falls short of the device's policy; the round is over.
            UsageError: no loss is asked for; nothing changed.
        """
        following = self._following(SupplyLoss)
        announced = self._given()
        device = DeviceRound.measured(announced.config, loss, weight)
        try:
            reply = self._session.receive(announced.session)
        except PeerError:
            self.close()
            raise
        if reply is None:
            raise UsageError("the session had begun before the loss was known")
        self._device, self.state = device, following
        return reply

    def supply_update(self, update: Update) -> bytes:
        """Give the update that the device has trained; returns the message to send.

        Raises:
            EncodingError: the update does not fit the round or is not finite; nothing changed.
            UsageError: no update is asked for; nothing changed.
        """
        return self._contribute_update(update)

    def close(self) -> None:
        """End the round for good and let go of its secrets."""
        self.state = RoundState.FAILED
        self._session.close()
        self._device = None

    def _take(self, envelope: Envelope) -> bytes | Task | None:
        if self._tag is not None and tag_of(envelope.session) not in (None, self._tag):
            return None  # delayed in another session
        event = type(envelope.question) if isinstance(envelope, Ask) else type(envelope)
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise PeerError(Refusal.OUT_OF_ORDER, f"{event.__name__} in state {self.state}")
        match envelope:
            case Announce():
                self._check_announcement(envelope)
                self.state = following
                return Task.MEASURE_LOSS
            case Relay(session):
                return self._relay(session)
            case Ask(question, session):
                members = self._session.num_members
                self._session.receive(session)
                if self._session.state is not ClientState.OPENED:
                    raise PeerError(Refusal.OUT_OF_ORDER, "a question that opens no slot")
                self._check_slot(question)
                self._check_search(question, members)
                self._binding = binding(self._context, question)
                device = self._measured()
                if isinstance(question, Query):
                    return self._mask(_answer(device, question, self._noise))
                self.state = following
                return Task.TRAIN if device.passes(question) else self._contribute_update(None)

    def _relay(self, session: bytes) -> bytes | None:
        reply = self._session.receive(session)
        # Only a question may open a slot: what it is over is compared with the cohort before.
        if self._session.state is ClientState.OPENED:
            raise PeerError(Refusal.OUT_OF_ORDER, "a slot opened without a question")
        return reply

    def _check_announcement(self, announced: Announce) -> None:
        """Refuse a session that is not the one of this configuration and model."""
        config = announced.config
        try:
            params = decode_open(announced.session).params
        except DecodeError as error:
            raise PeerError(Refusal.MALFORMED, str(error)) from None
        context = config.context(announced.model)
        if params.context != context:
            raise PeerError(Refusal.MALFORMED, "the session is not bound to this model and round")
        if params.slots != config.slots() or params.num_invited != config.cohort_size:
            raise PeerError(Refusal.MALFORMED, "the session's slots are not those of this round")
        if config.noise is not None:
            config.noise.check(params, self._policy, config.min_search_cohort)
        self._announced, self._context, self.model = announced, context, announced.model
        self._tag = params.tag

    def _check_slot(self, question: object) -> None:
        config = self._given().config
        is_update = self._session.slot == config.update_slot
        if is_update == isinstance(question, Query):
            raise PeerError(
                Refusal.OUT_OF_ORDER, f"{type(question).__name__} in slot {self._session.slot}"
            )

    def _check_search(self, question: object, members: int) -> None:
        """Refuse a query over too few devices, or after the first over fewer than before."""
        if not isinstance(question, Query):
            return
        asked, needed = self._session.num_members, self._given().config.min_search_cohort
        if asked < needed:
            raise PeerError(
                Refusal.COHORT_TOO_SMALL, f"a query over {asked} devices, fewer than {needed}"
            )
        if self._session.slot > 0 and asked < members:
            raise PeerError(Refusal.NOT_WHOLE, "a query over fewer devices than the one before")

    def _contribute_update(self, update: Update | None) -> bytes:
        following = self._following(SupplyUpdate)
        reply = self._mask(self._measured().contribution(update))
        self.state = following
        return reply

    def _mask(self, vector: Vector) -> bytes:
        return self._session.contribute(vector, self._binding)

    def _following(self, event: type) -> RoundState:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise UsageError(f"{event.__name__} in state {self.state}")
        return following

    def _given(self) -> Announce:
        if self._announced is None:
            raise UsageError("no round has been announced")
        return self._announced

    def _measured(self) -> DeviceRound:
        if self._device is None:
            raise UsageError("the device's loss is not known yet")
        return self._device


def _decode(data: bytes) -> Envelope:
    try:
        return wire.decode(data)
    except DecodeError as error:
        raise PeerError(Refusal.MALFORMED, str(error)) from None


def _answer(device: DeviceRound, query: Query, noise: Randomness) -> Vector:
    try:
        return device.answer(query, noise)
    except SearchError as error:
        raise PeerError(Refusal.MALFORMED, str(error)) from None
