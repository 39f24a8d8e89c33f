"""Rules of a device, one broken at a time in the real machines: a vector notices each."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import vector_files
from device_vectors import converse
from negative_vectors import refuse
from recorded_session import Parties, params_from_json
from round_lies import refuse_in_round
from session_vectors import rounds_from_json

from deltafl.protocol import client as round_machine
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import DevicePolicy, PeerError, Refusal, UsageError, cohort, keys, wire
from deltafl.secagg import client as machine
from deltafl.secagg.codec import Records
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.messages import OpenSlot
from deltafl.secagg.states import ClientState
from deltafl.secagg.threat import PROFILES, Adversary

load = cache(vector_files.load)
Client = machine.Client


def by_name(file):
    return {case["name"]: case for case in load(file)}


def described(file, description):
    (case,) = [case for case in load(file) if case["description"] == description]
    return case


# How a vector is run; each raises, or returns something else, where a device deviates from it.


def conversation(description):
    case = described("devices", description)
    stated = [
        [{k: step[k] for k in ("answer", "refusal") if k in step} for step in session["steps"]]
        for session in case["sessions"]
    ]
    return converse(case) == stated


def refusal(session, description):
    """Run a case of refusals.json."""
    (case,) = [
        case
        for case in load("refusals")
        if (case["session"], case["description"]) == (session, description)
    ]
    played = by_name("sessions")[session]
    return refuse(case, played, rounds_from_json(played["rounds"])) == case["refusal"]


def in_round(name, description):
    """Run a case of round_refusals.json."""
    (case,) = [
        case
        for case in load("round_refusals")
        if (case["round"], case["description"]) == (name, description)
    ]
    played = by_name("rounds")[name]
    found = refuse_in_round(case, played, rounds_from_json(played["rounds"]))
    return found == (case["refusal"], case["answers"])


def replayed(file, name, device):
    """Let one device hear what it hears in a session; it answers as it does there."""
    case = by_name(file)[name]
    parties = Parties(case)
    own = parties.client(device)
    for one in rounds_from_json(case["rounds"]):
        if device in one["to"]:
            answer = parties.answer(own, one["to"][device])
            if device in one["from"] and answer != one["from"][device]:
                return False
    return True


def bounds():
    return all(
        case["max_message_bytes"] == wire.max_bytes(params_from_json(case["params"]))
        for case in load("parameters")
    )


# How a rule is broken.


class Forgetful(set):
    """A set in which nothing is ever found."""

    def __contains__(self, _):
        return False


def no_repetition(monkeypatch):
    receive = Client.receive

    def heard(self, data):
        self._seen = Forgetful()
        return receive(self, data)

    monkeypatch.setattr(Client, "receive", heard)


def no_repetition_in_rounds(monkeypatch):
    receive = round_machine.RoundClient.receive

    def heard(self, data):
        self._seen = Forgetful()
        return receive(self, data)

    monkeypatch.setattr(round_machine.RoundClient, "receive", heard)


def no_other_tags(monkeypatch):
    monkeypatch.setattr(wire, "tag_of", lambda _: None)


def no_other_tags_in_rounds(monkeypatch):
    monkeypatch.setattr(round_machine, "tag_of", lambda _: None)


def no_slot_left_out(monkeypatch):
    opened = Client._open

    def strict(self, message):
        if message.slot > self._slot + 1:
            raise PeerError(Refusal.OUT_OF_ORDER, "a slot is left out")
        return opened(self, message)

    monkeypatch.setattr(Client, "_open", strict)


def no_min_roster(monkeypatch):
    check = cohort.check_roster
    monkeypatch.setattr(
        cohort,
        "check_roster",
        lambda roster, own, params: check(roster, own, replace(params, min_roster=2)),
    )


def no_memory(monkeypatch):
    monkeypatch.setattr(MemoryLedger, "admit", lambda *_: True)


def _changed_check(monkeypatch, change, name="_check_active"):
    check = getattr(DevicePolicy, name)

    def changed(self, params):
        check(*change(self, params))

    monkeypatch.setattr(DevicePolicy, name, changed)


def sparse_graphs(monkeypatch):
    row = PROFILES[Adversary.ACTIVE]._replace(takes_sparse=True)
    monkeypatch.setitem(PROFILES, Adversary.ACTIVE, row)


def small_sparse_rosters(monkeypatch):
    def change(own, params):
        needed = max(params.min_roster, params.degree + 2)
        return own, replace(params, min_roster=min(needed, params.num_invited))

    _changed_check(monkeypatch, change, "_check_sparse")


def no_common_device(monkeypatch):
    def change(own, params):
        most = params.num_holders
        return own, replace(params, threshold=most, min_cohort=max(most, params.min_cohort))

    _changed_check(monkeypatch, change)


def any_sparse_graph(monkeypatch):
    monkeypatch.setattr(DevicePolicy, "_check_sparse", lambda *_: None)


def whole_degree(monkeypatch):
    check = DevicePolicy.check

    def strict(self, params):
        if params.degree > self.max_degree:
            raise PeerError(Refusal.POLICY, "degree")
        check(self, params)

    monkeypatch.setattr(DevicePolicy, "check", strict)


def canonical_keys_only(monkeypatch):
    check = cohort.check_keys

    def strict(own, advertised):
        for message in advertised.values():
            for key in (message.sealing_key, *message.mask_keys):
                if key != keys.canonical(key):
                    raise PeerError(Refusal.BAD_KEY, "not canonical")
        check(own, advertised)

    monkeypatch.setattr(cohort, "check_keys", strict)


def keys_made_canonical(monkeypatch):
    read = wire._read_advertisement

    def canonical(data, params):
        message = read(data, params)
        return replace(
            message,
            sealing_key=keys.canonical(message.sealing_key),
            mask_keys=tuple(map(keys.canonical, message.mask_keys)),
        )

    monkeypatch.setattr(wire, "_read_advertisement", canonical)


def another_n_is_malformed(monkeypatch):
    reveal = Client._reveal_shares

    def strict(self, message):
        if len(message.survivors) != len(self._formed.ids):
            raise PeerError(Refusal.MALFORMED, "a set over other devices")
        return reveal(self, message)

    monkeypatch.setattr(Client, "_reveal_shares", strict)


def lost_holders_count(monkeypatch):
    check = cohort.check_quorum

    def lax(signatures, statement, signers, agreed, threshold):
        check(signatures, statement, signers, np.ones_like(agreed), threshold)

    monkeypatch.setattr(cohort, "check_quorum", lax)


def directory_first(monkeypatch):
    check = cohort.check_credentials

    def swapped(credentials, params, roster, advertised):
        for position, message in advertised.items():
            client = int(roster[position])
            if not credentials.directory.accepts(client, message.credential.identity):
                raise PeerError(Refusal.UNKNOWN_IDENTITY, "not listed")
        check(credentials, params, roster, advertised)

    monkeypatch.setattr(cohort, "check_credentials", swapped)


def another_bound(monkeypatch):
    monkeypatch.setattr(wire, "max_bytes", lambda _: 1 << 24)


def no_record_bound(monkeypatch):
    def lax(fields, size, most):
        del most
        return Records.decode(fields.records(4 + size, most=1 << 20), size)

    monkeypatch.setattr(wire, "_read_records", lax)


def only_out_of_order_in(state):
    def broken(monkeypatch):
        untimely = machine.untimely

        def changed(message, slot, now):
            if now is state and isinstance(message, OpenSlot):
                return Refusal.OUT_OF_ORDER
            return untimely(message, slot, now)

        monkeypatch.setattr(machine, "untimely", changed)

    return broken


def any_round(part):
    def broken(monkeypatch):
        monkeypatch.setattr(RoundPolicy, part, lambda *_: None)

    return broken


SIGNED = "complete, signed"
ODD = "complete, keys with the highest bit"
OWN = "A sparse graph "
SMALL = "A sparse graph: "
RULES = {
    "repetition is ignored": (no_repetition, conversation, "Signed: every message twice."),
    "late messages are ignored": (
        no_repetition,
        conversation,
        "After each message all those before, from the first slot on.",
    ),
    "repetition is ignored in a round": (
        no_repetition_in_rounds,
        in_round,
        "mm",
        "An envelope twice.",
    ),
    "other tags are ignored": (
        no_other_tags,
        conversation,
        "Messages of another session in between.",
    ),
    "other tags are ignored before decoding": (
        no_other_tags,
        conversation,
        "Other sessions' messages that are cut.",
    ),
    "other tags are ignored in a round": (
        no_other_tags_in_rounds,
        in_round,
        "mm",
        "Envelopes of another session.",
    ),
    "slots may be left out": (no_slot_left_out, conversation, "The first slot is left out."),
    "slots may be left out of a session": (
        no_slot_left_out,
        replayed,
        "dropouts",
        "complete: the first of two slots is left out",
        17,
    ),
    "slots may be left out of a round": (
        no_slot_left_out,
        in_round,
        "mm",
        "The first query in the second slot.",
    ),
    "min_roster above min_cohort": (
        no_min_roster,
        conversation,
        "A roster of three, min_cohort 3, min_roster 4.",
    ),
    "contexts are remembered": (
        no_memory,
        conversation,
        "Sessions of one context and of another: the device remembers by itself.",
    ),
    "active: sparse": (
        sparse_graphs,
        conversation,
        "Active: a sparse graph, though its thresholds would do.",
    ),
    "sparse: smallest roster": (small_sparse_rosters, conversation, f"{SMALL}min_roster k + 1."),
    "active: 2t > h": (no_common_device, conversation, "Active, complete graph: 2t = h."),
    "sparse: min_cohort": (
        any_sparse_graph,
        conversation,
        f"{OWN}of which one more may be missing.",
    ),
    "sparse: degree": (any_sparse_graph, conversation, f"{OWN}that those who vanish may cut."),
    "sparse: threshold": (
        any_sparse_graph,
        conversation,
        f"{OWN}whose threshold is one below that.",
    ),
    "limits on a round's numbers": (
        any_round("_check_numbers"),
        in_round,
        "mm",
        "Beyond max_update_clip = 1.9999.",
    ),
    "limits on searches": (any_round("_check_search"), in_round, "mm", "Beyond max_pivots = 1."),
    "limits on noise": (
        any_round("_check_noise"),
        in_round,
        "noisy",
        "Beyond min_noise = [21214, 10000].",
    ),
    "min(k, N - 1)": (
        whole_degree,
        conversation,
        "Degree 1000 of five devices, max_degree 4.",
    ),
    "non-canonical keys are accepted": (canonical_keys_only, replayed, "sessions", ODD, 3),
    "keys are derived from as sent": (keys_made_canonical, replayed, "sessions", ODD, 3),
    "signed request over another n": (
        another_n_is_malformed,
        refusal,
        SIGNED,
        "The unmasking is over four of five devices.",
    ),
    "lost holders do not count": (
        lost_holders_count,
        refusal,
        SIGNED,
        "A valid signature of a holder that was lost.",
    ),
    "signature before directory": (
        directory_first,
        refusal,
        SIGNED,
        "A neighbour's keys, signed by a stranger, and the signature has one bit changed.",
    ),
    "message bound": (another_bound, bounds),
    "record bound": (
        no_record_bound,
        refusal,
        "complete",
        "More boxes than devices were invited.",
    ),
    "SLOT_REUSED when opened": (
        only_out_of_order_in(ClientState.OPENED),
        conversation,
        "Another opening of the slot, before the vector is known.",
    ),
    "SLOT_REUSED when confirmed": (
        only_out_of_order_in(ClientState.CONFIRMED),
        refusal,
        SIGNED,
        "The same slot over fewer when a list is signed.",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_vector_notices_a_broken_rule(rule, monkeypatch):
    broken, run, *of = RULES[rule]
    assert run(*of)
    broken(monkeypatch)
    try:
        noticed = not run(*of)
    except (AssertionError, PeerError, UsageError):
        noticed = True
    assert noticed


def test_what_is_just_allowed_is_accepted():
    # The control of the policies: each with the session that just keeps it.
    for description in (
        f"{SMALL}min_roster k + 2.",
        "Active, complete graph: 2t = h + 1.",
        f"{OWN}that is enough for the device's own rates.",
        "A roster of three, min_cohort 3, min_roster 3.",
    ):
        assert conversation(description)
        steps = described("devices", description)["sessions"][0]["steps"]
        assert all("answer" in step for step in steps)
