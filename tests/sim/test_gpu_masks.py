"""The kernel, on the GPU if there is one; else interpreted, which takes 0.1 s for every mask."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from deltafl.secagg import prg
from deltafl.sim.cohort import gpu_masks

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install '.[gpu]'",
)
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="takes the kernel apart, which the interpreter allows"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# RFC 8439, appendix A.1, all with a nonce of zero: key, block counter, keystream block.
RFC_8439_A1 = [
    (  # test vector #1
        "00" * 32,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (  # test vector #2
        "00" * 32,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (  # test vector #3
        "00" * 31 + "01",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (  # test vector #4
        "00ff" + "00" * 30,
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]
# RFC 8439, section 2.1.1: a quarter round, before and after.
RFC_8439_QUARTER_ROUND = (
    (0x11111111, 0x01020304, 0x9B8D6F43, 0x01234567),
    (0xEA2A92F4, 0xCB1CF8CE, 0x4581472E, 0x5881C4BB),
)


def add_on_device(vector, seeds, signs):
    """The masked vector."""
    masked = vector.copy()
    gpu_masks.add_masks(masked, *by_sign(seeds, signs), device=DEVICE)
    return masked


def by_sign(seeds, signs):
    """Seeds that are added, and seeds that are subtracted."""
    pairs = list(zip(seeds, signs, strict=True))
    return [[seed.tobytes() for seed, sign in pairs if sign == wanted] for wanted in (1, -1)]


def add_one_by_one(vector, seeds, signs, add_mask=prg.add_mask):
    masked = vector.copy()
    for seed, sign in zip(seeds, signs, strict=True):
        add_mask(masked, seed.tobytes(), negative=bool(sign < 0))
    return masked


def drawn(dtype, length, masks, seed=1):
    generator = np.random.default_rng(seed)
    return (
        generator.integers(0, np.iinfo(dtype).max, length, dtype, endpoint=True),
        generator.integers(0, 256, (masks, prg.SEED_SIZE), np.uint8),
    )


def blocks_of(vectors):
    """What the kernel makes of some vectors of RFC_8439_A1."""
    found = []
    for key, counter, _ in vectors:
        total = np.zeros(48, np.uint32)
        gpu_masks.add_masks(total, [bytes.fromhex(key)], [], device=DEVICE)
        found.append(total.reshape(3, 16)[counter].astype("<u4").tobytes().hex())
    return found


@pytest.mark.slow
@needs_triton
def test_keystream_of_rfc_8439_appendix_a_1():
    assert blocks_of(RFC_8439_A1) == [block for _, _, block in RFC_8439_A1]


def quarter_round(rotations, a, b, c, d):
    for first, second in (rotations[:2], rotations[2:]):
        a = a + b & 0xFFFFFFFF
        d = (d ^ a) << first & 0xFFFFFFFF | (d ^ a) >> 32 - first
        c = c + d & 0xFFFFFFFF
        b = (b ^ c) << second & 0xFFFFFFFF | (b ^ c) >> 32 - second
    return a, b, c, d


@pytest.mark.slow
@needs_triton
@interpreted
@pytest.mark.parametrize(("rotations", "right"), [((16, 12, 8, 7), True), ((16, 12, 8, 9), False)])
def test_a_wrong_rotation_is_noticed(rotations, right, monkeypatch):
    """A quarter round of the test's own, right and wrong, takes the place of the kernel's."""
    before, after = RFC_8439_QUARTER_ROUND
    assert (quarter_round(rotations, *before) == after) == right
    monkeypatch.setattr(gpu_masks, "_quarter_round", partial(quarter_round, rotations))
    assert (blocks_of(RFC_8439_A1[3:]) == [RFC_8439_A1[3][2]]) == right


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("dtype", "length"),
    [(np.uint32, n) for n in (9, 15, 16, 17)] + [(np.uint64, n) for n in (5, 8, 9)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_vector_of_any_length_gets_its_mask(dtype, length, sign):
    vector, seeds = drawn(dtype, length, 1)
    masked = add_on_device(vector, seeds, [sign])
    assert masked.tolist() == add_one_by_one(vector, seeds, [sign], prg.add_mask_plain).tolist()


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("dtype", "length"), [(np.uint32, 1033), (np.uint64, 519)])
def test_long_vectors_take_several_programs(dtype, length):
    vector, seeds = drawn(dtype, length, 1)
    assert length > gpu_masks._LANES * prg.BLOCK_BYTES // vector.itemsize  # two programs or more
    masked = add_on_device(vector, seeds, [-1])
    assert np.array_equal(masked, add_one_by_one(vector, seeds, [-1]))
    assert not np.array_equal(masked, add_one_by_one(vector, seeds, [1]))


@pytest.mark.slow
@needs_triton
def test_many_masks_of_one_vector():
    vector, seeds = drawn(np.uint32, 40, 10)
    signs = [1, -1, 1, 1, -1, -1, 1, 1, -1, 1]
    masked = add_on_device(vector, seeds, signs)
    assert np.array_equal(masked, add_one_by_one(vector, seeds, signs))


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_in_place_of_add_masks(dtype):
    vector, seeds = drawn(dtype, 30, 3)
    keys = [seed.tobytes() for seed in seeds]
    rows = np.stack([vector, vector])
    gpu_masks.add_masks(rows[0], keys[1:], keys[:1], device=DEVICE)
    expected = vector.copy()
    prg.add_masks(expected, keys[1:], keys[:1])
    assert np.array_equal(rows, [expected, vector])


@needs_triton
def test_without_masks_a_vector_stays():
    vector, _ = drawn(np.uint32, 40, 0)
    assert np.array_equal(add_on_device(vector, [], []), vector)


@needs_triton
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_a_vector_longer_than_a_mask_is_refused(dtype):
    words = prg.MAX_BYTES // np.dtype(dtype).itemsize
    total = np.broadcast_to(np.zeros(1, dtype), (words + 1,))
    with pytest.raises(ValueError, match="longer than a mask"):
        gpu_masks.add_masks(total, [bytes(32)], [], device=DEVICE)


def test_seeds_of_another_size_are_refused():
    for length in (4, 40):
        total = np.zeros(length, np.uint32)
        with pytest.raises(ValueError, match="not 32 bytes"):
            gpu_masks.add_masks(total, [bytes(31)], [bytes(33)], device=DEVICE)
        assert not total.any()


def test_a_mask_that_is_its_seed_takes_no_kernel(monkeypatch):
    monkeypatch.setattr(gpu_masks, "triton", None)
    total = np.zeros(8, np.uint32)
    gpu_masks.add_masks(total, [bytes(range(32))], [], device=DEVICE)
    assert total.tobytes() == bytes(range(32))


def test_without_triton_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu_masks, "triton", None)
    with pytest.raises(gpu_masks.TritonUnavailable, match=r"\.\[gpu\]"):
        gpu_masks.add_masks(np.zeros(40, np.uint32), [bytes(32)], [], device=DEVICE)


COMPILE = """
import torch
torch.cuda.is_available = lambda: True  # compile, do not interpret
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from deltafl.sim.cohort import gpu_masks
for words, pointer in ((16, "*u32"), (8, "*u64")):
    types = {"vector": pointer, "seeds": "*u32", "signs": "*i8", "length": "i64"}
    types |= {"num_seeds": "i32"}
    constants = {"num_words": words, "num_lanes": gpu_masks._LANES}
    types |= dict.fromkeys(constants, "constexpr")
    kernel = compile(
        ASTSource(gpu_masks._add_masks, types, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": gpu_masks._WARPS, "enable_fp_fusion": False},
    )
    print(len(kernel.asm["cubin"]) > 1000, kernel.metadata.shared, ".local" in kernel.asm["ptx"])
"""


@needs_triton
@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_and_stays_in_registers(tmp_path):
    """For compute capability 9.0; takes no GPU. Whether it runs there, this does not show."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(  # noqa: S603 our own interpreter, our own script
        [sys.executable, "-c", COMPILE],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["True 0 False"] * 2, done.stderr
