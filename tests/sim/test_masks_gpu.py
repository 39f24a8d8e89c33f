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
from deltafl.sim.cohort.masks import gpu

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


def add_on_device(vectors, seeds, signs):
    """Masked vectors, all arrays of numpy."""
    arrays = [torch.from_numpy(array.copy()).to(DEVICE) for array in (vectors, seeds, signs)]
    gpu.add_masks_to_rows(*arrays)
    return arrays[0].cpu().numpy()


def add_one_by_one(vectors, seeds, signs, add_mask=prg.add_mask):
    masked = vectors.copy()
    for vector, of_row, sign_of in zip(masked, seeds, signs, strict=True):
        for seed, sign in zip(of_row, sign_of, strict=True):
            if sign:
                add_mask(vector, seed.tobytes(), negative=bool(sign < 0))
    return masked


def drawn(dtype, rows, length, masks, seed=1):
    generator = np.random.default_rng(seed)
    return (
        generator.integers(0, np.iinfo(dtype).max, (rows, length), dtype, endpoint=True),
        generator.integers(0, 256, (rows, masks, prg.SEED_SIZE), np.uint8),
    )


def blocks_of(vectors):
    """What the kernel makes of some vectors of RFC_8439_A1."""
    keys = [bytes.fromhex(key) for key, _, _ in vectors]
    seeds = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 1, prg.SEED_SIZE)
    zeros = np.zeros((len(keys), 48), np.uint32)
    masked = add_on_device(zeros, seeds, np.ones((len(keys), 1), np.int8))
    blocks = zip(masked.reshape(-1, 3, 16), vectors, strict=True)
    return [three[counter].astype("<u4").tobytes().hex() for three, (_, counter, _) in blocks]


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
    monkeypatch.setattr(gpu, "_quarter_round", partial(quarter_round, rotations))
    assert (blocks_of(RFC_8439_A1[3:]) == [RFC_8439_A1[3][2]]) == right


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("dtype", "length"),
    [(np.uint32, n) for n in (9, 15, 16, 17)] + [(np.uint64, n) for n in (5, 8, 9)],
)
def test_every_row_gets_its_own_masks(dtype, length):
    vectors, seeds = drawn(dtype, 2, length, 2)
    signs = np.array([[1, 0], [0, -1]], np.int8)
    masked = add_on_device(vectors, seeds, signs)
    plain = add_one_by_one(vectors, seeds, signs, prg.add_mask_plain)
    assert masked.tolist() == plain.tolist()


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("dtype", "length"), [(np.uint32, 1033), (np.uint64, 519)])
def test_long_vectors_take_several_programs(dtype, length):
    vectors, seeds = drawn(dtype, 2, length, 1)
    signs = np.array([[-1], [1]], np.int8)
    assert length > gpu._LANES * prg.BLOCK_BYTES // vectors.itemsize  # two programs or more a row
    masked = add_on_device(vectors, seeds, signs)
    assert np.array_equal(masked, add_one_by_one(vectors, seeds, signs))
    signs[1] = -1
    assert not np.array_equal(masked, add_one_by_one(vectors, seeds, signs))


@pytest.mark.slow
@needs_triton
def test_many_masks_of_one_vector():
    vectors, seeds = drawn(np.uint32, 1, 40, 12)
    signs = np.array([[1, -1, 1, 1, 0, -1, -1, 1, 1, -1, 0, 1]], np.int8)
    masked = add_on_device(vectors, seeds, signs)
    assert np.array_equal(masked, add_one_by_one(vectors, seeds, signs))


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_in_place_of_add_masks(dtype):
    vectors, seeds = drawn(dtype, 2, 30, 3)
    keys = [seed.tobytes() for seed in seeds[0]]
    before, expected = vectors[1].copy(), vectors[0].copy()
    gpu.add_masks(vectors[0], keys[1:], keys[:1], device=DEVICE)
    prg.add_masks(expected, keys[1:], keys[:1])
    assert np.array_equal(vectors[0], expected)
    gpu.add_masks(vectors[0], [], [], device=DEVICE)
    assert np.array_equal(vectors[0], expected)
    assert np.array_equal(vectors[1], before)


@needs_triton
@pytest.mark.parametrize(("rows", "length", "masks"), [(0, 5, 2), (2, 0, 2), (2, 5, 0)])
def test_nothing_to_do(rows, length, masks):
    vectors, seeds = drawn(np.uint32, rows, length, masks)
    masked = add_on_device(vectors, seeds, np.ones((rows, masks), np.int8))
    assert np.array_equal(masked, vectors)


@needs_triton
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors": torch.zeros(2, 5, dtype=torch.int32)}, r"vectors: torch.int32 \[2, 5\]"),
        ({"vectors": torch.zeros(5, dtype=torch.uint32)}, "no matrices"),
        ({"vectors": torch.zeros(5, 2, dtype=torch.uint32).T}, "vectors: must be contiguous"),
        ({"seeds": torch.zeros(2, 2, 32, dtype=torch.uint8)}, r"must be torch.uint8 \[2, 3, 32\]"),
        ({"signs": torch.zeros(2, 3, dtype=torch.int16)}, "must be torch.int8"),
        (
            {"signs": torch.zeros(2, 3, dtype=torch.int8, device="meta")},
            "signs: must be contiguous and on cpu",
        ),
        ({"vectors": torch.empty(2, (1 << 35) + 1, dtype=torch.uint64, device="meta")}, "too long"),
        ({"vectors": torch.empty(1 << 20, 1 << 21, dtype=torch.uint32, device="meta")}, "too many"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    vectors = changes.get("vectors", torch.zeros(2, 5, dtype=torch.uint32))
    rows, device = len(vectors), vectors.device
    right = {
        "vectors": vectors,
        "seeds": torch.zeros(rows, 3, prg.SEED_SIZE, dtype=torch.uint8, device=device),
        "signs": torch.ones(rows, 3, dtype=torch.int8, device=device),
    }
    with pytest.raises(ValueError, match=message):
        gpu.add_masks_to_rows(**(right | changes))


def test_seeds_of_another_size_are_refused():
    for length in (4, 40):
        total = np.zeros(length, np.uint32)
        with pytest.raises(ValueError, match="not 32 bytes"):
            gpu.add_masks(total, [bytes(31)], [bytes(33)], device=DEVICE)
        assert not total.any()


def test_a_mask_that_is_its_seed_takes_no_kernel(monkeypatch):
    monkeypatch.setattr(gpu, "triton", None)
    total = np.zeros(8, np.uint32)
    gpu.add_masks(total, [bytes(range(32))], [], device=DEVICE)
    assert total.tobytes() == bytes(range(32))


def test_without_triton_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu, "triton", None)
    with pytest.raises(gpu.TritonUnavailable, match=r"\.\[gpu\]"):
        gpu.add_masks(np.zeros(40, np.uint32), [bytes(32)], [], device=DEVICE)


COMPILE = """
import torch
torch.cuda.is_available = lambda: True  # compile, do not interpret
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from deltafl.sim.cohort.masks import gpu
for words, pointer in ((16, "*u32"), (8, "*u64")):
    types = {"vectors": pointer, "seeds": "*u32", "signs": "*i8", "length": "i64"}
    types |= {"num_seeds": "i32", "num_runs": "i32"}
    constants = {"num_words": words, "num_lanes": gpu._LANES}
    types |= dict.fromkeys(constants, "constexpr")
    kernel = compile(
        ASTSource(gpu._add_masks, types, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": gpu._WARPS, "enable_fp_fusion": False},
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
