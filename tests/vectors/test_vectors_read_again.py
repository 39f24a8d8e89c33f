"""The vectors, computed again from what they state, by `plain_twin` and without `secagg`."""

import ast
import json
import re
import struct
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from math import floor
from pathlib import Path

import numpy as np
import plain_ed25519 as ed
import plain_kem as kem
import plain_pedersen as pedersen
import plain_round as rounds
import plain_twin as plain
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from vector_files import FOLDER, load

unhex = bytes.fromhex


def same(left, right):
    assert left == right


# One check for each file, which recomputes every value that follows from the others.


def check_labels(case):
    if "text" in case:
        return same(case["bytes"], case["text"].encode().hex())
    parts = [unhex(p["bytes"]) if "bytes" in p else int(p["integer"]) for p in case["parts"]]
    packed = plain.pack(*parts)
    same(case["packed"], packed.hex())
    whole = plain.pack(unhex(case["label"])) + packed
    return same(case["digest"], sha256(whole).hexdigest())


def check_parameters(case):
    params = case["params"]
    same(case["canonical"], plain.canonical(params).hex())
    digest = plain.digest(b"session parameters", plain.canonical(params))
    same((case["digest"], case["tag"]), (digest.hex(), digest[:16].hex()))
    same(case["session_id"], plain.session_id(params, case["roster"]).hex())
    same(case["max_message_bytes"], plain.max_message_bytes(params))


def check_key_schedule(case):
    session, binding = (unhex(case[n]) for n in ("session_id", "binding"))
    seed, recovery, key = (unhex(case[n]) for n in ("seed", "recovery_key", "link_key"))
    info = plain.slot_info(case["params"], case["slot"], binding)
    same(case["info"], info.hex())
    same(case["self_mask_key"], plain.self_mask_key(session, info, seed).hex())
    of = session, case["slot"], case["position"]
    same(case["seed_commitment"], plain.digest(b"self-mask seed commitment", *of, seed).hex())
    commitment = plain.digest(b"recovery key commitment", *of, recovery)
    same(case["recovery_commitment"], commitment.hex())
    same(case["pairwise_mask_key"], plain.expand(key, plain.tolerant_slot_info(info)).hex())


def check_whole_slots(case):
    binding, key = unhex(case["binding"]), unhex(case["link_key"])
    info = plain.slot_info(case["params"], case["slot"], binding)
    info = plain.whole_slot_info(info, case["members"])
    same(case["info"], info.hex())
    same(case["pairwise_mask_key"], plain.expand(key, info).hex())


def check_mask_expansion(case):
    length, bits = case["length"], case["bits"]
    size, seeds = bits // 8, [unhex(seed) for seed in case["seeds"]]
    if length <= 300:
        masks = [plain.mask(seed, length, bits) for seed in seeds]
    else:
        masks = [_words(seed, length, size) for seed in seeds]
    total = [(a + b - c) % 2**bits for a, b, c in zip(*masks, strict=True)]
    for name, vector in (("first", masks[0]), ("sum", total)):
        packed = b"".join(x.to_bytes(size, "little") for x in vector)
        same(case[f"{name}_digest"], sha256(packed).hexdigest())
        if name in case:
            same(case[name], [str(x) for x in vector])


