"""The models of a finished run, one per conformity level, and the inputs they accept, in one file.

At test time each device chooses its level (arXiv 2002.11223, section 3 and Figure 1). Nobody else
can measure its conformity, because its data stay with it, so it tunes the level and keeps the one
with the smallest error.

The file is an uncompressed .npz archive without pickle, with these arrays:

    header   uint8, JSON: format, architecture, levels, provenance, digest of the models
    models   float32 [levels, parameters], θ falling
    mean     float64 [*input_shape]; features are scaled by (x - mean) / std
    std      float64 [*input_shape]; `mean` and `std` are both there or both absent

Nothing in a file is trusted: entries, sizes, types and ranges are checked before memory is
allocated.
"""

import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.data.federated import DeviceData, Samples, Scale
from deltafl.fl.errors import DataError
from deltafl.fl.models import MODELS, READ_TOKENS, build_model
from deltafl.fl.parameters import load_vector, num_parameters
from deltafl.fl.read.npz import Npz, open_npz
from deltafl.fl.read.strict_json import parse_json
from deltafl.fl.registry import OWN
from deltafl.fl.strategies.levels import check_levels
from deltafl.fl.superquantile import parse_theta
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import MAX_LEVELS

FORMAT: Final = 1
MAX_BYTES: Final = 1 << 32
_MAX_HEADER: Final = 1 << 16
_MAX_DIMENSIONS: Final = 4
_MAX_FEATURES: Final = 1 << 24
_MAX_CLASSES: Final = 1 << 20
_BATCH: Final = 512
_SHA256_DIGITS: Final = 64
_LEVEL: Final = re.compile(r"[0-9]{1,32}(/[0-9]{1,32})?")
_ENTRIES: Final = ("header", "models", "mean", "std")
_UNUSABLE: Final = "not a bundle that can be used"

