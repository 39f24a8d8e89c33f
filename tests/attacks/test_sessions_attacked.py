"""Attacks with what was said in other sessions, and with sums of which one lacks a device."""

from dataclasses import replace

import numpy as np
from attack import Loot, Power, attack
from evil_server import EvilServer
from parties import Parties, make_params
from round_network import RoundNetwork
from searches import LOST, Searches

from protocol import wire as envelopes
from protocol.client import RoundClient
from protocol.configuration import RoundConfig
from protocol.messages import Relay
from secagg import Adversary, Client, DevicePolicy, Refusal, signing, vetting, wire
from secagg.messages import (
    MaskedInput,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
)

SLOTS = ((64, 32),)
ACTIVE = DevicePolicy(
    adversary=Adversary.ACTIVE,
    colluding_rate=0.0,
    min_cohort=3,
    min_threshold=3,
    min_threshold_share=0.5,
)
SURVIVORS, CHECK_MEMBERS, SLOTS_OF = signing.survivors, vetting.check_members, RoundConfig.slots


def forget_the_session(monkeypatch):
    """Let devices sign survivors as if they had no keys of this session."""
    monkeypatch.setattr(
        signing, "survivors", lambda context, survivors, _: SURVIVORS(context, survivors, bytes(32))
    )


def remember(parties, others):
    """Put the same people in the place of all: they know what they have taken part in."""
    for client in parties.clients:
        credentials = others.enrolment.credentials(client)
        parties.clients[client] = Client(client, ACTIVE, parties.randomness[client], credentials)


def opened(parties):
    """A server whose first slot is open."""
    evil = EvilServer(parties.params, parties.ids, parties.answer)
    evil.set_up()
    evil.open_slot(0)
    return evil


def over(parties, evil, positions):
    """What the server makes of some devices' masked vectors, and the sum of their vectors."""
    vectors = [parties.inputs[parties.roster[position]][0] for position in positions]
    wanted = sum(vectors)
    return Loot(evil.sum_over(0, positions), wanted, refusals=tuple(evil.refusals.values()))


def old_signatures(remembering):
    """Devices 0 and 4 sign the lists of others in two sessions; then comes the one that counts."""
    params = make_params(5, threshold=3, slots=SLOTS, signed=True)
    # Every device is told of two losses; 1, 2 and 3 are lost to three devices each.
    one, two, three = (frozenset({0, lost, 4}) for lost in (1, 2, 3))
    signatures, others = {}, None
    for seed, lists in enumerate(({0: one, 4: one}, {0: two, 4: three}, None)):
        parties = Parties(params, policy=ACTIVE, seed=seed)
        if remembering and others:
            remember(parties, others)
        others = parties
        evil = opened(parties)
        if lists:
            evil.confirm(0, lists)
            for of, signed in evil.signatures.items():
                signatures[of] = signatures.get(of, {}) | signed
    for of, signed in signatures.items():
        evil.signatures[of] |= signed
    evil.unmask(0, {0: three, 1: one, 2: two, 3: three, 4: two})
    return over(parties, evil, {0, 4})


@attack(
    1,
    "shows what devices have signed in earlier sessions of the same parameters and roster",
    power=Power.SERVER,
    gain="the sum of fewer devices than `min_cohort`",
    defence="a signature names its signer's sealing key of the session",
    spec="6.4",
    end=Refusal.BAD_SIGNATURE,
    saying="the survivors",
)
def test_old_signatures(defended, monkeypatch):
    if not defended:
        forget_the_session(monkeypatch)
    return old_signatures(remembering=False)


@attack(
    1,
    "the same, were the keys of the session not signed",
    power=Power.SERVER,
    gain="the sum of fewer devices than `min_cohort`",
    defence="a device takes part in one session of a context, and remembers it",
    spec="9.5",
    end=Refusal.SESSION_REPEATED,
)
def test_old_signatures_of_those_who_remember(defended, monkeypatch):
    # The first line of defence is down in both runs.
    forget_the_session(monkeypatch)
    return old_signatures(remembering=defended)


