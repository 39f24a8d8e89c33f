"""The server's side of a round: asks, collects masked messages, learns sums.

As the session inside, it owns no time: its caller delivers messages with `receive` and ends each
round trip with `close_round`, which returns the next envelopes, until `outcome` is there.

Spec: §12.9.
"""

from collections.abc import Iterable

from protocol import wire
from protocol.configuration import RoundConfig, binding
from protocol.messages import Announce, Ask, Relay
from protocol.round import Round, RoundOutcome
from secagg import ClientId, Directory, Server, SessionAborted, SessionParams, SlotSum, UsageError
from secagg.outgoing import Letters, Outgoing
from secagg.stages import Stage, Step
from secagg.states import COLLECTED_AT, ServerState


class RoundServer:
    """One round.

    Args:
        config: The round.
        model: The model w, as the bytes that devices get.
        params: The session's parameters: slots and context of this round.
        invited: The cohort.
        warm_start: Tick near which η is expected; None for none.
        directory: Whose identities to accept; needed for signed sessions.

    Attributes:
        outcome: What the round has come to; None while it goes on.
        revealed: The sum that the last `close_round` has revealed; None where it has not.

    Raises:
        UsageError: the session is not the one of this round and model.
    """

    def __init__(
        self,
        config: RoundConfig,
        model: bytes,
        params: SessionParams,
        invited: Iterable[ClientId],
        warm_start: int | None = None,
        directory: Directory | None = None,
    ) -> None:
        context = config.context(model)
        if params.context != context or params.slots != config.slots():
            raise UsageError("the session's context and slots are not those of this round")
        if params.num_invited != config.cohort_size:
            raise UsageError(
                f"num_invited={params.num_invited} of the session is not "
                f"cohort_size={config.cohort_size} of the round"
            )
        self.config = config
        self.outcome: RoundOutcome | None = None
        self.revealed: SlotSum | None = None
        self._model = model
        self._context = context
        self._session = Server(params, invited, directory)
        self._round = Round(config, warm_start)

    @property
    def step(self) -> Step:
        """The message that devices are to send next."""
        stage = COLLECTED_AT.get(self._session.state, Stage.MASK)
        return Step(stage, self._round.slot if stage >= Stage.MASK else 0)

    def start(self) -> Outgoing:
        """The announcement for the whole cohort."""
        opening = self._session.start()
        data = wire.encode(Announce(self.config, self._model, next(iter(opening.values()))))
        return dict.fromkeys(opening, data)

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Take one message of a device; what is wrong with it never raises."""
        self._session.receive(sender, data)

    def close_round(self) -> Outgoing:
        """End the round trip; the next envelopes, none when the round is over."""
        closed = self._session.state
        self.revealed = None
        try:
            relayed = self._session.close_round()
            match closed:
                case ServerState.RECEIPT:
                    return self._ask()
                case ServerState.UNMASK:
                    self.revealed = self._session.take_sum()
                    self._round.take(self.revealed)
                    return self._ask()
                case ServerState.MASK if not relayed:
                    self._round.lose()
                    return self._ask()
                case _:
                    return Letters(tuple(relayed), lambda c: wire.encode(Relay(relayed[c])))
        except SessionAborted as error:
            self.outcome = self._round.outcome(self._session.drops, str(error))
            return {}

    def _ask(self) -> Outgoing:
        self._round.assemble(len(self._session.remaining))
        question = self._round.question
        if question is None:
            self.outcome = self._round.outcome(self._session.drops)
            return {}
        slot = self._round.slot
        opened = self._session.open_slot(slot, binding(self._context, question))
        self._round.check_opened(len(opened))
        return {c: wire.encode(Ask(question, session)) for c, session in opened.items()}