Inputs = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Architecture:
    """The architecture whose parameters the model vectors are.

    Attributes:
        name: one of `deltafl.fl.models.MODELS`, or `OWN`.
        input_shape: the shape of one input.
        num_classes: at least 2; 0 if the model is `OWN` and gives numbers.
        embedding_sha256: digest of the frozen token vectors, hex; None if there are none.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    embedding_sha256: str | None = None

    def build(self, embedding: npt.NDArray[np.float32] | None = None) -> nn.Module:
        """The module, with initial weights.

        Raises:
            ValueError: the model cannot take such inputs, or was of somebody's own making.
        """
        if self.name == OWN:
            raise ValueError(
                "its models are of a module of somebody's own, which is not in it: in Python, "
                "deltafl.Result.open(RUN, module) has it predict"
            )
        return build_model(
            self.name,
            input_shape=self.input_shape,
            num_classes=self.num_classes,
            seed=0,
            embedding=embedding,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What a file holds, without the word vectors that some architectures need.

    Attributes:
        architecture: the architecture whose parameters they are.
        models: by conformity level, θ falling; float32 vectors of one length, which is checked
            against the architecture's in a `Bundle` that is read.
        scale: how features were scaled; None if they were not.
        provenance: origin, by name: algorithm, seed, round, data, data_sha256.
    """

    architecture: Architecture
    models: Mapping[Fraction, Vector]
    scale: Scale | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file that a run writes of it."""
        models = np.stack(list(self.models.values())).astype("<f4")
        header = {
            "format": FORMAT,
            "model": self.architecture.name,
            "input_shape": list(self.architecture.input_shape),
            "num_classes": self.architecture.num_classes,
            "embedding_sha256": self.architecture.embedding_sha256,
            "levels": [str(level) for level in self.models],
            "models_sha256": _models_sha256(models),
            "provenance": dict(self.provenance),
        }
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            "models": models,
        }
        if self.scale is not None:
            arrays |= {"mean": self.scale.mean, "std": self.scale.std}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()


@dataclass(frozen=True, slots=True, eq=False)
class Bundle(Stored):
    """The models of all levels, ready to be used.

    Attributes:
        embedding: the frozen token vectors, if the architecture has them; not in the file.

    Raises:
        ValueError: the parts do not fit together.
    """

    embedding: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        check_levels(self.levels)
        wanted = self.architecture.embedding_sha256
        found = None if self.embedding is None else embedding_sha256(self.embedding)
        if wanted != found:
            raise ValueError(
                f"the embedding has sha256 {found}, and the models were trained with {wanted}: "
                "pass the vectors that were used in training"
            )

    @property
    def levels(self) -> tuple[Fraction, ...]:
        """The conformity levels, falling."""
        return tuple(self.models)

    @property
    def sha256(self) -> str:
        """Digest of the models as little-endian float32, level by level, hex."""
        return _models_sha256(np.stack(list(self.models.values())))

    def level_for(self, conformity: Fraction | float | str) -> Fraction:
        """The trained level to use for a conformity.

        The model of level θ is trained for every mixture of devices of conformity θ or more. So
        this returns the largest level that is not above the requested conformity: an exact match if
        there is one, otherwise the next smaller level. Below all levels it returns the smallest.

        Args:
            conformity: in (0, 1]; floats stand for the decimal that they print as.

        Raises:
            ValueError: it is not in (0, 1].
        """
        asked = parse_theta(conformity)
        return next((level for level in self.levels if level <= asked), self.levels[-1])

    def model(self, conformity: Fraction | float | str) -> Vector:
        """The model to use for a conformity; see `level_for`."""
        return self.models[self.level_for(conformity)]

    def predict(self, x: Inputs, conformity: Fraction | float | str) -> npt.NDArray[np.float64]:
        """Probabilities of the classes.

        Args:
            x: [n, *input_shape], numbers as in the training data before it was scaled; bytes are
                pixels in 0..255, if those were, and become [0, 1]. Tokens, of a model that reads
                them, are whole.
            conformity: in (0, 1].

        Returns:
            float64 [n, num_classes]; rows sum to 1.

        Raises:
            DataError: inputs of another shape, not finite, or tokens that the model does not know.
            ValueError: the conformity is not in (0, 1].
        """
        vector = self.model(conformity)
        module = self.architecture.build(self.embedding).eval()
        load_vector(module, vector)
        inputs = self._inputs(x)
        rows = []
        with torch.inference_mode():
            for start in range(0, len(inputs), _BATCH):
                try:
                    logits = module(torch.tensor(inputs[start : start + _BATCH]))
                except ValueError as error:  # such as tokens beyond the vocabulary
                    raise DataError(f"inputs: {error}") from error
                rows.append(torch.softmax(logits.double(), dim=1).numpy())
        return np.concatenate(rows or [np.zeros((0, self.architecture.num_classes))])

    @classmethod
    def load(cls, path: Path, embedding: npt.NDArray[np.float32] | None = None) -> "Bundle":
        """Read a file and check all of it.

        Args:
            path: the file.
            embedding: the frozen vectors of tokens, for models of text.

        Raises:
            DataError: there is no such file, it is no bundle, or anything in it is damaged.
        """
        stored = read_stored(path)
        try:
            return _whole(stored, embedding)
        except (MemoryError, ValueError) as error:
            raise DataError(f"{path}: {_UNUSABLE}: {error}") from error

    def _inputs(self, x: Inputs) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
        shape = self.architecture.input_shape
        if x.shape[1:] != shape or x.dtype.kind not in "uif":
            raise DataError(
                f"inputs of shape {x.shape[1:]} and dtype {x.dtype}: these models take {shape}, "
                "numbers"
            )
        if not np.isfinite(x).all():
            raise DataError("inputs hold NaN or an infinity: clean them first")
        x = numbers_of(x, self.provenance)
        if self.architecture.name in READ_TOKENS:
            if x.dtype.kind == "f":
                raise DataError(
                    f"inputs of dtype {x.dtype}: {self.architecture.name} reads tokens, whole "
                    "numbers"
                )
            return x.astype(np.int64)
        labels = np.zeros(len(x), dtype=np.int64)
        samples = x.astype(np.uint8) if x.dtype == np.uint8 else x.astype(np.float32)
        numbers = DeviceData("", cast("Samples", samples), labels).inputs()
        return numbers if self.scale is None else self.scale.of(numbers)


def numbers_of(x: Inputs, provenance: Mapping[str, str]) -> Inputs:
    """Inputs, of which bytes are pixels only if those that were trained on were.

    Args:
        x: inputs, [n, ...].
        provenance: of the bundle.
    """
    is_other = x.dtype == np.uint8 and provenance.get("bytes", "pixels") != "pixels"
    return x.astype(np.int64) if is_other else x


def read_stored(path: Path) -> Stored:
    """Read a file and check all of it that takes no word vectors: it may not fit its architecture.

    Raises:
        DataError: as `Bundle.load`.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file: a finished run writes bundle.npz")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: larger than {MAX_BYTES} bytes: it is no bundle")
    try:
        with open_npz(path) as archive:
            return _stored(_read(archive))
    except (OSError, MemoryError, ValueError) as error:
        raise DataError(f"{path}: {_UNUSABLE}: {error}") from error


def embedding_sha256(embedding: npt.NDArray[np.float32]) -> str:
    """Digest of the frozen vectors of tokens: their shape and their values, hex."""
    digest = hashlib.sha256(str(embedding.shape).encode())
    digest.update(np.ascontiguousarray(embedding, dtype="<f4").tobytes())
    return digest.hexdigest()


def _models_sha256(models: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(models, dtype="<f4").tobytes()).hexdigest()


def _read(archive: Npz) -> dict[str, npt.NDArray[np.generic]]:
    names = set(archive.entries)
    if len(archive.archive.infolist()) != len(names) or not names <= set(_ENTRIES):
        raise ValueError(f"its entries are {', '.join(sorted(names)[:8])!a:.200}, and others")
    if missing := {"header", "models"} - names:
        raise ValueError(f"it has no {min(missing)}")
    if ("mean" in names) != ("std" in names):
        raise ValueError("it has one of 'mean' and 'std' without the other")
    return {name: _read_array(archive, name) for name in archive.entries}


