import hashlib
import itertools
import os

import msgpack
import numpy as np
import pytest
from frames import MAGIC, chained
from hypothesis import given
from hypothesis import strategies as st

from deltafl.protocol import wire
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SlotSum
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import read_chain
from deltafl.sim.record.transcript import (
    HEAD_RECEIVED,
    HEAD_SENT,
    SUM_WORDS,
    TRANSCRIPT,
    Begin,
    Beyond,
    Closing,
    Message,
    Opening,
    Resumed,
    RoundEnd,
    Sum,
    TranscriptWriter,
    kept_of,
    read_beyond,
    read_transcript,
    sum_sha256,
)

LONG = bytes(range(256)) * 20
MESSAGES = [
    (True, 3, b"roster"),
    (True, 4, b"roster"),
    (False, 3, b""),
    (False, 4, LONG),
    (True, 4, LONG),
]
TOTAL = SlotSum(1, np.arange(300, dtype=np.uint32), (3, 4), (4,))
RUN_ID = bytes(range(16))
COHORT = (3, 4)


def play(writer, rounds):
    for number in rounds:
        writer.begin_round(number, COHORT)
        for sent, peer, data in MESSAGES:
            writer.message(sent=sent, peer=peer, data=data)
        writer.revealed(TOTAL)
        writer.end_round(None if number == 1 else "nobody was left")


def write(path, *, mode="full", rounds=2, finish=True):
    with TranscriptWriter(path, mode, run_id=RUN_ID) as writer:
        play(writer, range(1, rounds + 1))
        if finish:
            writer.finish(rounds)
        return writer.flush()


def frames_of(content):
    """The frames of a file with their lengths and digests."""
    frames, start = [], len(MAGIC)
    while start < len(content):
        end = start + 4 + int.from_bytes(content[start : start + 4], "big") + 32
        frames.append(content[start:end])
        start = end
    return frames


def kind_and_head(record):
    return type(record), getattr(record, "round", None), getattr(record, "head", None)


def damage(path, **options):
    records = []
    with pytest.raises(ChainError) as caught:
        records.extend(read_transcript(path, **options))
    assert len(records) == caught.value.frame  # all records before it were still delivered
    return caught.value.frame, caught.value.damage


def test_everything_is_read_back(tmp_path):
    mark = write(tmp_path / "t.bin")
    opening, *records, closing = read_transcript(tmp_path / "t.bin", digest=mark.digest)
    assert (opening.run_id, opening.mode) == (RUN_ID, "full")
    assert isinstance(opening, Opening)
    assert isinstance(closing, Closing)
    assert closing.rounds == 2
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    assert [record.round for record in records] == [1] * 8 + [2] * 8
    begun = [(r.number, r.round, r.cohort) for r in records if isinstance(r, Begin)]
    assert begun == [(1, 1, COHORT), (9, 2, COHORT)]
    messages = [record for record in records if isinstance(record, Message)]
    at = {record.number: record for record in messages}
    shown = [
        (m.sent, m.peer, m.head if m.repeats is None else at[m.repeats].head) for m in messages
    ]
    assert shown == MESSAGES * 2
    assert {m.number: m.repeats for m in messages if m.repeats is not None} == {3: 2, 11: 10}
    digests = [hashlib.sha256(data).digest() for _, _, data in MESSAGES * 2]
    assert [message.sha256 for message in messages] == digests
    sums = [record for record in records if isinstance(record, Sum)]
    assert [(s.slot, s.length, s.contributors.tolist()) for s in sums] == [(1, 300, [3, 4])] * 2
    assert sums[0].sha256 == hashlib.sha256(np.arange(300, dtype="<u8").tobytes()).digest()
    assert sums[0].words.tolist() == list(range(300 - SUM_WORDS, 300))
    ends = [record for record in records if isinstance(record, RoundEnd)]
    assert [(end.round, end.aborted) for end in ends] == [(1, ""), (2, "nobody was left")]
    assert mark.size == (tmp_path / "t.bin").stat().st_size


def test_offsets_are_those_of_the_frames(tmp_path):
    write(tmp_path / "t.bin")
    content = (tmp_path / "t.bin").read_bytes()
    starts = itertools.accumulate(map(len, frames_of(content)), initial=len(MAGIC))
    assert [r.offset for r in read_transcript(tmp_path / "t.bin")] == list(starts)[:-1]


