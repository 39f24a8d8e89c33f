"""The server's side of a round, or of rounds at several levels: asks, collects, learns sums.

Like the session inside it, the server has no clock. Its caller delivers messages with `receive` and
ends each round trip with `close_round`, which returns the next envelopes, until `outcomes` is set.

Spec: §12.9, §12.11.
"""

from collections.abc import Iterable, Sequence

from deltafl.protocol import wire
from deltafl.protocol.configuration import binding
from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.messages import Announce, AnnounceLevels, Ask, Relay
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import (
    ClientId,
    Directory,
    Server,
    SessionAborted,
    SessionParams,
    SlotSum,
    UsageError,
)
from deltafl.secagg.outgoing import Letters, Outgoing
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.stages import Stage, Step
from deltafl.secagg.states import COLLECTED_AT, ServerState


class RoundServer:
    """A round at one or more conformity levels, in one session.

    Args:
        levels: The rounds.
        models: The levels' models, as the bytes that devices get, joined in order.
        params: The session's parameters: slots and context of these levels.
        invited: The cohort.
        warm_starts: For each level, the tick near which η is expected, or None; None if no level
            has one.
        directory: Decides which identity keys to accept; needed for signed sessions.
        primitives: What the server computes with.

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
        warm_starts: Sequence[int | None] | None = None,
        directory: Directory | None = None,
        primitives: Primitives = PLAIN,
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
        self._session = Server(params, invited, directory, primitives)
        if warm_starts is None:
            warm_starts = (None,) * len(levels.rounds)
        self._rounds = LevelRounds(levels, warm_starts)

    @property
    def step(self) -> Step:
        """The message that devices must send next."""
        stage = COLLECTED_AT.get(self._session.state, Stage.MASK)
        return Step(stage, self._rounds.slot if stage >= Stage.MASK else 0)

    def start(self) -> Outgoing:
        """The announcement for the whole cohort."""
        opening = self._session.start()
        session = next(iter(opening.values()))
        if len(self.levels.rounds) == 1:
            announced = wire.encode(Announce(self.levels.common, self._models, session))
        else:
            announced = wire.encode(AnnounceLevels(self.levels, self._models, session))
        return dict.fromkeys(opening, announced)

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Take one message from a device; a bad message never raises an exception."""
        self._session.receive(sender, data)

    def close_round(self) -> Outgoing:
        """End the round trip; return the next envelopes, or none when the round is over."""
        closed = self._session.state
        self.revealed = None
        try:
            relayed = self._session.close_round()
            match closed:
                case ServerState.RECEIPT:
                    return self._ask()
                case ServerState.UNMASK:
                    self.revealed = self._session.take_sum()
                    self._rounds.take(self.revealed)
                    return self._ask()
                case ServerState.MASK if not relayed:
                    self._rounds.lose()
                    return self._ask()
                case _:
                    return Letters(tuple(relayed), lambda c: wire.encode(Relay(relayed[c])))
        except SessionAborted as error:
            self.outcomes = self._rounds.outcomes(self._session.drops, str(error))
            return {}

    def _ask(self) -> Outgoing:
        self._rounds.assemble(len(self._session.remaining))
        question = self._rounds.question
        if question is None:
            self.outcomes = self._rounds.outcomes(self._session.drops)
            return {}
        slot = self._rounds.slot
        opened = self._session.open_slot(slot, binding(self._context, question))
        self._rounds.check_opened(len(opened))
        envelopes = {s: wire.encode(Ask(question, s)) for s in set(opened.values())}
        return {c: envelopes[session] for c, session in opened.items()}
