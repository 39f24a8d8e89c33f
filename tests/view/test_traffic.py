"""What a transcript adds: bytes by kind of message, and the questions of single searches."""

import pytest
from doubles import run

from deltafl.protocol.losses import LossGrid
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.record.transcript import Message, read_transcript
from deltafl.sim.settings.config_io import build_config
from deltafl.sim.view.sections import traffic_of
from deltafl.sim.view.traffic import Traffic


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    config = build_config(
        [
            {
                "data": {"num_devices": 20},
                "federation": {"algorithm": "private-delta-fl", "rounds": 2, "cohort_size": 10},
                "privacy": {"min_cohort": 5},
                "experiment": {"num_seeds": 1, "baselines": []},
            }
        ]
    )
    path = tmp_path_factory.mktemp("played") / "run"
    run(config, path)
    return RunDirectory(path)


def reader(path):
    return Traffic(path, LossGrid())


def read_all(path):
    one = reader(path)
    one.read_on(float("inf"))
    return one


@pytest.mark.slow
def test_every_message_is_counted_once(played):
    records = read_transcript(played.transcript)
    messages = [record for record in records if isinstance(record, Message)]
    found = read_all(played.transcript).seen
    for sent in (False, True):
        mine = [one for one in found.carried if one.sent == sent]
        assert sum(one.count for one in mine) == sum(m.sent == sent for m in messages)
        assert sum(one.size for one in mine) == sum(m.size for m in messages if m.sent == sent)
    names = {one.name for one in found.carried}
    assert {"masked vector", "question of the search", "request for updates"} < names
    assert "unknown" not in names
    assert (found.share, found.problem) == (1.0, "")


@pytest.mark.slow
def test_the_questions_of_the_first_and_the_last_search_narrow_down_on_the_threshold(played):
    first, last = read_all(played.transcript).seen.searches
    events = read_events(played.events)
    for event, search in zip(events, (first, last), strict=True):
        assert search.round == event["round"]
        asked = event["num_queries"]
        assert len(search.pivots) == asked
        assert abs(search.pivots[-1][0] - event["eta"]) < abs(search.pivots[0][0] - event["eta"])


@pytest.mark.slow
def test_a_transcript_that_grows_is_read_on_and_a_half_record_waits(played, tmp_path):
    whole = played.transcript.read_bytes()
    path = tmp_path / "transcript.bin"
    one = reader(path)
    one.read_on()
    for size in (0, 10, 5000, len(whole) // 2, len(whole) - 3, len(whole)):
        path.write_bytes(whole[:size])
        one.read_on(float("inf"))
        assert one.problem == ""
    assert one.seen.carried == read_all(played.transcript).seen.carried


@pytest.mark.slow
def test_a_look_reads_for_a_limited_time(played):
    one = reader(played.transcript)
    one.read_on(0.0)
    assert 0 < one.seen.share < 1
    for _ in range(10_000):
        one.read_on(0.0)
    assert one.seen.share == 1


@pytest.mark.slow
def test_a_transcript_that_was_cut_back_is_read_again(played, tmp_path):
    whole = played.transcript.read_bytes()
    path = tmp_path / "transcript.bin"
    path.write_bytes(whole)
    one = reader(path)
    one.read_on(float("inf"))
    before = one.seen.carried
    path.write_bytes(whole[: len(whole) // 2])
    one.read_on(float("inf"))
    path.write_bytes(whole)
    one.read_on(float("inf"))
    assert one.seen.carried == before


@pytest.mark.slow
def test_a_transcript_that_is_damaged_is_a_sentence(played, tmp_path):
    data = bytearray(played.transcript.read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "transcript.bin"
    path.write_bytes(data)
    one = read_all(path)
    assert "transcript.bin cannot be read at frame" in one.problem
    assert one.seen.carried  # what came before
    path.write_bytes(b"nonsense\n" * 9)
    assert "does not begin as" in read_all(path).problem


@pytest.mark.slow
def test_the_reader_of_a_run_has_its_transcript_and_its_grid(played):
    one = traffic_of(Reader(played.path).read())
    assert one.path == played.transcript
    assert one.grid == LossGrid(16, 32)


def test_the_transcript_of_another_run_is_read_from_its_beginning(played, tmp_path):
    """Where the first one was read to, it may be in the middle of a record: that looks cut off."""
    whole, path = played.transcript.read_bytes(), tmp_path / "transcript.bin"
    path.write_bytes(whole)
    one = read_all(path)
    first = one.seen.carried
    config = build_config(
        [
            {
                "data": {"num_devices": 20},
                "federation": {"algorithm": "private-delta-fl", "rounds": 3, "cohort_size": 10},
                "privacy": {"min_cohort": 5},
                "experiment": {"num_seeds": 1, "baselines": []},
            }
        ]
    )
    run(config, tmp_path / "other")
    path.write_bytes(RunDirectory(tmp_path / "other").transcript.read_bytes())
    one.read_on(float("inf"))
    assert one.seen.carried == read_all(path).seen.carried != first
    assert (one.problem, one.seen.share) == ("", 1.0)


@pytest.mark.slow
def test_a_transcript_that_was_damaged_and_is_mended_is_read(played, tmp_path):
    whole, path = played.transcript.read_bytes(), tmp_path / "transcript.bin"
    path.write_bytes(b"x" + whole[1:])
    one = read_all(path)
    assert one.problem
    path.write_bytes(whole)
    one.read_on(float("inf"))
    assert one.problem == ""
    assert one.seen.carried == read_all(played.transcript).seen.carried