@pytest.mark.parametrize(
    ("mode", "whole"), [("headers", set()), ("full", {1, 2, 3, 4}), ("every=2", {2, 4})]
)
def test_modes_decide_whose_bytes_are_kept(mode, whole, tmp_path):
    write(tmp_path / "t.bin", mode=mode, rounds=4)
    for record in read_transcript(tmp_path / "t.bin"):
        if isinstance(record, Message) and record.size == len(LONG):
            head = HEAD_SENT if record.sent else HEAD_RECEIVED
            assert record.head == (LONG if record.round in whole else LONG[:head])


def test_a_message_is_not_said_to_repeat_one_of_another_round(tmp_path):
    write(tmp_path / "t.bin")
    second = [r for r in read_transcript(tmp_path / "t.bin") if isinstance(r, Message)][5:]
    assert second[0].head == b"roster"


@pytest.mark.slow
@given(st.data())
def test_any_flipped_bit_is_found_where_it_is(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("transcript") / "t.bin"
    mark = write(path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(len(MAGIC), len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    lengths = map(len, frames_of(path.read_bytes()))
    ends = list(itertools.accumulate(lengths, initial=len(MAGIC)))[1:]
    path.write_bytes(content)
    damaged = next(number for number, end in enumerate(ends) if position < end)
    assert damage(path, digest=mark.digest)[0] == damaged


@pytest.mark.slow
@given(st.data())
def test_any_truncation_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("transcript") / "t.bin"
    mark = write(path)
    content = path.read_bytes()
    starts = list(itertools.accumulate(map(len, frames_of(content)), initial=len(MAGIC)))
    length = data.draw(st.integers(len(MAGIC), len(content) - 1))
    path.write_bytes(content[:length])
    whole = max(number for number, start in enumerate(starts) if start <= length)
    assert damage(path, digest=mark.digest) == (whole, Damage.CUT)
    if length == starts[whole]:  # between two frames the head digest, or the closing, can tell
        assert not any(isinstance(record, Closing) for record in read_transcript(path))


@pytest.mark.parametrize(
    ("edit", "where", "what"),
    [
        (lambda f: [*f[:2], f[3], f[2], *f[4:]], 2, Damage.REORDERED),
        (lambda f: [*f[:2], *f[3:8], f[2], *f[8:]], 2, Damage.REORDERED),
        (lambda f: [*f[:3], f[2], *f[3:]], 3, Damage.REORDERED),
        (lambda f: [*f[:5], *f[6:]], 5, Damage.MISSING),
        (lambda f: [*f[:5], *f[9:]], 5, Damage.MISSING),
        (lambda f: [*f[:5], f[5][:-1] + bytes([f[5][-1] ^ 1]), *f[6:]], 5, Damage.EDITED),
    ],
)
def test_the_numbers_tell_what_was_done_to_the_frames(tmp_path, edit, where, what):
    path = tmp_path / "t.bin"
    write(path)
    path.write_bytes(MAGIC + b"".join(edit(frames_of(path.read_bytes()))))
    assert damage(path) == (where, what)


@pytest.mark.parametrize(
    ("content", "what", "saying"),
    [
        (b"", Damage.EMPTY, "empty"),
        (b"something else, long enough to have a header", Damage.FOREIGN, "does not begin"),
        (b"\x00" * 100, Damage.FOREIGN, "does not begin"),
        (b"deltafl truth 1\n", Damage.FOREIGN, "does not begin"),
        (b"deltafl transcript 99\n", Damage.VERSION, "version 99.*reads version 3: .* newer one$"),
        (b"deltafl transcript 2\n", Damage.VERSION, "version 2 .*version 3: .* use deltafl 0.1"),
    ],
)
def test_what_is_no_transcript_is_refused_with_a_reason(tmp_path, content, what, saying):
    (tmp_path / "t.bin").write_bytes(content)
    assert damage(tmp_path / "t.bin") == (0, what)
    assert what.is_unreadable
    with pytest.raises(ChainError, match=saying):
        list(read_transcript(tmp_path / "t.bin"))


OPENING = [0, 0, RUN_ID, "full"]


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xc0"],
        [msgpack.packb([0])],
        [msgpack.packb([1, 0, 1, True, 3, 0, hashlib.sha256(b"").digest(), b""])],
        [msgpack.packb(OPENING), msgpack.packb([0, 1, RUN_ID, "full"])],
        [msgpack.packb([0, 0, RUN_ID[1:], "full"])],
        [msgpack.packb([*OPENING, 1])],
        [msgpack.packb(OPENING), msgpack.packb([9, 1])],
        [msgpack.packb(OPENING), msgpack.packb([True, 1, 3])],
        [msgpack.packb(OPENING), msgpack.packb([4, 1, -1])],
        [msgpack.packb(OPENING), msgpack.packb([4, 1, [[[1]]]])],
        [msgpack.packb(OPENING), msgpack.packb([4, 1])],
        [msgpack.packb(OPENING), msgpack.packb([3, 1, 1, b"reason"])],
        [msgpack.packb(OPENING), msgpack.packb([1, 1, 1, True, 3, 0, bytes(32), b""])],
        [msgpack.packb(OPENING), msgpack.packb([1, 1, 1, True, 3, 0, bytes(32), b"long"])],
        [msgpack.packb(OPENING), msgpack.packb([1, 1, 1, True, 3, 9, bytes(32), 1])],
        [msgpack.packb(OPENING), msgpack.packb([1, 1, 1, True, 3, 9, bytes(32), 0, 0])],
        [msgpack.packb(OPENING), msgpack.packb([1, 1])],
        [msgpack.packb(OPENING), msgpack.packb([2, 1, 1, 0, 1, bytes(32), b"", bytes(8)])],
        [msgpack.packb(OPENING), msgpack.packb([2, 1, 1, 0, 2, bytes(32), b"", bytes(8)])],
        [msgpack.packb(OPENING), msgpack.packb([2, 1, 1, 0, 1, bytes(32), b"", bytes(7)])],
        [msgpack.packb(OPENING), msgpack.packb([5, 1])],
        [msgpack.packb(OPENING), msgpack.packb([5, 1, -1, b""])],
        [msgpack.packb(OPENING), msgpack.packb([5, 1, 0, b"", b""])],
        [msgpack.packb(OPENING), msgpack.packb([6, 1, 1])],
        [msgpack.packb(OPENING), msgpack.packb([6, 1, 1, bytes(7)])],
        [msgpack.packb(OPENING), msgpack.packb([6, 1, 1, bytes(8)])],
        [msgpack.packb(OPENING), msgpack.packb([6, 1, 1, bytes(4), 0])],
    ],
)
def test_a_chain_that_is_right_over_a_record_that_is_wrong(tmp_path, frames):
    """What only a broken writer makes: the digests are consistent, the content is not."""
    (tmp_path / "t.bin").write_bytes(chained(frames))
    assert damage(tmp_path / "t.bin") == (len(frames) - 1, Damage.MALFORMED)


@pytest.mark.slow
@given(st.lists(st.integers(-1, 6) | st.binary(max_size=40) | st.text(max_size=3), max_size=8))
def test_whatever_a_chain_holds_is_read_or_refused(tmp_path_factory, fields):
    path = tmp_path_factory.mktemp("transcript") / "t.bin"
    path.write_bytes(chained([msgpack.packb(OPENING), msgpack.packb(fields)]))
    try:
        list(read_transcript(path))
    except ChainError:
        return  # and nothing else is ever raised


def test_writing_goes_on_from_a_mark_and_says_so(tmp_path):
    whole = tmp_path / "whole.bin"
    write(whole, rounds=2)
    resumed = tmp_path / "resumed.bin"
    middle = write(resumed, rounds=1, finish=False)
    with TranscriptWriter(resumed, "full", middle) as writer:
        writer.begin_round(2, COHORT)
        writer.message(sent=True, peer=9, data=b"lost in the crash")
    with TranscriptWriter(resumed, "full", middle) as writer:
        assert writer.run_id == RUN_ID
        writer.resume(1, b"torn")
        play(writer, [2])
        writer.finish(2)
    records = list(read_transcript(resumed))
    at = next(n for n, record in enumerate(records) if isinstance(record, Resumed))
    assert records[at] == Resumed(at, middle.size, 1, b"torn")
    assert records[at + 1].round == 2
    without = [*records[:at], *records[at + 1 :]]
    assert list(map(kind_and_head, without)) == list(map(kind_and_head, read_transcript(whole)))


def begin_and_die(path, mark):
    """What a process leaves that dies in round 2, without closing its file."""
    writer = TranscriptWriter(path, "full", mark)
    writer.begin_round(2, (5, 3))
    writer.message(sent=True, peer=3, data=LONG)
    writer.revealed(TOTAL)
    return writer


def test_what_the_server_has_made_ends_before_what_it_received_last(tmp_path):
    """By then, all that it has received is in it; see `deltafl.sim.net.trips`."""
    path = tmp_path / "t.bin"
    writer = begin_and_die(path, mark := write(path, rounds=1, finish=False))
    made = writer.flush()
    writer.message(sent=False, peer=3, data=LONG)
    (begun,) = read_beyond(path, mark).rounds
    assert (begun.before, begun.sent) == (mark, made)
    writer.message(sent=True, peer=5, data=LONG)
    (begun,) = read_beyond(path, mark).rounds
    assert begun.sent == writer.flush()
    writer.close()


def test_what_is_kept_is_made_once_more_or_nothing_is(tmp_path):
    path = tmp_path / "t.bin"
    begin_and_die(path, mark := write(path, rounds=1, finish=False)).close()
    content, kept = path.read_bytes(), read_beyond(path, mark).mark
    path.write_bytes(content + b"torn")
    with TranscriptWriter(path, "full", mark, kept=kept) as writer:
        assert path.read_bytes() == content
        writer.begin_round(2, (5, 3))
        with pytest.raises(ChainError, match="not what comes of all that was received"):
            writer.message(sent=True, peer=5, data=LONG)
    assert path.read_bytes() == content
    with TranscriptWriter(path, "full", mark, kept=kept) as writer:
        writer.begin_round(2, (5, 3))
        writer.message(sent=True, peer=3, data=LONG)
        writer.revealed(TOTAL)
        assert path.read_bytes() == content
        writer.message(sent=True, peer=5, data=LONG)
    assert path.read_bytes().startswith(content)
    assert isinstance(list(read_transcript(path))[-1], Message)


def test_every_record_is_in_the_file_before_its_call_returns(tmp_path):
    """So whatever has left the server is recorded, even if its process is killed."""
    path = tmp_path / "t.bin"
    writer = begin_and_die(path, write(path, rounds=1, finish=False))
    *_, begin, message, total = read_transcript(path)
    assert (type(begin), type(message), type(total)) == (Begin, Message, Sum)
    assert (begin.round, begin.cohort) == (2, (3, 5))
    writer.close()


def test_a_round_is_on_the_disk_before_it_begins(tmp_path, monkeypatch):
    """Not only with the operating system: the machine may go down as well."""
    path, synced = tmp_path / "t.bin", []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with TranscriptWriter(path, "full", run_id=RUN_ID) as writer:
        synced.clear()
        writer.begin_round(1, COHORT)
        assert synced == [path.stat().st_size]
        writer.message(sent=True, peer=3, data=LONG)
        assert len(synced) == 1


@pytest.mark.slow
def test_what_a_process_leaves_is_read_wherever_it_ended(tmp_path):
    """Cut at every byte of a round: the whole records count, and the rest is handed over."""
    path = tmp_path / "t.bin"
    mark = write(path, rounds=1, finish=False)
    begin_and_die(path, mark).close()
    content = path.read_bytes()
    ends = [link.end for link in read_chain(path, TRANSCRIPT)]
    begun, summed = ends[-3], ends[-1]
    for length in range(mark.size, len(content) + 1):
        path.write_bytes(content[:length])
        beyond = read_beyond(path, mark)
        end = max(end for end in [mark.size, *ends] if end <= length)
        assert (beyond.mark.size, beyond.torn) == (end, content[end:length])
        slots = (TOTAL.slot,) if length >= summed else ()
        found = [(one.cohort, one.slots, one.before, one.sent.size) for one in beyond.rounds]
        assert found == ([((3, 5), slots, mark, end)] if length >= begun else [])
    with TranscriptWriter(path, "full", beyond.mark) as writer:
        writer.finish(2)
    assert len(list(read_transcript(path))) == len(ends) + 1


def test_only_the_end_of_the_file_may_be_damaged(tmp_path):
    path = tmp_path / "t.bin"
    mark = write(path, rounds=1, finish=False)
    begin_and_die(path, mark).close()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChainError, match="edited"):
        read_beyond(path, mark)
    path.write_bytes(content[: mark.size - 1])
    with pytest.raises(ChainError, match="the checkpoint knows of more"):
        read_beyond(path, mark)


