"""A bundle gives back what was put in, at the level that was asked for, and trusts no file."""

import io
import json
import zipfile
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.fl.bundle import Architecture, Bundle, embedding_sha256
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Scale
from deltafl.fl.data.load import scaling_constants, standardise
from deltafl.fl.errors import DataError
from deltafl.fl.local import Learner
from deltafl.fl.models import MODELS, READ_TOKENS, build_model
from deltafl.fl.parameters import to_vector

LEVELS = (Fraction(4, 5), Fraction(1, 2), Fraction(1, 10))
ARCHITECTURE = Architecture("linear", (2, 3), 4)


def make_bundle(**changes):
    generator = np.random.default_rng(1)
    fields = {
        "architecture": ARCHITECTURE,
        "models": {level: generator.standard_normal(24).astype(np.float32) for level in LEVELS},
        "provenance": {"algorithm": "delta-fl", "round": "3"},
    }
    return Bundle(**(fields | changes))


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def load(tmp_path, data: bytes) -> Bundle:
    return Bundle.load(write(tmp_path / "bundle.npz", data))


def arrays_of(bundle):
    with np.load(io.BytesIO(bundle.to_bytes()), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def packed(arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def with_header(**changes) -> bytes:
    arrays = arrays_of(make_bundle())
    header = json.loads(arrays["header"].tobytes()) | changes
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    return packed(arrays)


@pytest.mark.parametrize("scale", [None, Scale(np.full((2, 3), 0.5), np.full((2, 3), 2.0))])
def test_what_is_written_is_read(tmp_path, scale):
    bundle = make_bundle(scale=scale)
    again = load(tmp_path, bundle.to_bytes())
    assert (again.architecture, again.levels) == (bundle.architecture, LEVELS)
    assert again.provenance == bundle.provenance
    assert again.sha256 == bundle.sha256
    for level in LEVELS:
        assert again.model(level).tobytes() == bundle.model(level).tobytes()
    x = np.random.default_rng(2).standard_normal((5, 2, 3))
    assert np.array_equal(again.predict(x, 0.5), bundle.predict(x, 0.5))
    assert again.to_bytes() == bundle.to_bytes()


@pytest.mark.parametrize(
    ("asked", "answered"),
    [(0.8, 0.8), ("1/2", 0.5), (1, 0.8), (0.79, 0.5), (0.5, 0.5), (0.3, 0.1), (0.05, 0.1)],
)
def test_a_level_between_two_is_answered_by_the_smaller(asked, answered):
    assert make_bundle().level_for(asked) == Fraction(str(answered))


@pytest.mark.parametrize("asked", [0, 1.5, -1, "much"])
def test_a_conformity_lies_between_0_and_1(asked):
    with pytest.raises(ValueError, match="theta"):
        make_bundle().level_for(asked)


def test_predictions_are_those_of_the_trained_model():
    bundle = make_bundle()
    data = DeviceData("a", np.random.default_rng(3).random((9, 2, 3), np.float32), np.arange(9) % 4)
    module = build_model("linear", input_shape=(2, 3), num_classes=4, seed=0)
    for level in LEVELS:
        probabilities = bundle.predict(data.x, level)
        assert np.allclose(probabilities.sum(axis=1), 1)
        learner = Learner(module)
        measured = learner.evaluate(bundle.model(level), [data])[0]
        assert np.isclose(measured.error, (probabilities.argmax(axis=1) != data.y).mean())
        assert np.isclose(measured.loss, -np.log(probabilities[np.arange(9), data.y]).mean())
    assert not np.allclose(bundle.predict(data.x, 0.8), bundle.predict(data.x, 0.1))


def test_pixels_are_scaled_as_in_training():
    bundle, pixels = make_bundle(), np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert np.allclose(bundle.predict(pixels, 0.5), bundle.predict(pixels / 255, 0.5))


TAKEN = {
    "convnet": (1, 16, 16),
    "convnet-groupnorm": (1, 16, 16),
    "m5": (1100,),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_read_tokens_or_take_numbers(name):
    embedding = np.ones((5, 3), np.float32)
    module = build_model(
        name, input_shape=TAKEN.get(name, (4,)), num_classes=2, seed=0, embedding=embedding
    )
    numbers = torch.zeros((1, *TAKEN.get(name, (4,))))
    if name in READ_TOKENS:
        module(numbers.long())
        with pytest.raises(ValueError, match="no tokens"):
            module(numbers)
    else:
        module(numbers)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_tokens_are_read_as_in_training(dtype):
    module = build_model("gru", input_shape=(4,), num_classes=5, seed=1)
    models = {Fraction(1): to_vector(module)}
    bundle = Bundle(Architecture("gru", (4,), 5), models)
    tokens = np.random.default_rng(1).integers(0, 5, (7, 4))
    data = DeviceData("a", tokens, np.arange(7) % 5)
    found = bundle.predict(tokens.astype(dtype), 1)
    (measured,) = Learner(module).evaluate(models[Fraction(1)], [data])
    assert np.isclose(measured.loss, -np.log(found[np.arange(7), data.y]).mean())
    with pytest.raises(DataError, match="vocabulary of gru"):
        bundle.predict(tokens + 5, 1)
    with pytest.raises(DataError, match="reads tokens"):
        bundle.predict(tokens.astype(np.float32), 1)


def test_features_are_scaled_by_the_constants_of_the_train_devices():
    generator = np.random.default_rng(4)
    devices = [
        DeviceData(name, generator.normal(3, 2, (6, 2, 3)).astype(np.float32), np.zeros(6, int))
        for name in "abc"
    ]
    dataset = FederatedDataset("d", tuple(devices[:2]), tuple(devices[2:]), 4, (2, 3), 0, "")
    scaled = standardise(dataset)
    train = np.concatenate([devices[0].x, devices[1].x]).astype(np.float64)
    wanted = (devices[2].x - train.mean(axis=0)) / train.std(axis=0)
    assert np.allclose(scaled.test[0].x, wanted, atol=1e-5)
    bundle, plain = make_bundle(scale=scaling_constants(dataset.train)), make_bundle()
    expected = plain.predict(scaled.test[0].x, 0.5)
    assert np.allclose(bundle.predict(devices[2].x, 0.5), expected, atol=1e-6)
    assert not np.allclose(plain.predict(devices[2].x, 0.5), expected)


def test_bytes_are_pixels_if_those_that_were_trained_on_were():
    x = np.random.default_rng(5).integers(0, 255, (4, 2, 3)).astype(np.uint8)
    for provenance, divisor in (({}, 255), ({"bytes": "pixels"}, 255), ({"bytes": "numbers"}, 1)):
        found = make_bundle(provenance=provenance).predict(x, 0.5)
        assert np.allclose(found, make_bundle().predict(x / np.float32(divisor), 0.5))


@pytest.mark.parametrize(
    "x", [np.zeros((1, 3, 2)), np.full((1, 2, 3), np.nan), np.array([[["a"] * 3] * 2])]
)
def test_inputs_that_do_not_fit_are_refused(x):
    with pytest.raises(DataError, match="inputs"):
        make_bundle().predict(x, 0.5)


def test_no_samples_have_no_predictions():
    assert make_bundle().predict(np.zeros((0, 2, 3)), 0.5).shape == (0, 4)


def test_an_embedding_is_that_of_the_training():
    embedding = np.ones((5, 3), np.float32)
    digest = embedding_sha256(embedding)
    with pytest.raises(ValueError, match="embedding"):
        make_bundle(architecture=Architecture("linear", (2, 3), 4, digest))
    with pytest.raises(ValueError, match="embedding"):
        make_bundle(embedding=embedding)
    kept = make_bundle(architecture=Architecture("linear", (2, 3), 4, digest), embedding=embedding)
    assert kept.levels == LEVELS
    assert embedding_sha256(embedding.reshape(3, 5)) != digest


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"model": "pickle"},
        {"input_shape": []},
        {"input_shape": [2, -3]},
        {"input_shape": [2**20, 2**20]},
        {"input_shape": [2, 4]},
        {"input_shape": "2"},
        {"num_classes": 1},
        {"num_classes": 2**40},
        {"num_classes": 4.0},
        {"num_classes": 5},
        {"num_classes": 3},
        {"levels": ["0.8", "0.5"]},
        {"levels": ["0.1", "0.5", "0.8"]},
        {"levels": ["0.8", "0.5", "0"]},
        {"levels": ["0.8", "0.5", "9" * 100]},
        {"levels": [0.8, 0.5, 0.1]},
        {"levels": ["4/5", "1/2", "1e-999999999"]},
        {"levels": 3},
        {"embedding_sha256": "00"},
        {"embedding_sha256": "0" * 64},
        {"models_sha256": "0" * 64},
        {"provenance": {"round": 3}},
        {"provenance": None},
    ],
    ids=str,
)
def test_a_header_that_lies_is_refused(tmp_path, changes):
    with pytest.raises(DataError, match="not a bundle"):
        load(tmp_path, with_header(**changes))


