"""`deltafl bench masks`: keystream per second, on one thread, several threads, and a GPU.

N vectors of D words get M masks each, like the vectors of N devices with M − 1 neighbours. All
implementations start from the same vectors and take turns; their results must be equal bit for bit
before anything is reported. Rates are by the wall clock, because threads and GPUs shorten that
time: run this on an otherwise idle machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from deltafl.secagg import prg, ring
from deltafl.secagg.prg import SEED_SIZE
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.ring import Vector
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import MANY, check_least
from deltafl.sim.cohort.masks import choice, gpu
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.progress import Bar


@dataclass(frozen=True, slots=True)
class MaskBenchmark:
    """What to measure.

    Attributes:
        vectors: N.
        dim: words of a vector, D.
        masks: of a vector, M.
        ring_bits: decide the word: 32 bits up to 32, else 64.
        num_threads: of the way with several.
        repetitions: of every way; the median counts.
        seed: of vectors and keys.
    """

    vectors: int
    dim: int
    masks: int
    ring_bits: int
    num_threads: int
    repetitions: int
    seed: int

    def __post_init__(self) -> None:
        given: dict[str, int] = asdict(self)
        check_least(**{name: (value, int(name != "seed")) for name, value in given.items()})
        if self.ring_bits > ring.MAX_BITS:
            raise ValueError(f"ring_bits={self.ring_bits} must be at most {ring.MAX_BITS}")


@dataclass(frozen=True, slots=True)
class Work:
    """Vectors [N, D], seeds uint8 [N, M, 32] and signs int8 [N, M]."""

    vectors: Vector
    seeds: np.typing.NDArray[np.uint8]
    signs: np.typing.NDArray[np.int8]

    @classmethod
    def of(cls, benchmark: MaskBenchmark) -> "Work":
        """Draw it."""
        generator = np.random.default_rng(benchmark.seed)
        rows, masks = benchmark.vectors, benchmark.masks
        highest = 2**benchmark.ring_bits - 1
        vectors = generator.integers(0, highest, (rows, benchmark.dim), np.uint64, endpoint=True)
        return cls(
            ring.to_words(vectors, benchmark.ring_bits),
            generator.integers(0, 256, (rows, masks, SEED_SIZE), np.uint8),
            generator.choice(np.array([-1, 1], np.int8), (rows, masks)),
        )

    def vector_by_vector(self, add_masks: AddMasks) -> tuple[Vector, float]:
        """What a way makes of the vectors, and in how many seconds."""
        keys = [
            [[seed.tobytes() for seed in row[sign == wanted]] for wanted in (1, -1)]
            for row, sign in zip(self.seeds, self.signs, strict=True)
        ]
        vectors = self.vectors.copy()
        start = time.perf_counter()
        for vector, (added, subtracted) in zip(vectors, keys, strict=True):
            add_masks(vector, added, subtracted)
        return vectors, time.perf_counter() - start

    def all_at_once(self, device: torch.device) -> tuple[Vector, float]:
        """The same, of all vectors in one launch, with everything on the device before."""
        vectors, seeds, signs = (
            torch.from_numpy(array.copy()).to(device)
            for array in (self.vectors, self.seeds, self.signs)
        )
        _wait(device)
        start = time.perf_counter()
        gpu.add_masks_to_rows(vectors, seeds, signs)
        _wait(device)
        spent = time.perf_counter() - start
        result: Vector = vectors.cpu().numpy()
        return result, spent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure how fast masks are generated and added, in GB of keystream per second: on one "
        "thread, on several threads, and on a GPU if there is one (extra `gpu`). All of them must "
        "give the same bits."
    )
    parser.add_argument("--vectors", type=MANY, default=16, metavar="N", help="vectors (16)")
    parser.add_argument(
        "--dim", type=int, default=115_646, metavar="D", help="words per vector (115646)"
    )
    parser.add_argument("--masks", type=MANY, default=23, metavar="M", help="masks per vector (23)")
    parser.add_argument(
        "--ring-bits", type=int, default=32, metavar="B", help="bits per number (32)"
    )
    parser.add_argument("--threads", type=int, default=2, metavar="T", help="threads (2)")
    parser.add_argument(
        "--repetitions", type=int, default=5, metavar="R", help="repetitions of each (5)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of vectors and keys (1)"
    )
    add_json(parser)
    add_quiet(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    try:
        benchmark = MaskBenchmark(
            vectors=arguments.vectors,
            dim=arguments.dim,
            masks=arguments.masks,
            ring_bits=arguments.ring_bits,
            num_threads=arguments.threads,
            repetitions=arguments.repetitions,
            seed=arguments.seed,
        )
        measured = measure(benchmark)
    except (UserError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    print(json.dumps(measured, indent=2) if arguments.json else _describe(measured))
    return 0


def measure(benchmark: MaskBenchmark) -> dict[str, object]:
    """Run every available implementation and return its speed.

    Raises:
        TritonUnavailable: there is a GPU, but the package is not installed.
        RunError: two implementations give different bits.
    """
    work = Work.of(benchmark)
    with ThreadPoolExecutor(benchmark.num_threads) as executor:
        ways = _ways(work, benchmark.num_threads, executor)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        expected, _ = work.vector_by_vector(prg.add_masks)
        for way in ways.values():
            way()  # compiles the kernel, starts the threads, fills the caches
        turns = Bar(range(benchmark.repetitions), desc="masks")
        for _ in turns:
            for name, way in ways.items():
                vectors, spent = way()
                if not np.array_equal(vectors, expected):
                    raise RunError(f"the masks of {name} are not those of one thread: a bug")
                seconds[name].append(spent)
    num_bytes = work.vectors.nbytes * benchmark.masks
    return {
        **asdict(benchmark),
        "keystream_bytes": num_bytes,
        "gb_per_s": {
            name: round(1e-9 * num_bytes / median(spent), 3) for name, spent in seconds.items()
        },
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": machine(),
    }


def _ways(
    work: Work, num_threads: int, executor: Executor
) -> Mapping[str, Callable[[], tuple[Vector, float]]]:
    in_threads = partial(choice.add_in_threads, executor=executor, num_threads=num_threads)
    ways = {
        "one thread": partial(work.vector_by_vector, prg.add_masks),
        f"{num_threads} threads": partial(work.vector_by_vector, in_threads),
    }
    if torch.cuda.is_available():
        device = torch.device("cuda")
        there_and_back = partial(gpu.add_masks, device=device)
        ways["GPU, vector by vector, copied both ways"] = partial(
            work.vector_by_vector, there_and_back
        )
        ways["GPU, all vectors, already there"] = partial(work.all_at_once, device)
    return ways


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe(measured: Mapping[str, object]) -> str:
    lines = [
        f"{measured['vectors']} vectors of {measured['dim']} words, {measured['masks']} masks "
        f"each; GPU: {measured['gpu'] or 'none here'}",
        "",
        "GB of keystream per second, the same bits by every way",
    ]
    rates = measured["gb_per_s"]
    if isinstance(rates, dict):
        lines += [f"  {name:<42}{rate:10.3f}" for name, rate in rates.items()]
    return "\n".join(lines)
