"""The server's side of a round, or of rounds at several levels: asks, collects, learns sums.

Like the session inside it, the server has no clock. Its caller delivers messages with `receive` and
ends each round trip with `close_round`, which returns the next envelopes, until `outcomes` is set.

Spec: §12.9, §12.11.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from deltafl.protocol import wire
from deltafl.protocol.configuration import binding
from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.ballots import admits
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch, RoundOutcome, limited_to
from deltafl.protocol.selection import Threshold
from deltafl.secagg import (
    ClientId,
    Directory,
    Server,
    SessionAborted,
    SessionParams,
    SlotSum,
    UsageError,
)
from deltafl.secagg.messages import Letters, Outgoing
from deltafl.secagg.openings import Check
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.states import COLLECTED_AT, ServerState, Stage, Step


class RoundServer:
    """A round at one or more conformity levels, in one session.

    Args:
        levels: The rounds.
        models: The levels' models, as the bytes that devices get, joined in order.
        params: The session's parameters: slots and context of these levels.
        invited: The cohort.
        directory: Decides which identity keys to accept.
        primitives: What the server computes with.
        keeps_cohort: Whether devices insist that nobody is lost after the first level.
        lost: What earlier rounds over these models have revealed, level by level, with which this
            one goes on; only devices of their searches take part. Who plays another round over a
            model and leaves it out searches twice. Devices that expect an active server refuse.

    Attributes:
        outcomes: The outcome of each level; None while the session goes on.
        revealed: The sum that the last `close_round` revealed; None if it revealed none.

    Raises:
        UsageError: the session does not match these levels and models.
    """

    def __init__(
        self,
        levels: Levels,
        models: bytes,
        params: SessionParams,
        invited: Iterable[ClientId],
        directory: Directory,
        primitives: Primitives = PLAIN,
        *,
        keeps_cohort: bool = False,
        lost: Sequence[LostSearch] = (),
    ) -> None:
        context, cohort_size = levels.context(models), levels.common.cohort_size
        if params.context != context or params.slots != levels.slots():
            raise UsageError("the session's context and slots are not those of this round")
        if params.num_invited != cohort_size:
            raise UsageError(
                f"num_invited={params.num_invited} of the session is not "
                f"cohort_size={cohort_size} of the round"
            )
        self.levels = levels
        self.outcomes: tuple[RoundOutcome, ...] | None = None
        self.revealed: SlotSum | None = None
        self._models = models
        self._context = context
        self._opening = b""
        self._weights: dict[int, bytes] = {}  # what devices committed to, by position
        ids = tuple(invited)
        self._session = Server(params, ids, directory, primitives)
        self._rounds = LevelRounds(levels, keeps_cohort=keeps_cohort, lost=lost)
        self._barred = frozenset(ids) - limited_to(lost, ids)

    @property
    def step(self) -> Step:
        """The message that devices must send next."""
        stage = COLLECTED_AT.get(self._session.state, Stage.MASK)
        return Step(stage, self._rounds.slot if stage >= Stage.LIST else 0)

    @property
    def awaits_updates(self) -> bool:
        """Whether some devices have to train before they send the next message."""
        asked = isinstance(self._rounds.question, Threshold)
        return asked and self.step.stage is Stage.MASK

    def start(self) -> Outgoing:
        """The announcement for the whole cohort, or for those of it who may go on."""
        opening = self._session.start()
        session = next(iter(opening.values()))
        announced = wire.encode(Announce(self.levels, self._models, session))
        return dict.fromkeys((c for c in opening if c not in self._barred), announced)

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Take one message from a device; a bad message never raises an exception."""
        if sender not in self._barred:
            self._session.receive(sender, data)

    def close_round(self) -> Outgoing:
        """End the round trip; return the next envelopes, or none when the round is over."""
        closed = self._session.state
        self.revealed = None
        try:
            outgoing = self._session.close_round()
            if self._session.has_sum:
                return self._take_sum()
            match closed:
                case ServerState.RECEIPT:
                    return self._ask()
                case ServerState.LIST if outgoing:
                    return self._question(outgoing)
                case ServerState.LIST | ServerState.MASK if not outgoing:
                    self._rounds.lose()
                    return self._ask()
                case _:
                    if closed is ServerState.MASK:
                        self._rounds.check_tail(self._session.num_contributed)
                    return _relayed(outgoing)
        except SessionAborted as error:
            self.outcomes = self._rounds.outcomes(self._session.drops, str(error))
            return {}

    def _take_sum(self) -> Outgoing:
        self.revealed = revealed = self._session.take_sum()
        if self._session.params.slots[revealed.slot].verified and revealed.opening is None:
            raise SessionAborted(
                "a device has committed to another answer than it sent, so the sum of a query "
                "cannot be proved; nobody can tell which device it was"
            )
        self._rounds.take(revealed)
        return self._ask(revealed.opening or b"")

    def _ask(self, opening: bytes = b"") -> Outgoing:
        rounds, session = self._rounds, self._session
        rounds.assemble(len(session.remaining))
        if rounds.question is not None and not session.can_sum(rounds.slot):
            rounds.lose()
        question = rounds.question
        if question is None:
            self.outcomes = rounds.outcomes(session.drops)
            return {}
        self._opening = opening
        opened = session.open_slot(
            rounds.slot, binding(self._context, question), self._check_of(question)
        )
        rounds.check_opened(tuple(opened))
        return _relayed(opened) if session.state is ServerState.LIST else self._question(opened)

    def _check_of(self, question: Query | Threshold) -> Check | None:
        """Whether an answer is proved to be valid; None if answers come without a proof."""
        rounds = self._rounds
        config = self.levels.rounds[rounds.level]
        if not isinstance(question, Query) or not config.search.proved:
            return None
        return partial(
            admits,
            config.search_config,
            question,
            self._weights,
            is_first=rounds.slot == self.levels.first_slot(rounds.level),
        )

    def _question(self, opened: Outgoing) -> Outgoing:
        """The question of the open slot, with the messages that open it."""
        question = self._rounds.question
        if question is None:
            raise UsageError("a slot was opened, and there is nothing to ask")
        opening, written = self._opening, dict[bytes, bytes]()

        def write(client: ClientId) -> bytes:
            session = opened[client]
            if session not in written:
                # Most often all get the same message; if not, one is kept at a time.
                written.clear()
                written[session] = wire.encode(Ask(question, session, opening))
            return written[session]

        return Letters(tuple(opened), write)


def _relayed(outgoing: Outgoing) -> Outgoing:
    return Letters(tuple(outgoing), lambda c: wire.encode(Relay(outgoing[c])))
