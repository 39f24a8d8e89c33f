"""Damaged, foreign and invented files: a clear answer, no crash, and never "clean"."""

import hashlib

import pytest
from deltafl.sim.inspect.audit.checks.account import Account
from deltafl.sim.inspect.audit.checks.first_model import FirstModel
from frames import (
    DIGEST,
    PREFIX,
    chained,
    frames_of,
    of_records,
    records,
    starts_of,
    whole_frames,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import serious
from staged_runs import (
    RUN_ID,
    Edit,
    Kind,
    OneQuestionStage,
    Said,
    TinyStage,
    played,
    write,
    write_truth,
)

from deltafl.sim.errors import ChainError, Damage, UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.transcript import TRANSCRIPT
from deltafl.sim.record.truth import TRUTH

MAGIC = TRANSCRIPT.magic


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The transcript of an honest round, which nobody changes."""
    path = tmp_path_factory.mktemp("tiny") / "t.bin"
    write(played(TinyStage).entries, path)
    return path


def audited(path, content, **options):
    path.write_bytes(content)
    return audit(path, Options(**options))


def places(report, rule):
    return [place for f in report.findings if f.rule == rule for place in f.evidence]


def test_the_file_is_clean_as_it_was_written(tiny):
    assert serious(audit(tiny)) == set()


@pytest.mark.parametrize("record", [1, 20, 52])
@pytest.mark.parametrize(
    "inside", [1, PREFIX, PREFIX + 3, -DIGEST, -1], ids=["length", "frame", "kind", "digest", "end"]
)
def test_a_file_cut_inside_a_record_is_cut(tiny, tmp_path, record, inside):
    starts = starts_of(tiny)
    at = starts[record] + inside if inside > 0 else starts[record + 1] + inside
    report = audited(tmp_path / "t.bin", tiny.read_bytes()[:at])
    assert "record.cut" in serious(report)
    assert [place.record for place in places(report, "record.cut")] == [record]


def test_checks_of_a_file_that_is_cut_are_partial(tiny, tmp_path):
    whole, cut = audit(tiny), audited(tmp_path / "t.bin", tiny.read_bytes()[: starts_of(tiny)[53]])
    of_a_directory = {Account.name, FirstModel.name}  # a transcript alone says nothing of itself
    done = {check.outcome for check in whole.checks if check.name not in of_a_directory}
    assert done == {Outcome.PASSED, Outcome.EMPTY}
    failed, *others = (check for check in cut.checks if check.name not in of_a_directory)
    assert failed.outcome is Outcome.FAILED
    assert {check.outcome for check in others} == {Outcome.PARTIAL}
    assert any("what follows the damage" in one for one in cut.not_checked)
    assert not any("what follows the damage" in one for one in whole.not_checked)


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 20, 30, 48, 52, 53])
def test_a_file_cut_between_records_is_unfinished(tiny, tmp_path, kept):
    report = audited(tmp_path / "t.bin", tiny.read_bytes()[: starts_of(tiny)[kept]])
    assert "record.unfinished" in serious(report)


def test_a_digest_from_elsewhere_tells_what_was_cut(tiny, tmp_path):
    head = whole_frames(tiny)[-1][-DIGEST:]
    assert serious(audit(tiny, Options(head=head))) == set()
    cut = tiny.read_bytes()[: starts_of(tiny)[-2]]
    assert "record.head-differs" in serious(audited(tmp_path / "t.bin", cut, head=head))


def test_a_digest_of_another_file_is_refused(tiny):
    assert "record.head-differs" in serious(audit(tiny, Options(head=bytes(32))))


@pytest.mark.parametrize("record", [0, 1, 30, 52])
@pytest.mark.parametrize("inside", [PREFIX + 5, -1], ids=["frame", "digest"])
def test_an_edited_byte_is_found_in_its_record(tiny, tmp_path, record, inside):
    content, starts = bytearray(tiny.read_bytes()), starts_of(tiny)
    content[starts[record] + inside if inside > 0 else starts[record + 1] + inside] ^= 1
    report = audited(tmp_path / "t.bin", bytes(content))
    assert "record.edited" in serious(report)
    assert [place.record for place in places(report, "record.edited")] == [record]


def test_a_record_that_was_taken_out_is_missed(tiny, tmp_path):
    whole = whole_frames(tiny)
    report = audited(tmp_path / "t.bin", MAGIC + b"".join(whole[:30] + whole[31:]))
    assert "record.missing" in serious(report)
    assert [place.record for place in places(report, "record.missing")] == [30]


def test_two_records_that_changed_places_are_found(tiny, tmp_path):
    whole = whole_frames(tiny)
    whole[30], whole[31] = whole[31], whole[30]
    report = audited(tmp_path / "t.bin", MAGIC + b"".join(whole))
    assert "record.reordered" in serious(report)
    assert [place.record for place in places(report, "record.reordered")] == [30]


def test_a_repeated_record_is_found(tiny, tmp_path):
    whole = whole_frames(tiny)
    report = audited(tmp_path / "t.bin", MAGIC + b"".join(whole[:31] + whole[30:]))
    assert "record.reordered" in serious(report)


def test_a_record_that_was_taken_out_under_a_new_chain_is_still_missed(tiny, tmp_path):
    frames = frames_of(tiny)
    report = audited(tmp_path / "t.bin", chained(frames[:30] + frames[31:]))
    assert "record.malformed" in serious(report)


def test_damage_hides_nothing_that_came_before(tmp_path):
    run = played(TinyStage)
    strange = [*run.entries[:40], Said(1, False, 3, b'{"loss": 1.25}'), *run.entries[40:]]
    write(strange, tmp_path / "t.bin")
    content = (tmp_path / "t.bin").read_bytes()[:-50]
    assert {"clear.values", "record.cut"} <= serious(audited(tmp_path / "t.bin", content))


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", Damage.EMPTY),
        (MAGIC[:5], Damage.FOREIGN),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), Damage.FOREIGN),
        (b"x" * 10_000, Damage.FOREIGN),
        (TRUTH.magic, Damage.FOREIGN),
        (MAGIC.replace(b" 3", b" 2"), Damage.VERSION),
        (MAGIC.replace(b" 3", b" 4"), Damage.VERSION),
    ],
    ids=["empty", "cut magic", "picture", "text", "truth file", "older", "newer"],
)
def test_what_is_no_transcript_of_this_version_is_refused(tmp_path, content, damage):
    with pytest.raises(ChainError) as caught:
        audited(tmp_path / "t.bin", content)
    assert caught.value.damage is damage
    assert str(tmp_path / "t.bin") in str(caught.value)


def test_no_records_are_no_clean_run(tmp_path):
    assert {"record.unfinished", "record.no-messages"} <= serious(
        audited(tmp_path / "t.bin", MAGIC)
    )


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        audit(tmp_path / "nowhere", Options())


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        audit(tmp_path, Options())


def test_the_truth_of_another_run_is_refused(tiny, tmp_path):
    write_truth(played(TinyStage), tmp_path / "truth.sqlite", run_id=b"another runs id.")
    with pytest.raises(UserError, match=b"another runs id.".hex()):
        audit(tiny, Options(truth=tmp_path / "truth.sqlite"))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda c: c[:-3],
        lambda c: c[:60] + bytes([c[60] ^ 1]) + c[61:],
        lambda _: MAGIC,
    ],
    ids=["empty", "cut", "edited", "transcript"],
)
def test_a_damaged_truth_file_is_refused(tiny, tmp_path, change):
    write_truth(played(TinyStage), tmp_path / "truth.sqlite")
    content = (tmp_path / "truth.sqlite").read_bytes()
    (tmp_path / "truth.sqlite").write_bytes(change(content))
    with pytest.raises(UserError, match=r"truth\.bin"):
        audit(tiny, Options(truth=tmp_path / "truth.sqlite"))


def test_a_truth_file_that_is_not_there_is_named(tiny, tmp_path):
    with pytest.raises((UserError, FileNotFoundError), match=r"truth\.bin"):
        audit(tiny, Options(truth=tmp_path / "truth.sqlite"))


# What a program that writes other records than ours makes of the format, under a chain that is
# right. A message is [1, number, round, sent, peer, size, digest, bytes].

OPENING, MESSAGE, SUM, END, CLOSING = range(5)


def message(data, *, round_=1, sent=False, peer=3, digest=None):
    digest = hashlib.sha256(data).digest() if digest is None else digest
    return [MESSAGE, 0, round_, sent, peer, len(data), digest, data]


MALFORMED = {
    "no record of a known kind": [9, 0, b"x"],
    "a kind that is a text": ["1", 0, b"x"],
    "an array in it": [MESSAGE, 0, 1, False, 3, 1, bytes(32), [1]],
    "a digest that is not of its message": message(b"data", digest=bytes(32)),
    "a digest of the wrong size": message(b"data", digest=bytes(31)),
    "more bytes than its size": [MESSAGE, 0, 1, False, 3, 1, bytes(32), b"data"],
    "a repetition of what follows": [MESSAGE, 0, 1, True, 3, 1, bytes(32), 999],
    "a negative round": message(b"data", round_=-1),
    "a negative device": message(b"data", peer=-1),
    "too few fields": [MESSAGE, 0, 1, True],
    "too many fields": [*message(b"data"), 1],
    "a number that is a bool": message(b"data", round_=True),
    "a second opening": [OPENING, 0, RUN_ID, "full"],
    "a sum of fewer words than it says": [SUM, 0, 1, 0, 3, bytes(32), b"", bytes(8)],
    "a sum of half a word": [SUM, 0, 1, 0, 1, bytes(32), b"", bytes(7)],
    "a sum of half a device": [SUM, 0, 1, 0, 0, hashlib.sha256().digest(), b"abc", b""],
    "a sum of another digest": [SUM, 0, 1, 0, 1, bytes(32), b"", bytes(8)],
    "an end without a reason": [END, 0, 1],
    "an end for a number": [END, 0, 1, 5],
    "a closing without rounds": [CLOSING, 0],
}


@pytest.mark.parametrize("record", MALFORMED.values(), ids=MALFORMED)
def test_garbage_under_a_right_chain_is_malformed(tiny, tmp_path, record):
    elements = records(tiny)
    elements.insert(20, record)
    report = audited(tmp_path / "t.bin", of_records(elements))
    assert "record.malformed" in serious(report)
    assert [place.record for place in places(report, "record.malformed")] == [20]


def test_a_file_without_an_opening_is_malformed(tiny, tmp_path):
    report = audited(tmp_path / "t.bin", of_records(records(tiny)[1:]))
    assert "record.malformed" in serious(report)


def test_a_frame_that_is_no_msgpack_is_malformed(tiny, tmp_path):
    report = audited(tmp_path / "t.bin", chained([*frames_of(tiny)[:20], b"\xc1"]))
    assert "record.malformed" in serious(report)


EMPTY_SUM = [SUM, 0, 1, 0, 0, hashlib.sha256().digest(), b"", b""]
STRANGE = {
    "a message of no bytes": message(b""),
    "a message of random bytes": message(hashlib.sha256(b"random").digest()),
    "a message to a device that nobody knows": message(b"data", sent=True, peer=2**63),
    "a message of a round that never was": message(b"data", round_=2**40),
    "a message that is a repetition of the opening": [MESSAGE, 0, 1, True, 3, 1, bytes(32), 0],
    "a message that repeats what a device sent": [MESSAGE, 0, 1, True, 3, 1, bytes(32), 2],
    "an empty sum": EMPTY_SUM,
    "a sum of a slot that there is not": [SUM, 0, 1, 10**6, *EMPTY_SUM[4:]],
    "a sum of a round that never was": [SUM, 0, 77, *EMPTY_SUM[3:]],
    "a sum over the same device twice": [SUM, 0, 1, 0, 0, EMPTY_SUM[5], bytes(8), b""],
}


@pytest.mark.parametrize("at", [1, 20, 51])
@pytest.mark.parametrize("record", STRANGE.values(), ids=STRANGE)
def test_records_that_make_no_sense_are_found(tiny, tmp_path, record, at):
    elements = records(tiny)
    elements.insert(at, record)
    assert serious(audited(tmp_path / "t.bin", of_records(elements)))


def test_records_behind_the_closing_are_found(tiny, tmp_path):
    report = audited(tmp_path / "t.bin", of_records([*records(tiny), message(b"data")]))
    assert serious(report)


def test_a_closing_in_the_middle_is_found(tiny, tmp_path):
    elements = records(tiny)
    elements.insert(20, [CLOSING, 0, 1])
    assert serious(audited(tmp_path / "t.bin", of_records(elements)))


def test_a_closing_that_counts_wrong_is_found(tiny, tmp_path):
    elements = records(tiny)
    elements[-1] = [CLOSING, 0, 7]
    assert serious(audited(tmp_path / "t.bin", of_records(elements)))


@pytest.mark.parametrize(
    "mode", ["", "nothing", "every=0", "every=-1", "every=x", "every=" + "9" * 5000]
)
def test_an_opening_of_no_mode_is_malformed(tiny, tmp_path, mode):
    elements = records(tiny)
    elements[0][3] = mode
    report = audited(tmp_path / "t.bin", of_records(elements))
    assert [place.record for place in places(report, "record.malformed")] == [0]


def test_a_mode_that_keeps_more_than_it_says_is_malformed(tiny, tmp_path):
    elements = records(tiny)
    elements[0][3] = "headers"
    assert "record.malformed" in serious(audited(tmp_path / "t.bin", of_records(elements)))


def test_a_message_cut_short_in_a_whole_transcript_is_malformed(tiny, tmp_path):
    """Else a server would cut what it does not want to be read."""
    elements = records(tiny)
    elements[20][-1] = elements[20][-1][:100]
    report = audited(tmp_path / "t.bin", of_records(elements))
    assert [place.record for place in places(report, "record.malformed")] == [20]


def test_a_message_cut_shorter_than_a_head_is_malformed(tmp_path):
    write(played(TinyStage).entries, tmp_path / "t.bin", "headers")
    elements = records(tmp_path / "t.bin")
    elements[20][-1] = elements[20][-1][:100]
    report = audited(tmp_path / "t.bin", of_records(elements))
    assert [place.record for place in places(report, "record.malformed")] == [20]


@pytest.mark.parametrize("number", [1, 2])
def test_a_round_taken_out_under_a_new_chain_is_missed(tmp_path, number):
    entries = [e for e in played(OneQuestionStage).entries if e.round != number]
    write(entries, tmp_path / "t.bin", closed=2)
    assert "record.disagrees" in serious(audit(tmp_path / "t.bin"))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25)
def test_any_edited_byte_is_found(tiny, tmp_path_factory, data):
    content = bytearray(tiny.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "edited.bin"
    if at < len(MAGIC):
        with pytest.raises(ChainError):
            audited(path, bytes(content))
    else:
        assert any(rule.startswith("record.") for rule in serious(audited(path, bytes(content))))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_any_edited_message_is_found_under_a_new_chain(tiny, tmp_path_factory, data):
    """Nothing in a message is free to be anything else, but shares that nobody needed."""
    run = played(TinyStage)
    needed = Edit(run).find(1, Kind.SHARES)[:3]
    free = Edit(run).find(1, Kind.SHARES)[3:]
    said = [entry for entry in run.entries if isinstance(entry, Said) and entry not in free]
    assert needed
    entry = data.draw(st.sampled_from(said))
    changed = bytearray(entry.data)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    entries = [
        Said(e.round, e.sent, e.peer, bytes(changed)) if e is entry else e for e in run.entries
    ]
    path = tmp_path_factory.getbasetemp() / "changed.bin"
    write(entries, path)
    assert {f.rule for f in audit(path).findings} - {"search.narrow"}


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60)
def test_no_order_of_records_is_a_crash(tiny, tmp_path_factory, data):
    """Records are left out, repeated and moved as if by chance, under a chain that is right."""
    first, *elements, last = records(tiny)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(elements) - 1))
        match data.draw(st.sampled_from(["drop", "repeat", "move", "rename", "round"])):
            case "drop":
                del elements[at]
            case "repeat":
                elements.insert(data.draw(st.integers(0, len(elements))), elements[at])
            case "move":
                moved = elements.pop(at)
                elements.insert(data.draw(st.integers(0, len(elements))), moved)
            case "rename" if elements[at][0] == MESSAGE:
                elements[at] = [*elements[at][:4], data.draw(st.integers(0, 40)), *elements[at][5:]]
            case _:
                elements[at] = [*elements[at][:2], data.draw(st.integers(0, 3)), *elements[at][3:]]
    path = tmp_path_factory.getbasetemp() / "moved.bin"
    path.write_bytes(of_records([first, *elements, last]))
    audit(path)