@pytest.mark.parametrize("inside", [0, 1, 2, 7, 60])
@pytest.mark.parametrize("zeros", [40, 4096])
def test_zeros_at_the_end_are_those_of_a_power_cut(tmp_path, inside, zeros):
    """The disk knows the length of the file, and has not got the bytes. The remedy works."""
    path = tmp_path / "t.bin"
    mark = write(path, rounds=1, finish=False)
    begin_and_die(path, mark).close()
    begun, *_, last = [link.end for link in read_chain(path, TRANSCRIPT)][-3:]
    content = path.read_bytes()[: begun + inside]
    path.write_bytes(content + bytes(max(last - len(content), zeros)))
    with pytest.raises(ChainError) as caught:
        read_beyond(path, mark)
    assert "as a power cut can leave them" in caught.value.problem
    assert f"truncate -s {begun} FILE" in caught.value.problem
    os.truncate(path, begun)
    assert [one.round for one in read_beyond(path, mark).rounds] == [2]


def test_zeros_with_something_behind_them_are_no_power_cut(tmp_path):
    """The control of the test above."""
    path = tmp_path / "t.bin"
    mark = write(path, rounds=1, finish=False)
    with path.open("ab") as file:
        file.write(bytes(4096) + b"\x01")
    with pytest.raises(ChainError, match="it was edited"):
        read_beyond(path, mark)


