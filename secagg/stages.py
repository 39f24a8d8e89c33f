"""The steps of a session, in order, and the step at which a device vanishes from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from deltafl.secagg.errors import Fault
from deltafl.secagg.params import ClientId


class Stage(IntEnum):
    """The messages a device sends, in their order; LIST and CONFIRM only in signed sessions.

    LIST comes before a whole slot on whose members nobody has agreed yet. CONFIRM and UNMASK come
    in tolerant slots only.
    """

    ADVERTISE = 0
    SHARE = 1
    RECEIPT = 2
    LIST = 3
    MASK = 4
    CONFIRM = 5
    UNMASK = 6


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a device: its stage, and its slot if the stage has one (else 0).

    Spec: §10.2.
    """

    stage: Stage
    slot: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """A key that sorts steps in time: set-up first, then slot by slot."""
        in_slot = self.stage >= Stage.LIST
        return (int(in_slot), self.slot if in_slot else 0, int(self.stage))


@dataclass(frozen=True, slots=True)
class Vanish:
    """When a device drops out of a session.

    Attributes:
        step: The first message that the server does not get in time.
        late: Whether that message still arrives after its round was closed.
    """

    step: Step
    late: bool = False

    def answers(self, step: Step) -> bool:
        """Whether the device's message of `step` reaches the server in time."""
        return step.order < self.step.order


Vanishing = Mapping[ClientId, Vanish]
"""Which devices vanish, and when; the others stay to the end."""


@dataclass(frozen=True, slots=True)
class Drop:
    """How the server lost a device.

    Attributes:
        fault: What was wrong.
        step: The message that was due from the device when it was dropped.
    """

    fault: Fault
    step: Step


@dataclass(frozen=True, slots=True)
class Dispute:
    """A share that two devices disagree about: one of them lies, and nobody can tell which.

    Attributes:
        owner: The device that dealt the share.
        holder: The device that says it got none (at RECEIPT), or returned a wrong one (at UNMASK).
        step: The step at which the dispute arose.
    """

    owner: ClientId
    holder: ClientId
    step: Step
