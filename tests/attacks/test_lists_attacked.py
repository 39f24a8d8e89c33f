"""Attacks with lists of survivors: who is told that whom is lost."""

from dataclasses import replace

from attack import Left, Loot, Power, attack
from evil_server import Colluder, EvilServer
from parties import POLICY, Parties, make_params

from secagg import Adversary, DevicePolicy, Refusal, vetting
from secagg import client as client_module
from secagg.masks import SlotContext
from secagg.messages import UnmaskRequest
from secagg.states import CLIENT_TRANSITIONS, ClientState

SLOTS = ((64, 32),)
CHECK_QUORUM = vetting.check_quorum
ACTIVE = DevicePolicy(
    adversary=Adversary.ACTIVE,
    colluding_rate=0.0,
    min_cohort=2,
    min_threshold=2,
    min_threshold_share=0.0,
)


def session(num_devices, threshold, *, signed=False, policy=POLICY, num_colluders=0):
    """Honest parties, and an evil server in front of them; the last of the roster collude."""
    params = make_params(num_devices, threshold=threshold, slots=SLOTS, signed=signed)
    parties = Parties(params, policy=policy)
    colluders = [
        Colluder(client, parties.enrolment.credentials_for(client, params))
        for client in parties.roster[num_devices - num_colluders :]
    ]
    return parties, EvilServer(params, parties.ids, parties.answer, colluders)


def against(parties, evil, victim=0, slot=0):
    """What the server can make of one device's masked vector, and that device's vector."""
    wanted = parties.inputs[parties.roster[victim]][slot]
    return Loot(evil.sum_over(slot, {victim}), wanted, refusals=tuple(evil.refusals.values()))


def two_lists(evil, believers):
    """Device 0 survives, for some honest devices; for the other ones it is lost."""
    lost = evil.everyone - {0}
    return {p: evil.everyone if p in believers else lost for p in evil.honest}


def many_lists(evil):
    """Of five devices, two are lost for each; 1, 2 and 3 for two of each other and the colluder."""
    assert evil.params.min_cohort == 3
    lists = {p: evil.everyone - ({1, 2, 3} - {p}) for p in (1, 2, 3)}
    return lists | {0: evil.everyone - {1, 2}}


@attack(
    1,
    "tells one half that a device survived and the other half that it is lost",
    power=Power.SERVER,
    gain="the device's vector",
    defence="devices that expect an active server insist on 2t > (1 + γ)h",
    spec="3.7",
    end=Refusal.POLICY,
    saying="two quorums",
)
def test_two_halves(defended):
    policy = ACTIVE if defended else POLICY
    parties, evil = session(6, 3, signed=True, policy=policy)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, two_lists(evil, believers={0, 1, 2}))
    return against(parties, evil)


@attack(
    1,
    "the same, without any signatures",
    power=Power.SERVER,
    gain="the device's vector",
    defence="devices that expect an active server insist on signed sessions",
    spec="3.7",
    end=Refusal.POLICY,
    saying="not signed",
)
def test_two_halves_unsigned(defended):
    parties, evil = session(6, 3, policy=ACTIVE if defended else POLICY)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, two_lists(evil, believers={0, 1, 2}))
    return against(parties, evil)


@attack(
    1,
    "the same, each half signing its own list",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a majority as the threshold: two quorums share a device",
    spec="3.4",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def test_two_quorums(defended):
    parties, evil = session(6, 4 if defended else 3, signed=True)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, two_lists(evil, believers={0, 1, 2}))
    return against(parties, evil)


@attack(
    1,
    "the same, with a colluding device that signs both lists",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a threshold with 2t > n + c: two quorums share an honest device",
    spec="3.4",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def test_two_quorums_with_a_colluder(defended):
    parties, evil = session(7, 5 if defended else 4, signed=True, num_colluders=1)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, two_lists(evil, believers={0, 1, 2}))
    return against(parties, evil)


@attack(
    1,
    "tells every device of other losses, each within min_cohort, all together beyond it",
    power=Power.SERVER,
    gain="the sum of its own device and one other: that one's vector",
    defence="consistency round",
    spec="9.9",
    end=Refusal.TOO_FEW_SIGNATURES,
)
def test_a_list_for_each(defended):
    parties, evil = session(5, 3, signed=defended, num_colluders=1)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, many_lists(evil))
    return against(parties, evil)


@attack(
    1,
    "the same, after all have signed one list",
    power=Power.SERVER,
    gain="the sum of its own device and one other: that one's vector",
    defence="a device gives shares by the list that it signed",
    spec="9.9",
    end=Refusal.INCONSISTENT_SURVIVORS,
)
def test_another_list_than_the_signed_one(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(
            vetting,
            "check_quorum",
            lambda request, context, identities, survivors, threshold: CHECK_QUORUM(
                replace(request, survivors=survivors), context, identities, survivors, threshold
            ),
        )
    parties, evil = session(5, 3, signed=True, num_colluders=1)
    evil.set_up()
    evil.open_slot(0)
    signed = dict.fromkeys(evil.honest, evil.everyone)
    evil.confirm(0, signed)
    evil.ask(0, many_lists(evil), signed)
    return against(parties, evil)


@attack(
    2,
    "asks for the other share of a peer after the first",
    power=Power.SERVER,
    gain="the peer's vector",
    defence="one request for a slot, which names survivors only",
    spec="9.3",
    end=Refusal.BOTH_SHARE_KINDS,
)
def test_both_shares(defended, monkeypatch):
    if not defended:
        table = CLIENT_TRANSITIONS[False]
        ready = {**table[ClientState.READY], UnmaskRequest: ClientState.READY}
        lax = {False: {**table, ClientState.READY: ready}}
        monkeypatch.setattr(client_module, "CLIENT_TRANSITIONS", lax)
    parties, evil = session(5, 3)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    evil.unmask(0, evil.everyone - {0})
    return against(parties, evil)


@attack(
    5,
    "calls a device lost, rebuilds its key, and then has its vector",
    power=Power.SERVER,
    gain="the device's vector",
    defence="self mask, whose seed is not given away for the lost",
    spec="5.3",
    end=Left.NOISE,
)
def test_late_input(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(SlotContext, "self_mask_key", lambda *_: bytes(32))
    parties, evil = session(5, 3)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone - {0})
    return against(parties, evil)
