"""What lies between an evil server, which speaks of a session, and devices that play a round."""

import numpy as np
from round_parties import RoundParties

from protocol import wire
from protocol.client import Task
from protocol.messages import Announce, Ask, Relay
from secagg import wire as session_wire
from secagg.messages import OpenSlot, SessionOpen

DEAD_MODEL = b"a model whose gradient is zero"


class RoundNetwork(RoundParties):
    """Puts a session's messages into the envelopes of a lying server.

    Args:
        config: The round.
        questions: The query or threshold that each device is shown, in every slot.
        models: The model that each device is shown.
    """

    def __init__(self, config, questions, models, **settings):
        super().__init__(config, **settings)
        self.models, self.questions = models, questions

    def carry(self, client, data):
        """A device's answer to a message of the session."""
        match session_wire.decode(data, self.params):
            case SessionOpen():
                envelope = Announce(self.config, self.models[client], data)
            case OpenSlot():
                envelope = Ask(self.questions[client], data)
            case _:
                envelope = Relay(data)
        return self.answer(client, wire.encode(envelope))

    def do(self, client, reply):
        if reply is Task.TRAIN and self.clients[client].model == DEAD_MODEL:
            return self.clients[client].supply_update(
                np.zeros(self.config.update_length, np.float32)
            )
        return super().do(client, reply)
