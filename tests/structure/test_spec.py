"""docs/spec.md and the code say the same, and cite each other rightly."""

import re
from dataclasses import replace
from datetime import date
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import spec_tables
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from deltafl.protocol import labels as protocol_labels
from deltafl.protocol import wire as envelopes
from deltafl.protocol.configuration import (
    QUANTILE_SLOT,
    UPDATE_SLOT,
    Exact,
    RoundConfig,
    UpdateParams,
)
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.radius import Clipped
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import RoundState
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import SessionParams, SlotSpec, codec, errors, keys, wire
from deltafl.secagg import labels as secagg_labels
from deltafl.secagg.errors import Fault, Refusal
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.openings import COMMITTED_SIZE
from deltafl.secagg.states import (
    Abort,
    ClientState,
    CloseRound,
    EndSlot,
    OpenSlotCall,
    ServerState,
)

ROOT = spec_tables.ROOT
TEXT = spec_tables.SPEC.read_text(encoding="utf-8")
HEADING = re.compile(r"^#{2,3} (\d+(?:\.\d+)?) (.*)$", re.MULTILINE)
CITED = re.compile(r"Spec: ((?:§\d+(?:\.\d+)?(?:, )?)+)\.")
WITHIN = re.compile(r"\((\d+\.\d+)(?:[,; ][^)]*)?\)|(?:of|as in|see) (\d+\.\d+)\b")

NOT_IN_ONE_PLACE = {
    "1.1",  # words
    "1.2",  # notation
    "1.7",  # pseudo-code
    "10.12",  # duties of a server, most of which are its caller's
    "14.1",  # claims and arguments; what follows from them is code elsewhere
    "14.3",
    "14.6",
    "14.7",
    "14.13",
    "14.9",
}
"""Sections that describe no module or function."""


def sections(text):
    """Titles by number, of sections and subsections."""
    return dict(HEADING.findall(text))


def leaves(text):
    """Numbers of the subsections."""
    return {number for number in sections(text) if "." in number}


def citations(text):
    """Section numbers that a source text cites."""
    return set(re.findall(r"§(\d+(?:\.\d+)?)", " ".join(CITED.findall(text))))