def _words(seed, length, size):
    """The words of a long mask, the keystream from OpenSSL at once."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    code = {4: "I", 8: "Q"}[size]
    return struct.unpack(f"<{length}{code}", stream.update(bytes(length * size)))


def check_packing(case):
    elements = [int(x) for x in case["elements"]]
    same(case["packed"], plain.pack_vector(elements, case["bits"]).hex())


def check_shamir(case):
    if "secret" in case:
        secret = plain.from_limbs(case["limbs"])
        return same(case["secret"], secret and secret.hex())
    secrets, points = [unhex(secret) for secret in case["secrets"]], case["points"]
    same(case["limbs"], [plain.limbs(secret) for secret in secrets])
    stream, at = unhex(case["randomness"]), 0

    def draw(size):
        nonlocal at
        at += size
        return stream[at - size : at]

    shares = plain.split(secrets, points, case["threshold"], draw)
    same(at, len(stream))
    shown = [[struct.pack("<9I", *limbs).hex() for limbs in shares[point]] for point in points]
    same(case["shares"], shown)
    last = points[-case["threshold"] :]
    same(case["weights_of_the_last"], list(plain.lagrange(tuple(last))))
    for index, secret in enumerate(secrets):
        limbs = [
            plain.value_at(last, [shares[point][index][limb] for point in last], 0)
            for limb in range(9)
        ]
        same(plain.from_limbs(limbs), secret)
    return None


def check_decoding(case):
    found = plain.decode(case["points"], case["values"], case["threshold"])
    zero, wrong = found or (None, None)
    same((case["value_at_zero"], case["wrong"]), (zero, wrong))


def check_links(case):
    session, ends, contents = unhex(case["session_id"]), [], []
    for one in case["ends"]:
        key = kem.public_key(unhex(one["secret"]))
        same(one["key"], key.hex())
        box = sha256(unhex(one["box"])).digest()
        half = unhex(one["half"])
        ends.append(plain.End(one["position"], unhex(one["identity"]), key, half, box))
        contents.append(half + unhex(one["content"]))
    for own, other in ((0, 1), (1, 0)):
        box, info = case["ends"][own]["box"], plain.box_info(session, ends[own], ends[other])
        same(box, kem.seal(contents[own], ends[other].key, info).hex())
        same(kem.unseal(unhex(case["ends"][other]["secret"]), unhex(box), info), contents[own])
    secret, (low, high) = plain.link_secret(session, *ends), ends
    same(case["tags"], [plain.link_tag(secret, end.position).hex() for end in ends])
    same(case["keys"], [plain.link_key(secret, slot).hex() for slot in (0, 1)])
    key = plain.link_key(secret, 0)
    same(case["key_digest"], plain.key_digest(key).hex())
    hidden = plain.hidden(unhex(case["recovery_key"]), low.position, high.position, key)
    same(case["deposit"], hidden.hex())


def check_graph(case):
    num, degree, seed = case["num_devices"], case["degree"], unhex(case["seed"])
    for position, near in case["neighbours"].items():
        position = int(position)
        same(near, plain.neighbours(num, degree, seed, position))
        itself = [position] if degree >= num - 1 else []
        same(case["holders"][str(position)], sorted([*near, *itself]))


def check_thresholds(case):
    num, active = case["num_invited"], case["adversary"] == "active"
    rates = case["colluding_rate"], case["dropout_rate"]
    colluding = floor(Fraction(str(rates[0])) * num)
    if case["graph"] == "complete":
        threshold = plain.complete_threshold(num, *rates, active)
        found = threshold and (num - 1, threshold)
    else:
        found = plain.sparse_parameters(num, *rates, active)
    if found is not None and max(found[1], colluding + 2) > num:
        found = None
    if found is None:
        same((case["degree"], case["threshold"]), (None, None))
        return
    _, threshold = found
    same((case["degree"], case["threshold"]), found)
    missing = floor(Fraction(str(rates[1])) * num)
    fewest = threshold if case["graph"] == "complete" else num - missing
    same((case["min_cohort"], case["min_roster"]), (max(fewest, colluding + 2), fewest))


def check_directories(case):
    keys = _listed(case["text"])
    same(case["keys"], keys and {str(client): key for client, key in keys.items()})
    if keys is not None:
        text = "".join(f"{client} {keys[client]}\n" for client in sorted(keys))
        digest = plain.digest(b"directory fingerprint", text.encode())
        same((case["canonical"], case["fingerprint"]), (text, _grouped(digest)))


def _listed(text):
    """Keys by id; None where the list is wrong."""
    keys = {}
    for line in text.split("\n"):
        words = line.split("#")[0].replace("\t", " ").replace("\r", " ").split()
        if not words:
            continue
        if len(words) != 2 or not set(words[1].lower()) <= set("0123456789abcdef"):
            return None
        plain_digits = set(words[0]) <= set("0123456789")
        if not plain_digits or str(int(words[0])) != words[0] or int(words[0]) >= 2**32:
            return None
        client, key = int(words[0]), words[1].lower()
        if len(key) != 64 or client in keys or key in keys.values():
            return None
        keys[client] = key
    return keys


def check_signatures(case):
    parts = [unhex(case[name]) for name in ("public", "statement", "signature")]
    same(case["valid"], ed.verify(*parts))


def check_identity(case):
    seed, params = unhex(case["seed"]), case["params"]
    public = plain.identity_key(seed)
    same(case["public"], public.hex())
    same(case["fingerprint"], _grouped(plain.digest(b"identity fingerprint", public)[:16]))
    key = unhex(case["key"])
    statement = plain.advertisement_statement(params, case["id"], key)
    same(case["advertisement"], statement.hex())
    same(case["advertisement_signature"], plain.sign(seed, statement).hex())
    info = plain.slot_info(params, case["slot"], unhex(case["binding"]))
    session = unhex(case["session_id"])
    statement = plain.survivors_statement(session, info, case["survivors"], key)
    same(case["survivors_statement"], statement.hex())
    same(case["survivors_signature"], plain.sign(seed, statement).hex())
    commitment = unhex(case["commitment"])
    statement = plain.commitment_statement(session, info, commitment, key)
    same(case["commitment_statement"], statement.hex())
    same(case["commitment_signature"], plain.sign(seed, statement).hex())


def _grouped(digest):
    digits = digest.hex()
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def check_messages(case):
    params = next(s["params"] for s in load("sessions") if s["name"] == case["session"])
    same(case["message"], _encoded(case["kind"], case["fields"], params).hex())


def _encoded(kind, fields, params):
    slot = fields.get("slot")
    match kind:
        case "session open":
            return plain.open_message(fields["params"])
        case "roster":
            roster = fields["roster"]
            keys = {int(p): _keys(own) for p, own in fields["keys"].items()}
            ids = struct.pack(f"<{len(roster)}I", *roster)
            return plain.message(0x02, params, ids, plain.records(keys))
        case "share delivery":
            members = plain.bits(fields["members"])
            return plain.message(0x03, params, *members, _records(fields["boxes"]))
        case "open slot":
            tags = _records(fields["tags"])
            return plain.message(0x04, params, slot, *plain.bits(fields["members"]), tags)
        case "consistency check":
            return plain.message(0x05, params, slot, *plain.bits(fields["survivors"]))
        case "unmask request":
            survivors, signatures = plain.bits(fields["survivors"]), fields["signatures"]
            return plain.message(0x06, params, slot, *survivors, _records(signatures))
        case "advertise keys":
            return plain.message(0x11, params, _keys(fields))
        case "share keys":
            commitments = unhex("".join(fields["commitments"]))
            return plain.message(0x12, params, commitments, _records(fields["boxes"]))
        case "share receipt":
            return plain.message(0x13, params, _records(fields["links"]))
        case "masked input":
            committed = unhex(fields["committed"])
            return plain.message(0x14, params, slot, unhex(fields["packed"]), committed)
        case "sum opening":
            packed, committed = unhex(fields["packed"]), _records(fields["committed"])
            return plain.message(0x07, params, slot, packed, committed)
        case "consistency signature":
            return plain.message(0x15, params, slot, unhex(fields["signature"]))
        case "unmask shares":
            rows = [
                struct.pack("<IB9I", row["position"], row["kind"], *row["limbs"])
                for row in fields["shares"]
            ]
            return plain.message(0x16, params, slot, b"".join(rows))
    raise AssertionError(kind)


def _keys(fields):
    return unhex(fields["key"] + fields["identity"] + fields["signature"])


def _records(strings):
    return plain.records({int(p): unhex(data) for p, data in strings.items()})


def check_sessions(case):
    again = plain.PlainSession(case).run()
    same_rounds(case["rounds"], again.rounds)
    sums = [one | {"vector": [str(x) for x in one["vector"]]} for one in again.sums]
    same(case["sums"], sums)
    same(case["drops"], {str(client): drop for client, drop in again.drops.items()})


def same_rounds(written, again):
    """Check rounds message by message."""
    assert len(written) == len(again)
    for stated, found in zip(written, again, strict=True):
        same((stated["stage"], stated["slot"]), (found["stage"], found["slot"]))
        same(stated["asked"], sorted(found["to"]))
        asked = {str(client): data for client, data in found["to"].items()}
        if "all" in stated["to"]:
            assert len(set(asked.values())) == 1
            asked = {"all": next(iter(asked.values()))}
        for way, messages in (("to", asked), ("from", found["from"])):
            same(stated[way].keys(), {str(client) for client in messages})
            for client, data in messages.items():
                same(stated[way][str(client)], _as_written(stated[way][str(client)], data))


def _as_written(stated, data):
    """A message in hex, or its digest where that is what is stated."""
    is_digest = stated.startswith("sha256:")
    return "sha256:" + sha256(data).hexdigest() if is_digest else data.hex()


def check_dropouts(case):
    check_sessions(case)


def check_commitments(case):
    if "index" in case:
        point, attempt = pedersen.generator(case["index"])
        same((case["attempt"], case["generator"]), (attempt, ed.encode(point).hex()))
        return same(case["digest"], pedersen.hashed(case["index"], attempt).hex())
    if "randomness" in case:
        blinding = int.from_bytes(unhex(case["randomness"]), "little") % pedersen.ORDER
        return same(case["blinding"], str(blinding))
    found = pedersen.commit([int(x) for x in case["values"]], int(case["blinding"]))
    if "commitment" in case:
        return same(case["commitment"], found.hex())
    total = pedersen.added([unhex(point) for point in case["commitments"]])
    same(case["sum"], total and total.hex())
    return same(case["opens"], total == found)


# Section 12.


def check_layouts(case):
    config = case["config"]
    for name, (fields, bits) in (
        ("search", rounds.search_layout(config)),
        ("update", rounds.update_layout(config)),
    ):
        same(case[name]["order"], [field[0] for field in fields])
        shown = {name: [str(x) for x in numbers] for name, *numbers in fields}
        same(case[name]["fields"], shown)
        same(case[name]["length"], rounds.length_of(fields))
        same(case[name]["ring_bits"], bits)
    same(case["slots"], rounds.slots(config))
    same(case["canonical"], rounds.canonical(config).hex())
    model = unhex(case["model"])
    same(case["context"], rounds.context([config], model).hex())
    same(case["ledger_entry"], rounds.ledger_entry(model).hex())


def check_contexts(case):
    models, levels = unhex(case["models"]), case["levels"]
    context = rounds.context(levels, models)
    same(case["context"], context.hex())
    sizes = [rounds.num_queries(config) + 1 for config in levels]
    same(case["first_slots"], [sum(sizes[:i]) for i in range(len(sizes))])
    same(case["num_slots"], sum(sizes))
    size = len(models) // len(levels)
    entries = [models[i : i + size] for i in range(0, len(models), size)]
    same(case["ledger_entries"], [rounds.ledger_entry(model).hex() for model in entries])
    for one in case["bindings"]:
        same(one["canonical"], rounds.question_bytes(one["question"]).hex())
        same(one["binding"], rounds.binding(context, one["question"]).hex())


def check_envelopes(case):
    session = unhex(case["session"])
    match case["kind"]:
        case "Announce":
            found = rounds.announce(case["levels"], unhex(case["models"]), session)
        case "Relay":
            found = rounds.relay(session)
        case _:
            found = rounds.ask(case["question"], unhex(case["opening"]), session)
    same(case["envelope"], found.hex())


def check_ticks(case):
    found = rounds.tick(case["resolution_bits"], case["bound"], case["loss"])
    same((case["tick"], case["clipped"]), found)


def check_contributions(case):
    config = next(c["config"] for c in load("layouts") if c["name"] == case["round"])
    tick, _ = rounds.tick(config["resolution_bits"], config["bound"], case["loss"])
    same(case["tick"], tick)
    weight = rounds.search_weight(config, min(case["weight"], config["max_weight"]))
    same(case["search_weight"], weight)
    question = case["question"]
    if question["what"] == "Query":
        share = [int(x) for x in case.get("noise", ())]
        found = rounds.answer(config, tick, weight, question["pivots"], share)
    else:
        same(case["passes"], rounds.passes(tick, question))
        found = rounds.update(config, case["loss"], case["weight"], case["update"])
        found = found if case["passes"] else [0] * len(found)
    same(case["vector"], [str(x) for x in found])


def check_noises(case):
    variance = Fraction(*map(int, case["variance"]))
    bits, share, bound = rounds.noise_numbers(variance, case["devices"], case["num_draws"])
    same(case["resolution_bits"], bits)
    same(Fraction(*map(int, case["share_variance"])), share)
    same(case["bound"], str(bound))


def check_searches(case):
    config, search = case["config"], rounds.PlainSearch(case["config"])
    _, ring_bits = rounds.search_layout(config)
    for step in case["steps"]:
        same(step["pivots"], search.pivots)
        shares = step.get("noise") or [[]] * len(case["devices"])
        shares = [[int(x) for x in share] for share in shares]
        same(step["if_a_device_had_left"], search.threshold(int(search.answered > 0))[0])
        answers = [
            rounds.answer(
                config,
                rounds.tick(config["resolution_bits"], config["bound"], loss)[0],
                rounds.search_weight(config, weight),
                search.pivots,
                share,
            )
            for (loss, weight), share in zip(case["devices"], shares, strict=True)
        ]
        total = [sum(column) % 2**ring_bits for column in zip(*answers, strict=True)]
        same(step["sum"], [str(x) for x in total])
        search.take(total)
        same(step["tail"], search.tail())
        same(step["certified"], search.threshold()[1])
        over = search.pivots is None
        same(step["ended"], (search.ended or "budget") if over else None)
    same(search.pivots, None)
    same((case["threshold"], case["tail"]), (search.threshold()[0], search.tail()))


def lost(again):
    """Devices in the last sum of a search of one level that are not asked for their updates."""
    sums = [one for one in again.sums if one["slot"] != again.first[1] - 1]
    if not sums:
        return 0
    *_, asked = (one["to"] for one in again.rounds if one["stage"] == "mask")
    return len(sums[-1]["contributors"]) - len(asked)


def check_rounds(case):
    again = rounds.PlainRound(case).run()
    same_rounds(case["rounds"], again.rounds)
    sums = [one | {"vector": [str(x) for x in one["vector"]]} for one in again.sums]
    same(case["sums"], sums)
    same(case["drops"], {str(client): drop for client, drop in again.drops.items()})
    if case["levels"][0]["method"] != "noisy":
        found, tails = again.questions(lost(again))
        same(case["questions"], found)
        same(case["tails"], tails)
    params = case["params"]
    same(params["context"], again.context.hex())
    same(params["slots"], [slot for config in case["levels"] for slot in rounds.slots(config)])
    for level, outcome in enumerate(case["outcomes"]):
        config, slot = case["levels"][level], again.first[level + 1] - 1
        total = next(one["vector"] for one in again.sums if one["slot"] == slot)
        layout = rounds.update_layout(config)
        sums = rounds.decode(layout, total)
        weight = sums["weight"][0]
        numbers = [weight, sums["count"][0], sums["clipped"][0]]
        same([outcome[n] for n in ("kept_weight", "kept_devices", "clipped")], numbers)
        if weight:
            scale = 2 ** config["update_resolution_bits"]
            same(outcome["update"], [x / scale / weight for x in sums["update"]])
            scale = 2 ** layout[0][2][4]
            same(outcome["train_loss"], sums["weighted_loss"][0] / scale / weight)


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
NEGATIVE = {"devices", "faults", "malformed", "refusals", "round_refusals"}
"""Of errors: see test_vectors_of_lies.py."""


def imported(path):
    """The top-level packages that a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


