"""The negative vectors, fed to the real readers, devices and servers."""

import copy
from functools import cache

import pytest
import vector_files
from device_vectors import converse
from message_vectors import apply_edit, fields_from_json, read
from negative_vectors import blame, refuse
from recorded_session import Parties, params_from_json, play
from round_lies import refuse_in_round
from round_vectors import round_played
from session_vectors import rounds_from_json

from deltafl.secagg import DecodeError, Fault, Refusal, wire

load = cache(vector_files.load)


def by_name(cases):
    return {case["name"]: case for case in cases}


SESSIONS = by_name(load("sessions"))
PARAMS = {name: params_from_json(case["params"]) for name, case in SESSIONS.items()}
ROUNDS = {name: rounds_from_json(case["rounds"]) for name, case in SESSIONS.items()}
MESSAGES = by_name(load("messages"))
PLAYED = by_name(load("rounds"))


@pytest.mark.parametrize("name", MESSAGES)
def test_message_reads_and_writes(name):
    case = MESSAGES[name]
    params, data = PARAMS[case["session"]], bytes.fromhex(case["message"])
    message = fields_from_json(case["kind"], case["fields"])
    assert wire.encode(message, params) == data
    assert wire.encode(read(data, case["kind"], params), params) == data


def reads(data, kind, params):
    """Whether the bytes are a message; raises whatever is no `DecodeError`."""
    try:
        read(data, kind, params)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("name", sorted({case["of"] for case in load("malformed")}))
def test_malformed_message_is_refused(name):
    valid = MESSAGES[name]
    data, params = bytes.fromhex(valid["message"]), PARAMS[valid["session"]]
    assert reads(data, valid["kind"], params)
    for case in load("malformed"):
        if case["of"] == name:
            wrong = apply_edit(data, case)
            assert wrong != data, case["description"]
            assert not reads(wrong, valid["kind"], params), case["description"]


def test_malformed_opening_is_refused_in_an_open_session_too():
    openings = [c for c in load("malformed") if MESSAGES[c["of"]]["kind"] == "session open"]
    for case in openings:
        valid = MESSAGES[case["of"]]
        data, params = bytes.fromhex(valid["message"]), PARAMS[valid["session"]]
        assert reads(data, "any kind", params)
        assert not reads(apply_edit(data, case), "any kind", params), case["description"]
    assert any("other parameters" in case["description"].lower() for case in openings)


def test_malformed_messages_are_of_every_kind():
    named = {MESSAGES[case["of"]]["kind"] for case in load("malformed")}
    assert named == {case["kind"] for case in MESSAGES.values()}
    assert len(named) == 13


def refused(case):
    return refuse(case, SESSIONS[case["session"]], ROUNDS[case["session"]])


@pytest.mark.slow
def test_device_refuses_under_the_name_stated():
    for case in load("refusals"):
        assert refused(case) == case["refusal"], case["description"]


@pytest.mark.parametrize("case", load("devices"), ids=lambda case: case["description"])
def test_device_answers_as_stated(case):
    for session, outcomes in zip(case["sessions"], converse(case), strict=True):
        for step, outcome in zip(session["steps"], outcomes, strict=True):
            assert outcome == {name: step[name] for name in outcome}
            assert ("answer" in step) != ("refusal" in step)


def refused_in_round(case):
    played = PLAYED[case["round"]]
    return refuse_in_round(case, played, heard_in(played))


def heard_in(case):
    """The rounds of a case of rounds.json."""
    return rounds_from_json(case["rounds"], round_played(case["name"])[0])


@pytest.mark.slow
def test_device_refuses_in_a_round_under_the_name_stated():
    for case in load("round_refusals"):
        assert refused_in_round(case) == (case["refusal"], case["answers"]), case["description"]


@pytest.mark.parametrize("name", PLAYED)
def test_a_device_that_is_not_lied_to_in_a_round_refuses_nothing(name):
    # The control of the refusals in rounds: every envelope of every round, to every device.
    case = PLAYED[name]
    for device in (one["id"] for one in case["devices"]):
        heard = [one for one in heard_in(case) if device in one["to"]]
        messages = [one["to"][device].hex() for one in heard]
        honest = {"round": name, "device": device, "received": 0, "messages": messages}
        refused, answers = refused_in_round(honest)
        assert refused is None
        assert answers == [one["from"][device].hex() for one in heard if device in one["from"]] + (
            [] if device in heard[-1]["from"] else answers[-1:]
        )


def test_every_refusal_occurs():
    named = {case["refusal"] for name in ("refusals", "round_refusals") for case in load(name)}
    assert named == {None, *(reason.value for reason in Refusal)}


def test_a_session_of_another_context_is_no_repetition():
    # The control of the ledger: the same opening, and a device that has been elsewhere.
    (case, _) = [one for one in load("refusals") if "attended" in one]
    assert case["attended"] == [SESSIONS[case["session"]]["params"]["context"]]
    with pytest.raises(AssertionError, match="accepted"):
        refused(case | {"attended": [bytes(32).hex()]})


@pytest.mark.parametrize("session", ["complete", "whole slots", "verified"])
def test_a_device_that_is_not_lied_to_refuses_nothing(session):
    # The control of the refusals: the honest message in place of the lie.
    heard = [one for one in ROUNDS[session] if 17 in one["to"]]
    for received, one in enumerate(heard):
        honest = {
            "description": "honest",
            "session": session,
            "device": 17,
            "received": received,
            "messages": [one["to"][17].hex()],
        }
        with pytest.raises(AssertionError, match="accepted: honest"):
            refused(honest)


def blamed(case):
    return blame(case, SESSIONS[case["session"]], ROUNDS[case["session"]])