def cited_in_code():
    return {
        path: citations(path.read_text(encoding="utf-8"))
        for package in ("secagg", "protocol")
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def body(text, number):
    """What a section says, without its heading."""
    start = re.search(rf"^#+ {re.escape(number)} .*$", text, re.MULTILINE).end()
    following = re.search(r"^#{2,3} ", text[start:], re.MULTILINE)
    return text[start : start + following.start()] if following else text[start:]


def rows(text, number):
    """The cells of the table rows of a section, heads and rules included."""
    lines = [line for line in body(text, number).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# --- citations -----------------------------------------------------------------------------------


def test_sections_are_numbered_without_gaps():
    seen = {}
    for number in sections(TEXT):
        chapter, _, part = number.partition(".")
        expected = seen[chapter] = seen.get(chapter, -1) + 1
        assert int(part or 0) == expected, number
    assert list(seen) == [str(i + 1) for i in range(len(seen))]


@pytest.mark.parametrize(
    "path", cited_in_code(), ids=lambda path: f"{path.parent.name}.{path.stem}"
)
def test_what_code_cites_exists(path):
    assert cited_in_code()[path] <= set(sections(TEXT))


def test_every_section_about_code_is_cited():
    cited = set().union(*cited_in_code().values())
    assert leaves(TEXT) - cited == NOT_IN_ONE_PLACE


def test_every_mention_of_the_specification_is_a_citation():
    for path in cited_in_code():
        text = path.read_text(encoding="utf-8").replace('"Spec: §x.y"', "")
        assert len(re.findall(r"\bSpec:", text)) == len(CITED.findall(text)), path


def test_the_specification_refers_to_its_own_sections():
    named = {number for pair in WITHIN.findall(TEXT) for number in pair if number}
    assert len(named) > 20
    assert named <= set(sections(TEXT))


def test_lost_and_wrong_citations_are_found():
    text = "## 1 One\n\n### 1.1 First\n\n### 1.2 Second\n"
    code = '"""Does. Spec: §1.1, §1.3."""'
    assert citations(code) - set(sections(text)) == {"1.3"}
    assert leaves(text) - citations(code) == {"1.2"}
    assert citations('"""Does; spec 1.1."""') == set()


# --- names ---------------------------------------------------------------------------------------


def code_names(text, number):
    """First cells of a table in code spans."""
    return [row[0].strip("`") for row in rows(text, number) if row[0].startswith("`")]


def test_the_table_of_labels_is_that_of_the_code():
    known = {label.decode() for label in (*secagg_labels.Label, *protocol_labels.Label)}
    assert len(known) == 27
    listed = code_names(TEXT, "1.5")
    assert sorted(listed) == sorted(known)


def unused_labels(text):
    """Labels that the section which the table names for them does not use, whole."""
    table = [(row[0].strip("`"), row[1]) for row in rows(text, "1.5")[2:]]
    return [name for name, used in table if f'b"{name}"' not in body(text, used)]


def test_labels_are_used_where_the_table_says():
    assert unused_labels(TEXT) == []


def test_a_label_that_is_spelt_differently_is_found():
    wrong = TEXT.replace('b"deltafl/secagg/v4/self mask"', 'b"deltafl/secagg/v4/self-mask"')
    assert unused_labels(wrong) == ["deltafl/secagg/v4/self mask"]


def test_slot_labels_are_named():
    for label in (QUANTILE_SLOT, UPDATE_SLOT):
        assert f"`{label}`" in body(TEXT, "1.5")
        assert f"`{label}`" in body(TEXT, "12.3")


def test_versions_are_named():
    versions = secagg_labels.VERSION, protocol_labels.VERSION
    assert "That of sessions is {}, that of rounds {}.".format(*versions) in body(TEXT, "1.6")


def is_dated(text):
    """Whether the date of the page is that of the last of its changes, which are in order."""
    changes = re.findall(r"^\| (\d{4}-\d\d-\d\d) \|", body(text, "Changes"), re.MULTILINE)
    last = date.fromisoformat(changes[-1])
    return changes == sorted(changes) and f", {last.day} {last:%B %Y}. What changed" in text


def test_the_page_has_the_date_of_its_last_change():
    assert is_dated(TEXT)
    assert not is_dated(TEXT.replace("| before | 1 |", "| 2099-01-01 | 2 | |\n| before | 1 |"))


def missing_reasons(text, names, section):
    """Members without a row that gives their name, value and meaning; rows without a member."""
    listed = {(row[0], row[1]) for row in rows(text, section)[2:] if row[2]}
    return listed ^ {(f"`{member.name}`", f'"{member.value}"') for member in names}


@pytest.mark.parametrize(("names", "section"), [(Refusal, "11.2"), (Fault, "11.3")])
def test_tables_of_reasons_have_every_member_with_a_meaning(names, section):
    assert missing_reasons(TEXT, names, section) == set()


@pytest.mark.parametrize(
    "change",
    [
        ("| `BAD_SHARE` | ", "| `BAD_SHARES` | "),
        ('| "bad share" | ', '| "a bad share" | '),
        ('| "timed out" | nothing came before the round was closed |', '| "timed out" | |'),
    ],
)
def test_a_wrong_table_of_reasons_is_found(change):
    assert change[0] in TEXT
    assert len(missing_reasons(TEXT.replace(*change), Fault, "11.3")) >= 1


def test_the_table_of_exceptions_is_complete():
    raised = {
        name
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, errors.SecAggError)
    }
    assert set(code_names(TEXT, "11.1")) == raised - {"SecAggError"}


def test_every_refusal_and_fault_is_met_in_the_sections_on_machines():
    machines = TEXT[TEXT.index("## 9 Device") : TEXT.index("## 11 Errors")]
    others = "".join(body(TEXT, number) for number in ("3.7", "12.8", "12.12"))
    for member in (*Refusal, *Fault):
        named = (f"`{member.name}`", f'refuse("{member.name}")')  # in prose, or in pseudo-code
        assert any(name in machines + others for name in named), member.name


# --- generated tables ----------------------------------------------------------------------------


def test_generated_tables_are_current():
    message = "renew them: python tests/structure/spec_tables.py --write"
    assert spec_tables.renewed(TEXT) == TEXT, message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `masked` | ConsistencyCheck |", "| `masked` | ShareDelivery |"),
        ("    linked --> opened: OpenSlot\n", "    linked --> ready: OpenSlot\n"),
        ("    mask --> ready: end slot\n", ""),
        ("| `min_honest_tail` | 2 |", "| `min_honest_tail` | 1 |"),
        ("| 0 | [", "| 0 | [1"),
    ],
)
def test_a_stale_table_and_a_stale_diagram_are_found(old, new):
    stale = TEXT.replace(old, new, 1)
    assert stale != TEXT
    assert spec_tables.renewed(stale) == TEXT