def test_the_second_reading_does_not_use_the_first():
    """But for what an audit computes in the same way, which uses neither."""
    second = (FOLDER / "plain_ed25519.py", FOLDER / "plain_kem.py")
    for path in (*second, Path(plain.value_at.__code__.co_filename), __file__):
        assert not imported(Path(path)) & {"deltafl", "recorded_session"}
    assert plain.value_at.__module__ == "deltafl.sim.inspect.audit.plain"
    twin = (FOLDER / "plain_twin.py").read_text()
    assert re.findall(r"deltafl\.[\w.]+", twin) == [plain.value_at.__module__]
    assert "deltafl" in imported(FOLDER / "recorded_session.py")


def test_every_file_is_read_again():
    assert CHECKS.keys() | NEGATIVE == {path.stem for path in FOLDER.glob("*.json")}


SLOW = {"dropouts", "rounds", "sessions", "thresholds", "signatures"}
BY_NAME = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(CHECKS)
]


@pytest.mark.parametrize("name", BY_NAME)
def test_values_follow_from_what_is_stated(name):
    for case in load(name):
        CHECKS[name](case)


# The control: whatever derived value is changed, its check finds it.

DERIVED = {
    "commitments": ("attempt", "digest", "generator", "blinding", "commitment", "sum", "opens"),
    "contexts": ("context", "first_slots", "num_slots", "ledger_entries", "bindings"),
    "contributions": ("tick", "search_weight", "vector", "passes"),
    "envelopes": ("envelope",),
    "layouts": ("search", "update", "slots", "canonical", "context", "ledger_entry"),
    "noises": ("resolution_bits", "share_variance", "bound"),
    "rounds": ("rounds", "questions", "sums", "tails", "outcomes", "drops"),
    "searches": ("steps", "threshold", "tail"),
    "ticks": ("tick", "clipped"),
    "decoding": ("value_at_zero", "wrong"),
    "directories": ("keys", "canonical", "fingerprint"),
    "dropouts": ("rounds", "sums", "drops"),
    "graph": ("neighbours", "holders"),
    "identity": (
        "public",
        "fingerprint",
        "advertisement",
        "advertisement_signature",
        "survivors_statement",
        "survivors_signature",
        "commitment_statement",
        "commitment_signature",
    ),
    "key_schedule": (
        "info",
        "self_mask_key",
        "seed_commitment",
        "recovery_commitment",
        "pairwise_mask_key",
    ),
    "labels": ("packed", "digest", "bytes"),
    "mask_expansion": ("first", "first_digest", "sum", "sum_digest"),
    "messages": ("message",),
    "packing": ("packed",),
    "parameters": ("canonical", "digest", "tag", "session_id", "max_message_bytes"),
    "links": ("ends", "tags", "keys", "key_digest", "deposit"),
    "sessions": ("rounds", "sums", "drops"),
    "shamir": ("limbs", "shares", "weights_of_the_last", "secret"),
    "whole_slots": ("info", "pairwise_mask_key"),
    "signatures": ("valid",),
    "thresholds": ("degree", "threshold", "min_cohort", "min_roster"),
}


