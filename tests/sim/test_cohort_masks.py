import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import prg
from deltafl.sim.cohort import masks

LEAST = masks._LEAST_BYTES
EXECUTOR = ThreadPoolExecutor(3)


def in_threads(num_threads, executor=EXECUTOR):
    return partial(masks.add_in_threads, executor=executor, num_threads=num_threads)


def seeds(count, first=0):
    return [number.to_bytes(32, "big") for number in range(first, first + count)]


@pytest.fixture
def short_pieces(monkeypatch):
    """Short vectors are cut as well."""
    monkeypatch.setattr(masks, "_LEAST_BYTES", 1)


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