def test_a_lost_table_is_found():
    for name in spec_tables.generated():
        with pytest.raises(ValueError, match="0 times"):
            spec_tables.renewed(TEXT.replace(f"<!-- {name}:end -->", ""))


def changed(table, state, event, following):
    """A table with another transition, or, to None, without one."""
    events = {**table[state], event: following}
    return {**table, state: {e: f for e, f in events.items() if f is not None}}


def differing(text):
    """Which of the generated parts are other than those that the page should have."""
    renewed = spec_tables.renewed(text)
    return {
        name
        for name, content in spec_tables.generated().items()
        if content in renewed and content not in text
    }


@pytest.mark.parametrize(
    ("state", "event", "following"),
    [
        (ServerState.UNMASK, CloseRound, ServerState.MASK),
        (ServerState.MASK, EndSlot, None),
        (ServerState.RECEIPT, Abort, ServerState.ABORTED),
        (ServerState.DONE, OpenSlotCall, ServerState.MASK),
    ],
)
def test_another_table_of_the_server_asks_for_another_page(state, event, following, monkeypatch):
    tables = spec_tables.SERVER_TRANSITIONS
    other = changed(tables, state, event, following)
    assert differing(TEXT) == set()
    monkeypatch.setattr(spec_tables, "SERVER_TRANSITIONS", other)
    assert differing(TEXT) == {"states:server", "diagram:server"}


def test_other_tables_of_devices_ask_for_another_page(monkeypatch):
    tables = spec_tables.CLIENT_TRANSITIONS
    other = changed(tables, ClientState.CONFIRMED, UnmaskRequest, ClientState.CONFIRMED)
    monkeypatch.setattr(spec_tables, "CLIENT_TRANSITIONS", other)
    assert differing(TEXT) == {"states:client", "diagram:client"}
    rounds = changed(spec_tables.TRANSITIONS, RoundState.UPDATED, Query, RoundState.SEARCHING)
    monkeypatch.setattr(spec_tables, "TRANSITIONS", rounds)
    assert differing(TEXT) >= {"states:round", "diagram:round"}


# --- lengths -------------------------------------------------------------------------------------


def integer_size(value):
    """I(x) of §7.4."""
    return next(
        size for size, bits in ((1, 7), (2, 8), (3, 16), (5, 32), (9, 64)) if value < 2**bits
    )


def string_size(size):
    """B(s) of §7.4."""
    return size + (2 if size < 2**8 else 3 if size < 2**16 else 5)


def array_head(num_fields):
    """A(f) of §7.4."""
    return 1 if num_fields <= 15 else 3


def formulas(text):
    """The formulas for lengths, as written, by what they are the length of."""
    found = {}
    for number in ("7.4", "12.7"):
        for row in rows(text, number):
            if len(row) == 2 and row[1].startswith("`"):
                found[row[0].partition(",")[0]] = row[1].strip("`")
    return found


FORMULAS = formulas(TEXT)


def evaluated(formula, values):
    """The value of a formula of the page."""
    python = re.sub(r"⌈([^⌉]*)⌉", r"ceil(\1)", formula).replace("·", "*")
    names = {"I": integer_size, "B": string_size, "A": array_head, "ceil": ceil, **values}
    return eval(python, {"__builtins__": {}}, names)  # noqa: S307 formulas of our own page


def length(what, formulas=FORMULAS, **values):
    """Evaluate the formula for a length."""
    return evaluated(formulas[what], values)


def of_params(params):
    """What formulas may name of a session."""
    num_slots = len(params.slots)
    parts = sum(
        length(
            "slot",
            e=len(s.label.encode()),
            L=s.length,
            b=s.ring_bits,
            verified=int(s.verified),
            proof_size=s.proof_size,
        )
        for s in params.slots
    )
    return {
        "T": num_slots,
        "U": len(params.columns),
        "N": params.num_invited,
        "k": params.degree,
        "t": params.threshold,
        "min_cohort": params.min_cohort,
        "min_roster": params.min_roster,
        "slot_list": length("slot_list", T=num_slots, S=parts),
        "advertisement": length("advertisement"),
        "link": length("link", U=len(params.columns)),
        "box": length("box", U=len(params.columns)),
    }