@attack(
    4,
    "shows the keys of absent devices, of earlier sessions, where it was given their mask keys",
    power=Power.SERVER,
    gain="the sum of fewer devices than `min_cohort`",
    defence="neighbours count once their box has opened: it is made for the keys of this session",
    spec="9.4",
    end=Refusal.COHORT_TOO_SMALL,
    saying="4 devices are left",
)
def test_old_keys(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(
            vetting,
            "check_members",
            lambda members, before, heard, *rest: CHECK_MEMBERS(
                members, before, np.ones_like(heard), *rest
            ),
        )
    params = make_params(6, threshold=4, min_cohort=5, slots=SLOTS, signed=True)
    said, secrets = {}, {}
    for seed, lost in enumerate((4, 5), start=1):
        earlier = opened(Parties(params, policy=ACTIVE, seed=seed))
        earlier.unmask(0, earlier.everyone - {lost})
        said[earlier.roster[lost]] = earlier.keys[lost]
        secrets[0, ShareKind.KEY, lost] = earlier.secrets[0, ShareKind.KEY, lost]
    parties = Parties(params, policy=ACTIVE)

    def answer(client, data):
        """Nobody asks devices 4 and 5; their keys are old, and what else they say is made up."""
        if client not in said:
            return parties.answer(client, data)
        match parties.decode(data):
            case SessionOpen():
                reply = said[client]
            case RosterMessage() as message:
                box = bytes(wire.box_size(params))
                reply = ShareKeys((bytes(32),), dict.fromkeys(message.keys, box))
            case ShareDelivery():
                reply = ShareReceipt(())
            case OpenSlot():
                reply = MaskedInput(0, bytes(4 * 64))
        return parties.encode(reply)

    evil = EvilServer(params, parties.ids, answer)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, dict.fromkeys(range(4), evil.everyone))
    evil.secrets |= secrets
    return over(parties, evil, range(4))


@attack(
    13,
    "asks one query twice, and calls a device lost the second time",
    power=Power.SERVER,
    gain="that device's answer, as the difference of the sums: its weight, and where its loss lies",
    defence="queries after the first are for all devices or none",
    spec="12.3",
    end=Refusal.NOT_WHOLE,
    saying="slot 1 is for all",
)
def test_query_again_without_one_device(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(
            RoundConfig,
            "slots",
            lambda config: tuple(replace(slot, whole=False) for slot in SLOTS_OF(config)),
        )
    searches = Searches()
    evil = searches.session()
    searches.ask(evil, 0, evil.everyone, evil.everyone)
    searches.ask(evil, 1, evil.everyone, evil.everyone - {LOST})
    return searches.loot()


@attack(
    13,
    "the same, and opens the second slot without that device",
    power=Power.SERVER,
    gain="that device's answer, as the difference of the sums: its weight, and where its loss lies",
    defence="a device answers no query over fewer devices than were left after the one before",
    spec="12.8",
    end=Refusal.NOT_WHOLE,
    saying="fewer devices than the one before",
)
def test_query_again_over_fewer(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(RoundClient, "_check_search", lambda *_: None)
    searches = Searches()
    evil = searches.session()
    for slot, cohort in enumerate((evil.everyone, evil.everyone - {LOST})):
        searches.ask(evil, slot, cohort, cohort)
    return searches.loot()


class Relaying(RoundNetwork):
    """Relays the opening of a slot before it asks the question that belongs to it."""

    def carry(self, client, data):
        if isinstance(wire.decode(data, self.params), OpenSlot):
            assert self.answer(client, envelopes.encode(Relay(data))) is None
        return super().carry(client, data)


@attack(
    13,
    "the same, and relays the opening before it asks the query",
    power=Power.SERVER,
    gain="that device's answer, as the difference of the sums: its weight, and where its loss lies",
    defence="a slot is opened with its question",
    spec="12.8",
    end=Refusal.OUT_OF_ORDER,
    saying="without a question",
)
def test_query_again_over_fewer_relayed(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(RoundClient, "_relay", lambda own, data: own._session.receive(data))
    searches = Searches(Relaying)
    evil = searches.session()
    for slot, cohort in enumerate((evil.everyone, evil.everyone - {LOST})):
        searches.ask(evil, slot, cohort, cohort)
    return searches.loot()


@attack(
    13,
    "announces one round in two sessions, and keeps the second from one device",
    power=Power.SERVER,
    gain="that device's answer, as the difference of the sums: its weight, and where its loss lies",
    defence="a device takes part in one session of a context, and remembers it",
    spec="9.5",
    end=Refusal.SESSION_REPEATED,
)
def test_one_round_in_two_sessions(defended):
    searches = Searches()
    left = set(searches.ids) - {searches.ids[LOST]}
    for ids, remembering in ((searches.ids, False), (left, defended)):
        evil = searches.session(ids=ids, remembering=remembering)
        searches.ask(evil, 0, evil.everyone, evil.everyone)
    return searches.loot()