@pytest.mark.slow
def test_devices_alone_answer_as_in_the_sessions():
    for name in ("sessions", "dropouts"):
        for case in load(name):
            rounds = rounds_from_json(case["rounds"], play(case)[0] if name == "dropouts" else None)
            for device in case["devices"]:
                client, parties = device["id"], Parties(case)
                machine = parties.client(client)
                spoils = client in {one["sender"] for one in case["spoiling"]}
                for one in rounds:
                    if client in one["to"]:
                        answer = parties.answer(machine, one["to"][client])
                        if one["stage"] == "share" and spoils:
                            answer = parties.with_spoiled_boxes(client, answer)
                        assert one["from"].get(client, answer) == answer


def test_witnesses_alone_answer_as_stated():
    found = 0
    for case in load("faults"):
        witness = case["witness"]
        if witness is None:
            continue
        client, parties = witness["device"], Parties(SESSIONS[case["session"]])
        machine = parties.client(client)
        heard = [one for one in ROUNDS[case["session"]] if client in one["to"]]
        for one in heard[: witness["received"]]:
            parties.answer(machine, one["to"][client])
        for step in witness["steps"]:
            answer = parties.answer(machine, bytes.fromhex(step["message"]))
            assert (answer and answer.hex()) == step["answer"], case["description"]
            found += 1
    assert found >= 20


def stated(case):
    names = ("drops", "disputes", "void", "sum", "proof", "aborted", "witness")
    return {name: case[name] for name in names if name in case}


def test_server_blames_whom_the_vectors_blame():
    for case in load("faults"):
        assert blamed(case) == stated(case), case["description"]


def test_every_fault_occurs():
    named = {drop["fault"] for case in load("faults") for drop in case["drops"].values()}
    # The vectors' sessions have no proofs.
    assert named == {fault.value for fault in Fault} - {Fault.BAD_PROOF.value}


def test_only_those_who_deviate_are_blamed_or_isolated():
    for case in load("faults"):
        session = SESSIONS[case["session"]]
        lost = {one["id"] for one in session["vanishing"]}
        deviating = {one["device"] for one in case["deviations"]} | lost
        for client, drop in case["drops"].items():
            assert int(client) in deviating or drop["fault"] == Fault.ISOLATED, case["description"]


def lost_by(case):
    """Devices that have vanished from a case's session when it ends."""
    rounds = [(one["stage"], one["slot"]) for one in ROUNDS[case["session"]]]
    end = rounds.index((case["until"]["stage"], case["until"]["slot"]))
    return {
        str(one["id"])
        for one in SESSIONS[case["session"]]["vanishing"]
        if rounds.index((one["stage"], one["slot"])) <= end
    }


def test_a_whole_slot_is_void_where_a_vector_is_missing():
    seen = set()
    for case in load("faults"):
        if case["until"]["stage"] != "mask" or case["aborted"]:
            continue
        slot = SESSIONS[case["session"]]["params"]["slots"][case["until"]["slot"]]
        faults = {
            case["drops"].get(str(one["device"]), {"fault": None})["fault"]
            for one in case["deviations"]
        }
        missing = bool(faults - {None, Fault.EQUIVOCATED, Fault.ISOLATED})
        assert case["void"] == (slot["whole"] and missing), case["description"]
        seen.add((slot["whole"], missing))
    assert len(seen) == 4


def changed_shares(case):
    """Pairs of dealer and holder whose share a device returned changed."""
    session = case["session"]
    roster = sorted(device["id"] for device in SESSIONS[session]["devices"])
    pairs = set()
    for one in case["deviations"]:
        holder, at = one["device"], (one["stage"], one["slot"])
        if at[0] != "unmask" or len(one["messages"]) != 1:
            continue
        if holder in malformed_messages(case):
            continue
        message = wire.decode(bytes.fromhex(one["messages"][0]), PARAMS[session])
        honest = next(r for r in ROUNDS[session] if (r["stage"], r["slot"]) == at)["from"][holder]
        rows = wire.decode(honest, PARAMS[session])
        wrong = (message.shares != rows.shares).any(axis=1)
        pairs |= {(roster[position], holder) for position in message.positions[wrong].tolist()}
    return pairs


def malformed_messages(case):
    """Devices of which nothing was read."""
    return {int(client) for client, drop in case["drops"].items() if drop["fault"] == "malformed"}


def test_disputes_are_over_the_shares_that_differ():
    found = 0
    for case in load("faults"):
        if not case["aborted"]:
            pairs = {(one["owner"], one["holder"]) for one in case["disputes"]}
            assert pairs == changed_shares(case), case["description"]
            found += len(pairs)
    assert found >= 10


def test_sums_that_stand_are_those_of_their_contributors():
    sums = 0
    for case in load("faults"):
        result = case.get("sum")
        if not result:
            continue
        session, slot = SESSIONS[case["session"]], result["slot"]
        inputs = {device["id"]: device["inputs"][slot] for device in session["devices"]}
        columns = zip(*(inputs[client] for client in result["contributors"]), strict=True)
        modulus = 2 ** session["params"]["slots"][slot]["ring_bits"]
        plain = [str(sum(map(int, column)) % modulus) for column in columns]
        assert result["vector"] == plain, case["description"]
        sums += 1
    assert sums >= 10


@pytest.mark.slow
def test_without_its_deviation_a_case_blames_nobody_else():
    # The control of the faults: the same cases, played honestly.
    for case in load("faults"):
        honest = copy.deepcopy(case)
        honest["deviations"] = []
        result = blamed(honest)
        assert result["drops"].keys() == lost_by(case), case["description"]
        assert not result["aborted"]
