"""A session in which what is summed next may depend on the sums so far.

All parties live in this process, with real keys, masks and messages: it shows what a service does,
and what its server learns, and it hides nothing from whoever runs it.
"""

from collections.abc import Callable, Mapping

from deltafl.secagg import (
    Client,
    ClientId,
    ClientState,
    DevicePolicy,
    Enrolment,
    Server,
    SessionParams,
    SlotSum,
)
from deltafl.secagg.outgoing import Outgoing
from deltafl.secagg.ring import Vector
from deltafl.secagg.session import NoObserver, Observer, drive
from deltafl.secagg.stages import Vanishing


class AnalysisSession:
    """A session over some devices, whose slots are opened one by one.

    Args:
        params: of the session.
        devices: who is invited.
        policy: what they insist on.
        vanishing: who vanishes, and when.
        observer: watches.

    Raises:
        PeerError: the parameters fall short of the policy.
        SessionAborted: too few devices are left.
    """

    def __init__(
        self,
        params: SessionParams,
        devices: list[ClientId],
        policy: DevicePolicy,
        vanishing: Vanishing,
        observer: Observer | None = None,
    ) -> None:
        policy.check(params)
        enrolment = Enrolment()
        self._observer = observer or NoObserver()
        self._vanishing = vanishing
        self._server = Server(params, devices, enrolment)
        self._clients = {
            device: Client(
                device,
                policy,
                credentials=enrolment.credentials_for(device, params),
                ledger=enrolment.ledger(device),
            )
            for device in devices
        }
        self._exchange_all(self._server.start(), lambda _: None, b"")

    def sum(
        self,
        slot: int,
        answers: Callable[[ClientId], Vector],
        binding: bytes,
        tell: Callable[[], None] = lambda: None,
    ) -> SlotSum | None:
        """Open a slot, and sum what the devices answer; None if a device of a whole slot is gone.

        Args:
            slot: of the session, above every one before.
            answers: what a device contributes; asked once for each that is asked.
            binding: digest of the question, to which the masks are bound.
            tell: called before the slot is opened, if it is.

        Raises:
            SessionAborted: too few devices are left.
        """
        if not self._server.can_sum(slot):
            return None
        tell()
        self._exchange_all(self._server.open_slot(slot, binding), answers, binding)
        if not self._server.has_sum:
            return None
        taken = self._server.take_sum()
        self._observer.revealed(taken)
        return taken

    def _exchange_all(
        self,
        outgoing: Outgoing,
        answers: Callable[[ClientId], Vector | None],
        binding: bytes,
    ) -> None:
        given: Mapping[ClientId, Client] = self._clients

        def answer(device: ClientId, data: bytes) -> bytes | None:
            client = given[device]
            reply = client.receive(data)
            if client.state is ClientState.OPENED:
                vector = answers(device)
                if vector is None:
                    raise RuntimeError("a slot was opened before its question: this is a bug")
                reply = client.contribute(vector, binding)
            return reply

        drive(self._server, outgoing, answer, self._vanishing, self._observer)