def changed(value):
    """Another value of the same type."""
    match value:
        case None:
            return 0
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("1" if value[-1:] == "0" else "0")
        case list():
            return [*value[:-1], changed(value[-1])] if value else [0]
        case dict():
            key = max(value)
            return {**value, key: changed(value[key])}
    raise AssertionError(value)


def holds(check, case):
    try:
        check(case)
    except (AssertionError, ArithmeticError, LookupError, ValueError):
        return False
    return True


@pytest.mark.parametrize(("name", "key"), [(n, key) for n in DERIVED for key in DERIVED[n]])
def test_a_changed_value_is_found(name, key):
    case = next(case for case in load(name) if case.get(key))
    assert holds(CHECKS[name], case)
    assert not holds(CHECKS[name], case | {key: changed(case[key])})


def test_another_input_is_another_session():
    case = load("sessions")[0]
    case["devices"][1]["inputs"][0][0] = str(int(case["devices"][1]["inputs"][0][0]) ^ 1)
    assert not holds(check_sessions, case)


def test_the_plain_keystream_is_the_one_of_the_standard():
    # RFC 8439, appendix A.1, test vector 1: key, counter and nonce of zeros.
    assert plain.keystream(bytes(32), 8).hex() == "76b8e0ada0f13d90"
    seed = bytes(range(32))
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    assert plain.keystream(seed, 1000) == stream.update(bytes(1000))


def test_plain_decoding_is_certain_of_what_it_finds():
    # Two polynomials of degree below t differ in all but t − 1 points.
    case = next(case for case in load("decoding") if case["wrong"])
    points, threshold = case["points"], case["threshold"]
    size = len(points) - (len(points) - threshold) // 2
    right = [i for i in range(len(points)) if i not in case["wrong"]]
    for chosen in combinations(right, threshold):
        at = [points[i] for i in chosen]
        given = [case["values"][i] for i in chosen]
        assert plain.value_at(at, given, 0) == case["value_at_zero"]
    assert len(right) >= size


def test_json_holds_no_number_that_a_double_would_change():
    def numbers(value):
        if isinstance(value, dict):
            return [n for item in value.values() for n in numbers(item)]
        if isinstance(value, list):
            return [n for item in value for n in numbers(item)]
        return [value] if isinstance(value, int) else []

    for path in FOLDER.glob("*.json"):
        found = numbers(json.loads(path.read_text(encoding="utf-8")))
        assert np.abs(np.array([0, *found], dtype=object)).max() < 2**53, path.name
