import argparse
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import prg
from deltafl.sim.bench import masks
from deltafl.sim.cohort.masks import choice
from deltafl.sim.errors import RunError

LEAST = choice._LEAST_BYTES
EXECUTOR = ThreadPoolExecutor(3)


def in_threads(num_threads, executor=EXECUTOR):
    return partial(choice.add_in_threads, executor=executor, num_threads=num_threads)


def seeds(count, first=0):
    return [number.to_bytes(32, "big") for number in range(first, first + count)]


@pytest.fixture
def short_pieces(monkeypatch):
    """Short vectors are cut as well."""
    monkeypatch.setattr(choice, "_LEAST_BYTES", 1)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_every_length_and_number_of_threads_gives_the_same_bits(num_threads, dtype, short_pieces):
    for length in [*range(20), 255, 256, 257, 1000, 4096]:
        alone = np.arange(length, dtype=dtype) - dtype(7)
        together = alone.copy()
        prg.add_masks(alone, seeds(2), seeds(3, 9))
        in_threads(num_threads)(together, seeds(2), seeds(3, 9))
        assert together.tolist() == alone.tolist()


@given(
    dtype=st.sampled_from([np.uint32, np.uint64]),
    length=st.integers(0, 3 * LEAST // 4 + 40),
    num_threads=st.integers(1, 5),
    counts=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_long_vectors_are_cut_and_give_the_same_bits(dtype, length, num_threads, counts):
    alone = np.full(length, 5, dtype=dtype)
    together = alone.copy()
    prg.add_masks(alone, seeds(counts[0]), seeds(counts[1], 9))
    in_threads(num_threads)(together, seeds(counts[0]), seeds(counts[1], 9))
    assert np.array_equal(alone, together)


class CountingExecutor(ThreadPoolExecutor):
    pieces = 0

    def submit(self, *arguments, **options):
        self.pieces += 1
        return super().submit(*arguments, **options)


@pytest.mark.parametrize(
    ("num_bytes", "num_threads", "pieces"),
    [
        (2 * LEAST - 4, 4, 0),
        (2 * LEAST, 4, 2),
        (3 * LEAST - 4, 4, 2),
        (9 * LEAST, 4, 4),
        (9 * LEAST, 1, 0),
    ],
)
def test_threads_work_where_pieces_are_long_enough(num_bytes, num_threads, pieces):
    with CountingExecutor(2) as executor:
        in_threads(num_threads, executor)(np.zeros(num_bytes // 4, np.uint32), seeds(1), [])
        assert executor.pieces == pieces


def test_pieces_are_worked_on_at_the_same_time(monkeypatch):
    """Each waits for the other inside `add_masks`: one after the other would never end."""
    both, alone = threading.Barrier(2, timeout=20), prg.add_masks

    def meet(*arguments, **options):
        both.wait()
        alone(*arguments, **options)

    monkeypatch.setattr(prg, "add_masks", meet)
    in_threads(2)(np.zeros(LEAST, np.uint32), seeds(1), [])


def test_a_piece_from_a_wrong_place_is_noticed(monkeypatch):
    alone, honest = np.zeros(LEAST, np.uint32), prg.add_masks
    honest(alone, seeds(1), [])

    def one_block_late(total, added, subtracted, *, first_block=0):
        honest(total, added, subtracted, first_block=first_block + (first_block > 0))

    monkeypatch.setattr(prg, "add_masks", one_block_late)
    together = np.zeros(LEAST, np.uint32)
    in_threads(2)(together, seeds(1), [])
    differ = np.flatnonzero(alone != together)
    assert differ[0] == LEAST // 2
    assert len(differ) > LEAST // 2 - 5


def test_a_mistake_in_a_thread_is_the_callers():
    with pytest.raises(ValueError, match="key"):
        in_threads(2)(np.zeros(LEAST, np.uint32), [b"short"], [])


BENCHMARK = masks.MaskBenchmark(
    vectors=2, dim=3000, masks=3, ring_bits=32, num_threads=2, repetitions=1, seed=1
)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.parametrize(("ring_bits", "word"), [(20, 4), (32, 4), (33, 8), (64, 8)])
def test_benchmark(ring_bits, word, no_gpu):
    measured = masks.measure(replace(BENCHMARK, ring_bits=ring_bits))
    assert measured["keystream_bytes"] == 2 * 3000 * 3 * word
    assert set(measured["gb_per_s"]) == {"one thread", "2 threads"}
    assert min(measured["gb_per_s"].values()) > 0
    assert measured["gpu"] is None
    assert json.loads(json.dumps(measured)) == measured


def test_masks_that_differ_are_not_reported(monkeypatch, no_gpu):
    def wrong(total, added, subtracted, **options):
        prg.add_masks(total, added, subtracted)
        total[-1] ^= 1

    monkeypatch.setattr(choice, "add_in_threads", wrong)
    with pytest.raises(RunError, match="2 threads are not those of one thread"):
        masks.measure(BENCHMARK)


def run(capsys, *arguments):
    parser = argparse.ArgumentParser()
    masks.add_arguments(parser)
    options = ["--vectors", "2", "--dim", "50", "--masks", "2", "--repetitions", "1", *arguments]
    return masks.main(parser.parse_args(options)), capsys.readouterr()


def test_command(capsys, no_gpu):
    code, printed = run(capsys, "--json", "--threads", "3")
    assert code == 0
    assert set(json.loads(printed.out)["gb_per_s"]) == {"one thread", "3 threads"}
    code, printed = run(capsys)
    assert code == 0
    assert printed.out.startswith("2 vectors of 50 words, 2 masks each; GPU: none here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "num_threads=0 must be at least 1"),
        (["--seed", "-1"], "seed=-1 must be at least 0"),
        (["--ring-bits", "65"], "ring_bits=65 must be at most 64"),
    ],
)
def test_what_cannot_be_measured_is_said(capsys, arguments, message):
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert message in printed.err