@st.composite
def sessions(draw):
    """Parameters from tiny ones to some whose fields take every size of header."""
    num_invited = draw(st.sampled_from([3, 9, 130, 300, 70_000]))
    num_slots = draw(st.sampled_from([1, 4, 5, 130]))
    slots = []
    for bits in draw(st.lists(st.integers(1, 64), min_size=num_slots, max_size=num_slots)):
        verified = bits >= 33 and draw(st.booleans())
        slots.append(
            SlotSpec(
                "x" * draw(st.integers(0, 64)),
                draw(st.sampled_from([1, 9, 200, 2**16])),
                bits,
                draw(st.booleans()),
                verified,
                draw(st.sampled_from([0, 96, 160, 2**16])) if verified else 0,
            )
        )
    threshold = draw(st.integers(2, min(num_invited, 400)))
    return SessionParams(
        slots=tuple(slots),
        num_invited=num_invited,
        degree=num_invited - 1,
        threshold=threshold,
        min_cohort=threshold,
        graph_seed=bytes(32),
        context=bytes(32),
    )


ADVERTISED = AdvertiseKeys(bytes(keys.KEY_SIZE), Credential(bytes(32), bytes(64)))


def samples(params, num_devices, num_others, slot):
    """A message of every kind, with the values that its formula names."""
    members = np.ones(num_devices, dtype=np.bool_)
    some = dict.fromkeys(range(num_others))
    boxes = dict.fromkeys(some, bytes(wire.box_size(params)))
    spec = params.slots[slot]
    packed = bytes(ceil(spec.wire_length * spec.ring_bits / 8))
    signatures = dict.fromkeys(some, bytes(64))
    tags, receipt = (dict.fromkeys(some, bytes(n)) for n in (16, wire.receipt_size(params)))
    committed = dict.fromkeys(some, bytes(COMMITTED_SIZE))
    positions = np.arange(num_others, dtype=np.uint32)
    kinds, shares = np.zeros(num_others, np.uint8), np.zeros((num_others, 9), np.uint32)
    at = {"i": slot, "n": num_devices}
    vector = {"i": slot, "W": spec.packed_size}
    opening = [(SumOpening(slot, packed, committed), {**vector, "p": num_others})]
    return (opening if spec.verified else []) + [
        (SessionOpen(params), {}),
        (
            RosterMessage(
                np.arange(num_devices, dtype=np.uint32),
                dict.fromkeys(some, ADVERTISED),
            ),
            {"n": num_devices, "g": num_others},
        ),
        (ShareDelivery(members, boxes), {"n": num_devices, "g": num_others}),
        (OpenSlot(slot, members, tags), {**at, "g": num_others}),
        (ConsistencyCheck(slot, members), at),
        (UnmaskRequest(slot, members, signatures), {**at, "q": len(signatures)}),
        (ADVERTISED, {}),
        (ShareKeys((bytes(32),) * (2 * len(params.columns)), boxes), {"g": num_others}),
        (ShareReceipt(receipt), {"g": num_others}),
        (
            MaskedInput(
                slot,
                packed,
                bytes(COMMITTED_SIZE) if spec.verified else b"",
                bytes(spec.proof_size),
            ),
            {**vector, "verified": int(spec.verified), "proof_size": spec.proof_size},
        ),
        (ConsistencySignature(slot, bytes(64)), {"i": slot}),
        (UnmaskShares(slot, positions, kinds, shares), {"i": slot, "s": num_others}),
    ]


# Not shrunk: the message says which formula is wrong, and shrinking takes half a minute.
@pytest.mark.slow
@settings(max_examples=40, phases=(Phase.explicit, Phase.generate))
@given(params=sessions(), data=st.data())
def test_lengths_of_messages_are_those_of_the_formulas(params, data):
    num_devices = data.draw(st.integers(1, min(params.num_invited, 300)))
    num_others = data.draw(st.integers(0, min(num_devices, 12)))
    slot = data.draw(st.integers(0, len(params.slots) - 1))
    known = of_params(params)
    for message, values in samples(params, num_devices, num_others, slot):
        encoded = wire.encode(message, params)
        what = type(message).__name__
        assert len(encoded) == length(what, **(known | values)), what
        assert wire.decode(encoded, params) is not None
        assert encoded[2] == KINDS[what]
        assert misfits(TEXT, what, encoded, known | values) == []


