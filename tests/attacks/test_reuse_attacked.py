"""Attacks on masks that are used twice, and on sums that differ by one device."""

from dataclasses import replace
from itertools import combinations

from attack import Left, Loot, Power, attack
from evil_server import Colluder, EvilServer
from parties import Parties, make_params

from secagg import Client, Refusal, ring, vetting
from secagg.masks import SlotContext

SLOTS = ((64, 32),)
CONTEXT_OF = SlotContext.of


class Forgetful(Client):
    """A device that does not remember that it has used a slot."""

    def _open(self, message):
        self._slot = -1
        super()._open(message)

    def contribute(self, vector, binding):
        secrets = list(self._mask_keys), list(self._seeds)
        masked = super().contribute(vector, binding)
        self._mask_keys, self._seeds = secrets
        return masked


def forget(parties):
    """Put forgetful devices in the place of all."""
    for client, machine in parties.clients.items():
        parties.clients[client] = Forgetful(client, machine._policy, parties.randomness[client])


def difference(after, before):
    """The words of one vector less those of another, in the ring of the slots."""
    words = after - before
    ring.reduce(words, SLOTS[0][1])
    return words


def set_up(params, **settings):
    parties = Parties(params, **settings)
    evil = EvilServer(params, parties.ids, parties.answer)
    evil.set_up()
    return parties, evil


def zero(parties, slot=0):
    """Let every device have nothing to say, and everybody know it: it failed the filter, say."""
    for vectors in parties.inputs.values():
        vectors[slot] = ring.zeros(*SLOTS[0])


@attack(
    6,
    "opens a slot again, for another question",
    power=Power.SERVER,
    gain="the difference of a device's two vectors, and with a known one the other",
    defence="a slot is used once; its secrets are gone",
    spec="9.3",
    end=Refusal.SLOT_REUSED,
)
def test_one_slot_for_two_questions(defended):
    parties = Parties(make_params(5, slots=SLOTS))
    if not defended:
        forget(parties)
    wanted = parties.inputs[parties.roster[0]][0]
    zero(parties)
    evil = EvilServer(parties.params, parties.ids, parties.answer, [Colluder(parties.roster[4])])
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    first = evil.sum_over(0, {0})
    parties.inputs[parties.roster[0]][0] = wanted
    # A repetition would be ignored. Of the masks, only that of the colluder is another one.
    evil.open_slot(0, evil.everyone - {4})
    taken = difference(evil.sum_over(0, {0}), first)
    return Loot(taken, wanted, refusals=tuple(evil.refusals.values()))


@attack(
    6,
    "compares two slots of devices whose random numbers repeat",
    power=Power.SERVER,
    gain="the difference of a device's two vectors, and with a known one the other",
    defence="slot and label enter the key of every mask (and one key for two slots is refused)",
    spec="5.2",
    end=Left.NOISE,
)
def test_one_key_for_two_slots(defended, monkeypatch):
    # The first line of defence, in both runs: who uses a key twice is not taken in.
    monkeypatch.setattr(vetting, "check_keys", lambda *_: None)
    if not defended:
        monkeypatch.setattr(
            SlotContext,
            "of",
            lambda params, session_id, _, binding: CONTEXT_OF(params, session_id, 0, binding),
        )
    parties = Parties(make_params(5, slots=SLOTS * 2))
    for client, randomness in parties.randomness.items():
        drawn = randomness(1 << 12)
        # Every draw of a size is the same.
        parties.clients[client]._randomness = lambda size, drawn=drawn: drawn[:size]
    zero(parties)
    evil = EvilServer(parties.params, parties.ids, parties.answer)
    evil.set_up()
    for slot in range(2):
        evil.open_slot(slot)
        evil.unmask(slot, evil.everyone)
    taken = difference(evil.inputs[1][0], evil.inputs[0][0])
    return Loot(taken, parties.inputs[parties.roster[0]][1])


def two_sessions(monkeypatch, defended, first, second):
    """Two sessions of the same devices, whose random numbers repeat from one to the other."""
    if not defended:
        monkeypatch.setattr(
            SlotContext,
            "of",
            lambda params, _, slot, binding: CONTEXT_OF(params, bytes(32), slot, binding),
        )
    parties, evil = set_up(first)
    zero(parties)
    evil.open_slot(0)
    again, other = set_up(second)
    assert other.keys == evil.keys
    other.open_slot(0)
    taken = difference(other.inputs[0][0], evil.inputs[0][0])
    return Loot(taken, again.inputs[again.roster[0]][0])