def test_the_honest_header_is_not_refused(tmp_path):
    assert load(tmp_path, with_header()).levels == LEVELS


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a | {"models": a["models"].astype(np.float64)},
        lambda a: a | {"models": a["models"] * np.float32("nan")},
        lambda a: a | {"models": a["models"][:, :-1]},
        lambda a: a | {"models": a["models"][0]},
        lambda a: a | {"models": np.asfortranarray(a["models"])},
        lambda a: a | {"header": a["header"].astype(np.float32)},
        lambda a: a | {"header": np.frombuffer(b"[1]", np.uint8)},
        lambda a: a | {"header": np.frombuffer(b"\xff\xfe", np.uint8)},
        lambda a: a | {"header": np.frombuffer(b"[" * 9000, np.uint8)},
        lambda a: a | {"extra": np.zeros(3)},
        lambda a: a | {"mean": np.zeros((2, 3))},
        lambda a: a | {"mean": np.zeros((2, 3)), "std": np.zeros((2, 3))},
        lambda a: a | {"mean": np.zeros((3, 2)), "std": np.ones((2, 3))},
        lambda a: a | {"mean": np.full((2, 3), np.inf), "std": np.ones((2, 3))},
        lambda a: {"models": a["models"]},
        lambda a: {"header": a["header"]},
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, change):
    with pytest.raises(DataError, match="not a bundle"):
        load(tmp_path, packed(change(arrays_of(make_bundle()))))