def _read_array(archive: Npz, name: str) -> npt.NDArray[np.generic]:
    if archive.entries[name].compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    array = archive.read(name, MAX_BYTES)
    if array.dtype not in (np.dtype("u1"), np.dtype("<f4"), np.dtype("<f8")):
        raise ValueError(f"{name} holds {array.dtype}")
    if array.ndim > 1 and not array.flags.c_contiguous:
        raise ValueError(f"{name} is in the order of Fortran")
    return array


def _whole(stored: Stored, embedding: npt.NDArray[np.float32] | None) -> Bundle:
    """Check all that takes word vectors, or building the architecture."""
    architecture, models = stored.architecture, stored.models
    if architecture.embedding_sha256 is not None and embedding is None:
        raise ValueError(
            "its models read text through word vectors, which are not in the file: give those of "
            "the training (--vectors)"
        )
    with torch.device("meta"):  # counts parameters without allocating them
        size = num_parameters(architecture.build(embedding))
    length = len(next(iter(models.values())))
    if length != size:
        raise ValueError(f"models of {length} numbers where the architecture has {size}")
    return Bundle(architecture, models, stored.scale, stored.provenance, embedding)


def _stored(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Stored:
    """Check all that can be checked without building the architecture."""
    header = _header(arrays["header"])
    if header.get("format") != FORMAT:
        raise ValueError(f"format {header.get('format')!r} is not {FORMAT}")
    architecture = _architecture(header)
    levels = _levels(header)
    models = arrays["models"]
    if models.dtype != np.float32 or models.ndim != 2 or len(models) != len(levels):
        raise ValueError(f"models of {models.dtype} {models.shape} are not {len(levels)} vectors")
    vectors = models.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError("a model holds NaN or an infinity")
    if header.get("models_sha256") != _models_sha256(vectors):
        raise ValueError("the models are not those of its digest")
    provenance = header.get("provenance")
    if not isinstance(provenance, dict) or not all(
        isinstance(value, str) for value in provenance.values()
    ):
        raise ValueError("its provenance is no table of texts")
    return Stored(
        architecture,
        dict(zip(levels, vectors, strict=True)),
        _scale(arrays, architecture),
        provenance,
    )


def _header(array: npt.NDArray[np.generic]) -> dict[str, object]:
    if array.dtype != np.uint8 or array.ndim != 1 or len(array) > _MAX_HEADER:
        raise ValueError("its header is no text of a reasonable length")
    header = parse_json(array.tobytes())
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header


def _architecture(header: Mapping[str, object]) -> Architecture:
    name, shape, classes = header.get("model"), header.get("input_shape"), header.get("num_classes")
    if not isinstance(name, str) or name not in (*MODELS, OWN):
        raise ValueError(f"model {name!r} is none of {', '.join(MODELS)}")
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= _MAX_DIMENSIONS
        or not all(type(size) is int and 1 <= size <= _MAX_FEATURES for size in shape)
        or math.prod(shape) > _MAX_FEATURES
    ):
        raise ValueError(f"input_shape {shape!r} is no shape of up to {_MAX_FEATURES} numbers")
    least = 0 if name == OWN else 2
    if type(classes) is not int or not least <= classes <= _MAX_CLASSES:
        raise ValueError(f"num_classes {classes!r} is not from {least} to {_MAX_CLASSES}")
    digest = header.get("embedding_sha256")
    if digest is not None and (not isinstance(digest, str) or len(digest) != _SHA256_DIGITS):
        raise ValueError("embedding_sha256 is no digest")
    return Architecture(name, tuple(shape), classes, digest)


def _levels(header: Mapping[str, object]) -> tuple[Fraction, ...]:
    texts = header.get("levels")
    if not isinstance(texts, list) or not 1 <= len(texts) <= MAX_LEVELS:
        raise ValueError(f"it does not name from 1 to {MAX_LEVELS} levels")
    # checked before it is a number: an exponent of nine digits would take hours, and all memory
    if not all(isinstance(text, str) and _LEVEL.fullmatch(text) for text in texts):
        raise ValueError("a level is no fraction, such as 4/5")
    levels = tuple(parse_theta(text) for text in texts)
    check_levels(levels)
    return levels


def _scale(
    arrays: Mapping[str, npt.NDArray[np.generic]], architecture: Architecture
) -> Scale | None:
    if "mean" not in arrays:
        return None
    mean, std = arrays["mean"], arrays["std"]
    for name, array in (("mean", mean), ("std", std)):
        if array.dtype != np.float64 or array.shape != architecture.input_shape:
            raise ValueError(f"{name} of {array.dtype} {array.shape} is not one for each feature")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or an infinity")
    if not (std.astype(np.float64) > 0).all():
        raise ValueError("a divisor of a feature is not above 0")
    return Scale(mean.astype(np.float64), std.astype(np.float64))