SIGNED = SessionParams(
    (SlotSpec("a", 4, 33, verified=True, proof_size=64), SlotSpec("b", 9, 7, whole=True)),
    *(9, 8, 5, 5, bytes(32), bytes(32)),
)


@pytest.mark.parametrize("slot", [0, 1])
def test_every_message_has_a_sample(slot):
    found = {type(message).__name__ for message, _ in samples(SIGNED, 9, 3, slot)}
    assert found == KINDS.keys() - (set() if SIGNED.slots[slot].verified else {"SumOpening"})


def tables_of_fields(text):
    """By message, its fields as the tables of section 8 have them: (name, type, size)."""
    return {
        title: [tuple(row) for row in rows(text, number)[2:]]
        for number, title in sections(text).items()
        if number.startswith("8.")
    }


def misfits(text, what, encoded, values):
    """The fields of a message that are not as its table says."""
    fields = codec.read_fields(encoded, most=12)[3:]
    listed = tables_of_fields(text)[what]
    if len(fields) != len(listed):
        return [what]
    return [
        name
        for value, (name, kind, size) in zip(fields, listed, strict=True)
        if isinstance(value, bytes) != kind.startswith("string")
        or (isinstance(value, bytes) and len(value) != evaluated(size.strip("`"), values))
    ]


@pytest.mark.parametrize(
    ("old", "new", "misfit"),
    [
        (
            "| committed | string | `96·verified + proof_size` |",
            "| committed | string | `96·verified` |",
            "committed",
        ),
        ("| sum | string | `W` |", "| sum | string | `i` |", "sum"),
        ("| signatures | string, records |", "| signatures | integer |", "signatures"),
        ("| links | string, records | `g·(4 + link)` |\n", "", "ShareReceipt"),
    ],
)
def test_a_wrong_table_of_fields_is_found(old, new, misfit):
    assert old in TEXT
    known, wrong = of_params(SIGNED), TEXT.replace(old, new)
    found = [
        name
        for slot in (0, 1)
        for message, values in samples(SIGNED, 9, 3, slot)
        for name in misfits(
            wrong,
            type(message).__name__,
            wire.encode(message, SIGNED),
            known | values | {"L": SIGNED.slots[slot].length},
        )
    ]
    assert set(found) == {misfit}


def kinds(text):
    """The kinds of messages, read off the specification."""
    return {
        title: int(re.search(r"Kind 0x([0-9a-f]{2})", body(text, number))[1], 16)
        for number, title in sections(text).items()
        if number.startswith("8.")
    }


KINDS = kinds(TEXT)


def test_a_changed_kind_is_found():
    assert kinds(TEXT.replace("Kind 0x12", "Kind 0x18"))["ShareKeys"] != KINDS["ShareKeys"]


def test_every_kind_of_message_has_a_section():
    assert set(KINDS.values()) == set(wire._BY_KIND)
    assert len(KINDS) == len(wire._BY_KIND)


def test_a_wrong_formula_is_found():
    params = SessionParams((SlotSpec("a", 4, 16),), 5, 4, 3, 3, bytes(32), bytes(32))
    wrong = FORMULAS | {"OpenSlot": "21 + I(i) + I(n) + B(⌈n/7⌉) + B(20·g)"}
    message = OpenSlot(0, np.ones(8, dtype=np.bool_))
    encoded = wire.encode(message, params)
    assert len(encoded) == length("OpenSlot", i=0, n=8, g=0)
    assert len(encoded) != length("OpenSlot", wrong, i=0, n=8, g=0)


def test_the_bound_on_messages_is_as_stated():
    stated = re.search(r"^    (64 \+ longest.*)$", body(TEXT, "7.2"), re.MULTILINE)[1]
    python = stated.replace("·", "*").replace("^", "**")
    for verified, num_slots, vector in ((False, 1, 4), (True, 3, 2**22), (True, 3000, 4)):
        slots = (SlotSpec("a", vector, 16),) * num_slots
        if verified:
            slots += (SlotSpec("b", 1, 32, whole=True, verified=True, proof_size=128),)
        params = SessionParams(slots, 500, 499, 300, 300, bytes(32), bytes(32))
        names = of_params(params) | {"max": max}
        longest = "longest vector"
        value = eval(  # noqa: S307 a formula of our own page
            python.replace(longest, "vector").replace("longest proof", "proof"),
            {"__builtins__": {}},
            names | {"vector": max(2 * vector, 36 * verified), "proof": 128 * verified},
        )
        assert wire.max_bytes(params) == value