def test_objects_are_never_unpickled(tmp_path):
    arrays = arrays_of(make_bundle()) | {"models": np.array([[print]], dtype=object)}
    with pytest.raises(DataError, match="not a bundle"):
        load(tmp_path, packed(arrays))


def entry(name, shape, data=b"", compress=zipfile.ZIP_STORED) -> bytes:
    """An archive of one array whose head promises `shape`."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as archive:
        archive.writestr("header.npy", head.getvalue() + bytes(4))
        archive.writestr(f"{name}.npy", head.getvalue() + data)
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(2**40, 24), (3, 24), (2**60, 2**60), (-1, 24)])
def test_no_memory_is_taken_for_what_is_not_there(tmp_path, shape):
    with pytest.raises(DataError, match=r"has 4 bytes and states|its head is not as"):
        load(tmp_path, entry("models", shape))


def test_compressed_archives_are_refused(tmp_path):
    with pytest.raises(DataError, match="is compressed"):
        load(tmp_path, entry("models", (9,), bytes(36), zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("head", [b"(((", b"'''", b"{[]: 1}", b"  1\n 2", b"-" * 3000 + b"1"])
def test_a_head_that_is_no_literal_is_refused(tmp_path, head):
    """NumPy reads the head of an array as a literal of Python, and raises whatever Python does."""
    magic = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("header.npy", magic + head)
        archive.writestr("models.npy", magic + head)
    with pytest.raises(DataError, match="not a bundle"):
        load(tmp_path, buffer.getvalue())


def test_encrypted_archives_are_refused(tmp_path):
    data = bytearray(make_bundle().to_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(signature) + flags] |= 1
    with pytest.raises(DataError, match="encrypted"):
        load(tmp_path, bytes(data))


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Bundle.load(tmp_path / "nothing.npz")
    for data in (b"", b"PK\x03\x04", bytes(100)):
        with pytest.raises(DataError, match="not a bundle"):
            load(tmp_path, data)


@settings(deadline=None, max_examples=60)
@given(at=st.integers(0, 2**16), change=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path_factory, at, change):
    good = make_bundle().to_bytes()
    data = bytearray(good)
    data[at % len(data)] ^= change
    path = write(tmp_path_factory.mktemp("b") / "bundle.npz", bytes(data))
    try:
        found = Bundle.load(path)
    except DataError:
        return
    assert found.to_bytes() == good


def test_models_that_are_not_finite_are_refused_under_their_own_digest(tmp_path):
    models = {level: np.zeros(24, np.float32) for level in LEVELS}
    models[LEVELS[1]][7] = np.nan
    with pytest.raises(DataError, match="holds NaN"):
        load(tmp_path, make_bundle(models=models).to_bytes())


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path / "bundle.npz", make_bundle().to_bytes())
    size = path.stat().st_size
    monkeypatch.setattr("deltafl.fl.bundle.MAX_BYTES", size)
    assert Bundle.load(path).levels == LEVELS
    monkeypatch.setattr("deltafl.fl.bundle.MAX_BYTES", size - 1)
    with pytest.raises(DataError, match=f"larger than {size - 1} bytes"):
        Bundle.load(path)
