import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import TranscriptError
from sim.transcript import MAGIC, START, TranscriptWriter, read_transcript

MESSAGES = [(True, 3, b"roster"), (False, 3, b""), (False, 4, b"masked" * 9), (True, 4, b"bye")]


def write(path, *, mode="full", rounds=2):
    with TranscriptWriter(path, mode) as writer:
        for number in range(1, rounds + 1):
            writer.begin_round(number)
            for sent, peer, data in MESSAGES:
                writer.message(sent=sent, peer=peer, data=data)
        return writer.flush()


def frame_starts(data):
    """Where each frame begins, and where the last one ends."""
    starts = [len(MAGIC)]
    while starts[-1] < len(data):
        length = int.from_bytes(data[starts[-1] : starts[-1] + 4], "big")
        starts.append(starts[-1] + 4 + length + 32)
    return starts


def first_damage(path, **options):
    frames = []
    with pytest.raises(TranscriptError) as caught:
        frames.extend(read_transcript(path, **options))
    assert len(frames) == caught.value.frame  # all frames before it were still delivered
    return caught.value.frame


def test_everything_is_read_back(tmp_path):
    mark = write(tmp_path / "t.bin")
    frames = list(read_transcript(tmp_path / "t.bin", digest=mark.digest))
    assert [(f.sent, f.peer, f.data) for f in frames] == MESSAGES * 2
    assert [f.round for f in frames] == [1] * 4 + [2] * 4
    assert [f.sequence for f in frames] == list(range(8))
    assert all(f.sha256 == hashlib.sha256(f.data).digest() for f in frames)
    assert mark.size == (tmp_path / "t.bin").stat().st_size


@pytest.mark.parametrize(
    ("mode", "rounds_kept"), [("headers", set()), ("full", {1, 2, 3, 4}), ("every=2", {2, 4})]
)
def test_modes_decide_whose_bytes_are_kept(mode, rounds_kept, tmp_path):
    write(tmp_path / "t.bin", mode=mode, rounds=4)
    for frame in read_transcript(tmp_path / "t.bin"):
        assert (frame.data is not None) == (frame.round in rounds_kept)
        assert frame.size == len(MESSAGES[frame.sequence % 4][2])


@given(st.data())
def test_any_flipped_bit_is_found_where_it_is(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("transcript") / "t.bin"
    mark = write(path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(len(MAGIC), len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    starts = frame_starts(path.read_bytes())
    path.write_bytes(content)
    damaged = max(n for n, start in enumerate(starts) if start <= position)
    assert first_damage(path, digest=mark.digest) == damaged


@given(st.data())
def test_any_truncation_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("transcript") / "t.bin"
    mark = write(path)
    content = path.read_bytes()
    starts = frame_starts(content)
    length = data.draw(st.integers(len(MAGIC), len(content) - 1))
    path.write_bytes(content[:length])
    whole = max(n for n, start in enumerate(starts) if start <= length)
    assert first_damage(path, digest=mark.digest) == whole
    if length == starts[whole]:  # between two frames only the head digest can tell
        assert len(list(read_transcript(path))) == whole


def test_swapped_removed_and_repeated_frames_are_found(tmp_path):
    path = tmp_path / "t.bin"
    write(path)
    content = path.read_bytes()
    starts = frame_starts(content)
    frames = [content[a:b] for a, b in itertools.pairwise(starts)]
    for edited, where in (
        ([*frames[:2], frames[3], frames[2], *frames[4:]], 2),
        ([*frames[:5], *frames[6:]], 5),
        ([*frames[:3], frames[2], *frames[3:]], 3),
    ):
        path.write_bytes(MAGIC + b"".join(edited))
        assert first_damage(path) == where


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "t.bin").write_bytes(b"something else, long enough to have a header")
    assert first_damage(tmp_path / "t.bin") == 0


def test_a_chain_that_is_right_over_a_frame_that_is_wrong(tmp_path):
    # what only a broken writer makes: the digests are consistent, the content is not
    frame = b"\xc0"
    digest = hashlib.sha256(START.digest + frame).digest()
    (tmp_path / "t.bin").write_bytes(MAGIC + len(frame).to_bytes(4, "big") + frame + digest)
    assert first_damage(tmp_path / "t.bin") == 0


def test_writing_goes_on_from_a_mark_as_if_it_had_never_stopped(tmp_path):
    whole = tmp_path / "whole.bin"
    mark = write(whole, rounds=2)
    resumed = tmp_path / "resumed.bin"
    middle = write(resumed, rounds=1)
    with TranscriptWriter(resumed, "full", middle) as writer:
        writer.begin_round(2)
        writer.message(sent=True, peer=9, data=b"lost in the crash")
    with TranscriptWriter(resumed, "full", middle) as writer:
        writer.begin_round(2)
        for sent, peer, data in MESSAGES:
            writer.message(sent=sent, peer=peer, data=data)
        assert writer.flush() == mark
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_file_shorter_than_its_mark_is_refused(tmp_path):
    mark = write(tmp_path / "t.bin")
    (tmp_path / "t.bin").write_bytes(MAGIC)
    with pytest.raises(TranscriptError, match="shorter"):
        TranscriptWriter(tmp_path / "t.bin", "full", mark)
    assert (tmp_path / "t.bin").read_bytes() == MAGIC