@attack(
    6,
    "compares two rounds of devices whose random numbers repeat",
    power=Power.SERVER,
    gain="the difference of a device's two vectors, and with a known one the other",
    defence="the round's digest enters the session's id, and that the key of every mask",
    spec="3.3",
    end=Left.NOISE,
)
def test_one_key_for_two_rounds(defended, monkeypatch):
    first = make_params(5, slots=SLOTS)
    return two_sessions(monkeypatch, defended, first, replace(first, context=b"next".ljust(32)))


@attack(
    6,
    "compares two sessions of one round, of devices whose random numbers repeat",
    power=Power.SERVER,
    gain="the difference of a device's two vectors, and with a known one the other",
    defence="the session's own seed enters its id, and that the key of every mask",
    spec="3.3",
    end=Left.NOISE,
)
def test_one_key_for_two_sessions(defended, monkeypatch):
    first = make_params(5, slots=SLOTS)
    return two_sessions(monkeypatch, defended, first, replace(first, graph_seed=b"new".ljust(32)))


@attack(
    13,
    "sums a slot again without one device",
    power=Power.SERVER,
    gain="that device's vector, as the difference of the sums",
    defence="a slot is never retried",
    spec="9.3",
    end=Refusal.SLOT_REUSED,
)
def test_retry_without_one_device(defended):
    parties = Parties(make_params(6, slots=SLOTS))
    if not defended:
        forget(parties)
    evil = EvilServer(parties.params, parties.ids, parties.answer)
    evil.set_up()
    sums = []
    for cohort in (evil.everyone, evil.everyone - {0}):
        evil.open_slot(0, cohort)
        evil.unmask(0, cohort)
        sums.append(evil.sum_over(0, cohort))
    wanted = parties.inputs[parties.roster[0]][0]
    return Loot(difference(*sums), wanted, refusals=tuple(evil.refusals.values()))


@attack(
    20,
    "calls a device lost, aborts, and calls it a survivor in the retry",
    power=Power.SERVER,
    gain="both secrets of the device, one from each attempt: its vector",
    defence="a retry is a session of its own, with fresh keys and seeds",
    spec="9.12",
    end=Left.NOISE,
)
def test_abort_and_retry(defended):
    params = make_params(5, slots=SLOTS)
    parties, aborted = set_up(params)
    aborted.open_slot(0)
    aborted.unmask(0, aborted.everyone - {0})
    again, retry = set_up(replace(params, graph_seed=b"new".ljust(32)), seed=int(defended))
    again.inputs = parties.inputs
    retry.open_slot(0)
    retry.unmask(0, retry.everyone)
    kept = [retry.keys[p].mask_keys == aborted.keys[p].mask_keys for p in retry.everyone]
    assert kept == [not defended] * len(kept)
    retry.secrets |= aborted.secrets | retry.secrets
    return Loot(retry.sum_over(0, {0}), parties.inputs[parties.roster[0]][0])


def test_a_void_slot_tells_nothing_even_if_the_next_one_tells_the_sum_of_the_same_vectors():
    whole = (*SLOTS[0], True)
    parties = Parties(make_params(5, slots=(whole, whole), signed=True))
    for vectors in parties.inputs.values():
        vectors[1] = vectors[0].copy()
    colluder = Colluder(parties.roster[4], parties.enrolment.credentials(parties.roster[4]))
    evil = EvilServer(parties.params, parties.ids, parties.answer, [colluder])
    evil.set_up()
    # One of its own is silent in the first slot, or it says so.
    evil.open_slot(0)
    del evil.inputs[0][4], evil.opened[0][4]
    evil.open_slot(1)
    evil.unmask(1, evil.everyone)
    assert not evil.refusals
    right = [parties.inputs[parties.roster[p]][0] for p in evil.honest]
    assert Loot(evil.sum_over(1, evil.honest), sum(right)).is_complete
    # Nor does it help to try the secrets of the second slot on the first.
    guesses = {(0, kind, p): secret for (slot, kind, p), secret in evil.secrets.items() if slot}
    for secrets in (evil.secrets, guesses | evil.secrets):
        evil.secrets = secrets
        for size in range(1, 5):
            for some in combinations(evil.honest, size):
                wanted = sum(right[p] for p in some)
                assert Loot(evil.sum_over(0, some), wanted).is_noise
    for p in evil.honest:
        between = difference(evil.inputs[1][p], evil.inputs[0][p])
        assert Loot(between, ring.zeros(*SLOTS[0])).is_noise