@pytest.mark.parametrize("content", [None, b"", MAGIC[:5], MAGIC])
def test_a_file_that_has_not_begun_holds_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "t.bin").write_bytes(content)
    assert read_beyond(tmp_path / "t.bin", TRANSCRIPT.start) == Beyond(TRANSCRIPT.start)


def test_a_file_without_a_checkpoint_is_read_from_its_beginning(tmp_path):
    """The control of the test above."""
    write(tmp_path / "t.bin", rounds=2)
    beyond = read_beyond(tmp_path / "t.bin", TRANSCRIPT.start)
    assert [begun.round for begun in beyond.rounds] == [1, 2]


def test_a_file_that_is_only_opened_again_is_left_as_it_was(tmp_path):
    mark = write(tmp_path / "t.bin")
    content = (tmp_path / "t.bin").read_bytes()
    with TranscriptWriter(tmp_path / "t.bin", "full", mark) as writer:
        assert writer.flush() == mark
    assert (tmp_path / "t.bin").read_bytes() == content


def test_a_file_shorter_than_its_mark_is_refused(tmp_path):
    mark = write(tmp_path / "t.bin", rounds=1)
    content = (tmp_path / "t.bin").read_bytes()[:-1]
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(ChainError, match="the checkpoint knows of more"):
        TranscriptWriter(tmp_path / "t.bin", "full", mark)
    assert (tmp_path / "t.bin").read_bytes() == content


