"""The network between a round's server and its devices, some of which drop out.

Only this module moves bytes between the two in a simulation.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, Step
from deltafl.secagg.outgoing import Outgoing
from deltafl.secagg.session import Observer
from deltafl.secagg.stages import Vanishing
from deltafl.sim.cohort.work import CohortWork


class Network:
    """Carries messages, and loses the devices that vanish.

    Args:
        server: the round's.
        clients: the devices' machines.
        work: what the devices do.
        vanishing: which devices drop out, and when.
        observer: sees everything that passes.

    Attributes:
        bytes_up: What all devices have sent.
    """

    def __init__(
        self,
        server: RoundServer,
        clients: Mapping[ClientId, RoundClient],
        work: CohortWork,
        vanishing: Vanishing,
        observer: Observer,
    ) -> None:
        self.bytes_up = 0
        self._server = server
        self._clients = clients
        self._work = work
        self._vanishing = vanishing
        self._observer = observer

    def carry(self, outgoing: Outgoing) -> Outgoing:
        """Deliver the server's messages, let devices work, collect the answers, close the trip.

        A device that drops out at this step does not answer, or answers after the trip was closed.
        All devices begin their work before the server waits for the first. Where a device has to
        work or wait, so have all others, whatever their data. Answers then arrive once all devices
        have a message, in the order of the messages, which therefore does not tell who trains.
        """
        step = self._server.step
        late: list[tuple[ClientId, bytes]] = []
        waiting: list[tuple[ClientId, bytes | LocalWork | None]] = []
        for client in outgoing:
            with self._at_work(None, step):
                data = outgoing[client]
            self._observer.message(sent=True, peer=client, data=data)
            vanish = self._vanishing.get(client)
            if vanish is not None and not (vanish.answers(step) or vanish.late):
                continue
            with self._at_work(client, step):
                reply = self._clients[client].receive(data)
            if isinstance(reply, LocalWork):
                self._begin(client, reply)
            if waiting or isinstance(reply, LocalWork):
                waiting.append((client, reply))
            else:
                self._take(client, reply, step, late)
        for client, reply in waiting:
            made = self._finish(client, reply, step) if isinstance(reply, LocalWork) else reply
            self._take(client, made, step, late)
        with self._at_work(None, step):
            following = self._server.close_round()
        for client, message in late:
            self._observer.message(sent=False, peer=client, data=message)
            self._server.receive(client, message)
        return following

    def _begin(self, client: ClientId, task: LocalWork) -> None:
        if task is LocalWork.MEASURE_LOSS:
            self._work.begin_losses(client, range(len(self._work.models)))
        elif task is LocalWork.TRAIN:
            self._work.begin_update(client, self._clients[client].level)

    def _finish(self, client: ClientId, task: LocalWork, step: Step) -> bytes:
        machine = self._clients[client]
        if task is LocalWork.MEASURE_LOSS:
            levels = range(len(self._work.models))
            losses = [self._work.loss(client, level) for level in levels]
            weight = self._work.weight(client)
            with self._at_work(client, step):
                return machine.supply_losses(losses, weight)
        if task is LocalWork.WAIT:
            with self._at_work(client, step):
                return machine.supply_zeros()
        update = self._work.update(client, machine.level)
        with self._at_work(client, step):
            return machine.supply_update(update)

    def _take(
        self,
        client: ClientId,
        reply: bytes | None,
        step: Step,
        late: list[tuple[ClientId, bytes]],
    ) -> None:
        if reply is None:
            return
        self.bytes_up += len(reply)
        vanish = self._vanishing.get(client)
        if vanish is not None and not vanish.answers(step):
            late.append((client, reply))
            return
        self._observer.message(sent=False, peer=client, data=reply)
        with self._at_work(None, step):
            self._server.receive(client, reply)

    def _at_work(self, party: ClientId | None, step: Step) -> AbstractContextManager[None]:
        return self._observer.working(party, step)