CONFIG = RoundConfig(
    round_index=2**40,
    cohort_size=300,
    theta=Fraction(4, 5),
    method="histogram",
    num_pivots=70,
    search=SearchParams(
        max_queries=200,
        grid=LossGrid(resolution_bits=8, bound=8),
        weighting=Weighting.POWERS_OF_TWO,
        min_cohort=1000,
        verified=True,
    ),
    update=UpdateParams(clip=4.0, resolution_bits=12, max_weight=500),
    update_length=70_000,
    warm_start=1000,
    min_tail=300,
)


@pytest.mark.parametrize("size", [0, 21, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("thetas", [[Fraction(4, 5)], [Fraction(4, 5), Fraction(1, 2)]])
@pytest.mark.parametrize(
    ("aggregation", "tag", "parameters"),
    [(Exact(), 0, 0), (Clipped(0.5), 1, 8), (UpdateNoise(1.0, 300, 200), 2, 24)],
)
def test_lengths_of_envelopes_are_those_of_the_formulas(size, thetas, aggregation, tag, parameters):
    update = UpdateParams(4.0, 12, 1 if tag == 2 else 500, aggregation)
    announced = replace(CONFIG, update=update)
    session, opening, models = bytes(size), bytes(size // 2), bytes(len(thetas) * (size + 1))
    fixed = {"name": len("histogram"), "models": len(models), "session": size}
    fixed |= {"weighting": len("powers-of-two"), "opening": len(opening)}
    search = CONFIG.search
    fixed |= {"parameters": parameters}
    config = {
        name: getattr(CONFIG, name)
        for name in ("round_index", "cohort_size", "num_pivots", "update_length")
    }
    config |= {name: getattr(search, name) for name in ("max_queries", "epsilon_ticks")}
    config |= {"max_weight": update.max_weight, "update_resolution_bits": update.resolution_bits}
    config["min_search_cohort"] = search.min_cohort
    config |= {"numerator": 4, "denominator": 5, "resolution_bits": 8, "bound": 8}
    config |= {"noise_numerator": 0, "noise_denominator": 0, "noise_devices": 0}
    config |= {"warm_start": 1001, "verified": 1, "others": len(thetas) - 1}
    config |= {"min_tail": CONFIG.min_tail, "aggregation": tag}
    pivots = tuple(range(70))
    samples = {
        "Announce": (Announce(Levels.at(announced, thetas), models, session), config),
        "Relay": (Relay(session), {}),
        "Query": (Ask(Query("histogram", pivots), session, opening), {"pivots": len(pivots)}),
        "Threshold": (
            Ask(Threshold(300, 70_000), session, opening),
            {"eta": 300, "delta": 70_000},
        ),
    }
    kinds = {row[0]: row[1] for row in rows(TEXT, "12.7") if row[1].startswith("0x")}
    assert kinds.keys() == samples.keys()
    for what, (envelope, values) in samples.items():
        encoded = envelopes.encode(envelope)
        assert len(encoded) == length(what, **fixed, **values), what
        assert envelopes.decode(encoded) == envelope
        at = 4 if encoded[0] == 0xDC else 2  # array headers of 3 bytes and of 1
        assert encoded[at] == int(kinds[what], 16)


def test_every_formula_is_evaluated():
    messages = {title for number, title in sections(TEXT).items() if number.startswith("8.")}
    parts = {"slot", "slot_list", "advertisement", "box"}
    envelopes = {"Announce", "Relay", "Query", "Threshold"}
    assert FORMULAS.keys() == messages | parts | envelopes


def test_sections_are_read_to_their_end():
    text = "## 1 One\n\n### 1.1 A\n\n| `x` | 1 |\n\n### 1.2 B\n\n| `y` | 2 |\n"
    assert rows(text, "1.1") == [["`x`", "1"]]
    assert code_names(text, "1.2") == ["y"]


def test_the_script_prints_the_tables(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["spec_tables.py"])
    assert spec_tables.main() == 0
    printed = capsys.readouterr().out
    parts = spec_tables.generated()
    assert [name for name, content in parts.items() if content not in printed] == []