def test_a_sum_is_digested_as_words_of_eight_bytes():
    words = np.array([1, 2**32 - 1], dtype=np.uint32)
    assert sum_sha256(words) == sum_sha256(words.astype(np.uint64))
    assert sum_sha256(words) != sum_sha256(words[::-1])


@pytest.mark.parametrize("question", [Query("mm", (5,)), Threshold(7, 1)])
def test_a_question_with_a_proof_is_kept_whole_wherever_it_is_sent(question):
    proved = wire.encode(Ask(question, b"opens a slot", LONG))
    assert kept_of(proved, "headers", 1, sent=True) == proved
    assert kept_of(proved, "headers", 1, sent=False) == proved[:HEAD_RECEIVED]


def test_other_long_messages_are_not_kept_whole_where_only_heads_are():
    """The negative controls: without a proof, or no question although it begins as one does."""
    plain = wire.encode(Ask(Query("mm", (5,)), LONG))
    assert kept_of(plain, "headers", 1, sent=True) == plain[:HEAD_SENT]
    proved = wire.encode(Ask(Query("mm", (5,)), b"opens a slot", LONG))
    broken = proved + b"?"
    assert kept_of(broken, "headers", 1, sent=True) == broken[:HEAD_SENT]
    assert kept_of(plain, "full", 1, sent=True) == plain
