"""Attacks with lists of survivors: which devices are told that which others dropped out."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from deltafl.secagg import Client, DevicePolicy, Refusal, signing
from deltafl.secagg.errors import present
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import UnmaskRequest, UnmaskShares
from deltafl.secagg.states import CLIENT_TRANSITIONS, ClientState
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_session import ACTIVE_POLICY, POLICY, Devices, make_params
from deltafl.sim.inspect.attacks.replaced import replaced

_ACTIVE = replace(ACTIVE_POLICY, min_cohort=2, min_threshold=2, min_threshold_share=0.0)


def _session(
    num_devices: int,
    threshold: int,
    *,
    signed: bool = False,
    policy: DevicePolicy = POLICY,
    num_colluders: int = 0,
    client_type: type[Client] = Client,
) -> tuple[Devices, EvilServer]:
    """Devices and an evil server whose first slot is open; the last devices collude."""
    params = make_params(num_devices, threshold, signed=signed)
    devices = Devices(params, policy=policy, client_type=client_type)
    colluders = [
        Colluder(client, devices.enrolment.credentials_for(client, params))
        for client in devices.roster[num_devices - num_colluders :]
    ]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    evil.set_up()
    evil.open_slot(0)
    return devices, evil


def _against_first(devices: Devices, evil: EvilServer) -> Loot:
    """What the server can make of the first device's masked vector, and that device's vector."""
    refusals = tuple(evil.refusals.values())
    return Loot(evil.sum_over(0, {0}), devices.vector(0), refusals=refusals)


def _two_lists(evil: EvilServer) -> dict[int, Survivors]:
    """Device 0 survives for the first half of the honest devices; for the others it dropped out."""
    lost = evil.everyone - {0}
    return {p: evil.everyone if p <= 2 else lost for p in evil.honest}


def _many_lists(evil: EvilServer) -> dict[int, Survivors]:
    """Each device is told of two drop-outs: 1, 2 and 3 of each other, and 0 of 1 and 2."""
    lists = {p: evil.everyone - ({1, 2, 3} - {p}) for p in (1, 2, 3)}
    return lists | {0: evil.everyone - {1, 2}}


_HALVES = (
    "tells one half of the devices that a device survived and the other half that it dropped out"
)


@attack(
    "two-survivor-lists",
    1,
    _HALVES,
    power=Power.SERVER,
    gain="the device's vector",
    defence="devices that expect an active server insist on 2t > (1 + γ)h",
    spec="3.7",
    end=Refusal.POLICY,
    saying="two quorums",
)
def two_survivor_lists(defended: bool) -> Loot:
    """There are six devices, and three are enough to unmask."""
    policy = _ACTIVE if defended else POLICY
    devices, evil = _session(6, 3, signed=True, policy=policy)
    evil.unmask(0, _two_lists(evil))
    return _against_first(devices, evil)


@attack(
    "two-survivor-lists-unsigned",
    1,
    f"{_HALVES}, without any signatures",
    power=Power.SERVER,
    gain="the device's vector",
    defence="devices that expect an active server insist on signed sessions",
    spec="3.7",
    end=Refusal.POLICY,
    saying="not signed",
)
def two_survivor_lists_unsigned(defended: bool) -> Loot:
    """The same attack in a session without signed keys."""
    devices, evil = _session(6, 3, policy=_ACTIVE if defended else POLICY)
    evil.unmask(0, _two_lists(evil))
    return _against_first(devices, evil)


@attack(
    "two-quorums",
    1,
    f"{_HALVES}, each half signing its own list",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a majority as the threshold, so that any two quorums share a device",
    spec="3.4",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def two_quorums(defended: bool) -> Loot:
    """There are six devices. Three of them are enough or, with the defence, four."""
    devices, evil = _session(6, 4 if defended else 3, signed=True)
    evil.unmask(0, _two_lists(evil))
    return _against_first(devices, evil)


@attack(
    "two-quorums-with-a-colluder",
    1,
    f"{_HALVES}, with a colluding device that signs both lists",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a threshold with 2t > n + c, so that any two quorums share an honest device",
    spec="3.4",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def two_quorums_with_a_colluder(defended: bool) -> Loot:
    """There are seven devices, and one colludes. Four are enough or, with the defence, five."""
    devices, evil = _session(7, 5 if defended else 4, signed=True, num_colluders=1)
    evil.unmask(0, _two_lists(evil))
    return _against_first(devices, evil)


@attack(
    "a-list-for-each",
    1,
    "tells each device of different drop-outs; each list meets min_cohort, all of them together "
    "do not",
    power=Power.SERVER,
    gain="the sum of its own device and one other device, and so the vector of the other device",
    defence="consistency round",
    spec="9.9",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def a_list_for_each(defended: bool) -> Loot:
    """Each of five devices is told that two have dropped out, but not the same two."""
    devices, evil = _session(5, 3, signed=defended, num_colluders=1)
    evil.unmask(0, _many_lists(evil))
    return _against_first(devices, evil)


class _Careless(Client):
    """A device that checks the signatures of the list that it signed, and follows another."""

    def _reveal_shares(self, message: UnmaskRequest) -> UnmaskShares:
        signed, self._members = self._cohort, message.survivors
        context, key = present(self._context), self._own_sealing.public
        statement = signing.survivors(context, signed, key)
        presuppose(
            bytes(message.signatures[self._placed.position])
            == present(self._credentials).identity.sign(statement),
            "the signatures are those of the list that the device signed",
        )
        return super()._reveal_shares(message)

    def _check_quorum(self, *_: object) -> None:
        """The signatures are not of this list."""


@attack(
    "another-list-than-the-signed-one",
    1,
    "lets all devices sign one list of survivors, and asks each device for shares by another list",
    power=Power.SERVER,
    gain="the sum of its own device and one other device, and so the vector of the other device",
    defence="a device releases shares only for the list that it signed",
    spec="9.9",
    end=Refusal.INCONSISTENT_SURVIVORS,
)
def another_list_than_the_signed_one(defended: bool) -> Loot:
    """Without the defence, devices are sent the signatures of one list, and follow another."""
    client_type = Client if defended else _Careless
    devices, evil = _session(5, 3, signed=True, num_colluders=1, client_type=client_type)
    signed = dict.fromkeys(evil.honest, evil.everyone)
    evil.confirm(0, signed)
    evil.ask(0, _many_lists(evil), signed)
    return _against_first(devices, evil)


class _Generous(Client):
    """A device that helps to unmask a slot as often as it is asked."""

    @property
    def _table(self) -> Mapping[ClientState, Mapping[type, ClientState]]:
        table = CLIENT_TRANSITIONS[False]
        ready = {**table[ClientState.READY], UnmaskRequest: ClientState.READY}
        return MappingProxyType({**table, ClientState.READY: ready})


@attack(
    "both-shares",
    2,
    "asks devices for one kind of share of a peer, and then for the other kind",
    power=Power.SERVER,
    gain="the peer's vector",
    defence="a device answers one request per slot, and the request names survivors only",
    spec="9.3",
    end=Refusal.BOTH_SHARE_KINDS,
)
def both_shares(defended: bool) -> Loot:
    """At first, all devices have survived. Then the first device has dropped out."""
    devices, evil = _session(5, 3, client_type=Client if defended else _Generous)
    evil.unmask(0, evil.everyone)
    evil.unmask(0, evil.everyone - {0})
    return _against_first(devices, evil)


@attack(
    "late-masked-input",
    5,
    "declares a device dropped out, rebuilds its key, and then receives its vector",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a self mask, whose seed is not revealed for devices that dropped out",
    spec="5.3",
    end=Left.NOISE,
)
def late_masked_input(defended: bool) -> Loot:
    """Without the defence, the attacker knows the key of the self mask."""
    with replaced(SlotContext, "self_mask_key", lambda *_: bytes(32), unless=defended):
        devices, evil = _session(5, 3)
        evil.unmask(0, evil.everyone - {0})
        return _against_first(devices, evil)
