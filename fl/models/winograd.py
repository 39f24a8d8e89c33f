"""Convolutions of five rows with fewer products, and their gradients.

Four rows of outputs that share their inputs are found together: Winograd's F(4, 5) takes 8 products
where the definition takes 4 · 5 (Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and
Gray, arXiv 1509.09308). It goes along rows only. Then the products are themselves convolutions, of
one row, which keep the kernels of PyTorch busy, and rounding adds up to about as much as without.
The rows are transformed by small matrices, one product for each place: by NumPy, for those of
PyTorch take three times as long.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import conv2d, pad

_Floats: TypeAlias = npt.NDArray[np.float32]

_TAPS: Final = 5  # rows and columns of a filter
_ROWS: Final = 4  # of outputs that are found together: a tile
_PRODUCTS: Final = _ROWS + _TAPS - 1
# where polynomials are evaluated, beside infinity: powers of two, which rounding leaves as they are
_POINTS: Final = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def _transforms() -> tuple[_Floats, _Floats, _Floats]:
    """The matrices A, B, G of y = A·(G·w ∘ B·x), which is y_i = Σ_k w_k·x_(i+k).

    The transpose of A and G evaluate polynomials of 4 and of 5 coefficients, and the transpose
    of B interpolates their product: multiplying polynomials is the transposed task.
    """
    values = np.zeros((_PRODUCTS, _PRODUCTS))
    values[:-1] = np.array(_POINTS)[:, None] ** np.arange(_PRODUCTS)
    values[-1, -1] = 1  # at infinity, a polynomial is its last coefficient
    interpolation = np.linalg.inv(values)
    of_outputs, of_taps = (
        np.vstack([values[:-1, :length], np.eye(length)[-1]]) for length in (_ROWS, _TAPS)
    )
    # each point's factor may stand with any of the three: here, so that no entry of B is above 1
    scale = np.abs(interpolation).max(0)
    matrices = of_outputs.T, (interpolation / scale).T, of_taps * scale[:, None]
    a, b, g = (np.ascontiguousarray(matrix, dtype=np.float32) for matrix in matrices)
    return a, b, g


_A, _B, _G = _transforms()
_A_BACK, _B_BACK, _G_BACK = (np.ascontiguousarray(matrix.T) for matrix in (_A, _B, _G))


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What was multiplied, which the gradients want again.

    Attributes:
        inputs: float32 [batch, 8 · in_channels, tiles, width], stored channels-last.
        filters: float32 [8 · out_channels, in_channels, 1, 5], stored channels-last.
    """

    inputs: torch.Tensor
    filters: torch.Tensor


def convolution(inputs: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, Factors]:
    """Convolve without padding, on a CPU, and not as part of a graph.

    Args:
        inputs: float32 [batch, in_channels, height, width], each side at least 5; it is fastest if
            they are stored channels-last.
        weight: float32 [out_channels, in_channels, 5, 5]; likewise.

    Returns:
        The maps, float32 [batch, out_channels, height − 4, width − 4], and what `gradients` wants.
    """
    batch, channels, height, width = inputs.shape
    rows = height - _TAPS + 1
    tiles = -(-rows // _ROWS)
    windows = _padded(inputs, tiles * _ROWS - rows).unfold(2, _PRODUCTS, _ROWS)
    of_inputs = np.empty((batch, tiles, width, _PRODUCTS, channels), np.float32)
    np.matmul(_B, windows.permute(0, 2, 3, 4, 1).numpy(), out=of_inputs)

    taps = weight.permute(0, 2, 3, 1).reshape(len(weight), _TAPS, _TAPS * channels)
    filters = np.empty((_PRODUCTS, len(weight), _TAPS * channels), np.float32)
    np.matmul(_G, taps.numpy(), out=filters.transpose(1, 0, 2))

    factors = Factors(
        _as_maps(of_inputs),
        torch.from_numpy(filters).view(-1, 1, _TAPS, channels).permute(0, 3, 1, 2),
    )
    products = conv2d(factors.inputs, factors.filters, groups=_PRODUCTS)
    maps = np.empty((batch, tiles * _ROWS, width - _TAPS + 1, len(weight)), np.float32)
    np.matmul(_A, _from_maps(products), out=_tiled(maps))
    return torch.from_numpy(maps).permute(0, 3, 1, 2)[:, :, :rows], factors


def gradients(gradient: torch.Tensor, factors: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of a convolution's inputs and weight from that of its maps.

    Args:
        gradient: float32 [batch, out_channels, height − 4, width − 4]; it is fastest if it is
            stored channels-last.
        factors: of the convolution.

    Returns:
        The gradients of inputs and of weight, in their shapes, stored channels-last.
    """
    batch, outs, rows, narrow = gradient.shape
    channels = factors.filters.shape[1]
    tiles, width = factors.inputs.shape[2:]
    of_maps = _padded(gradient, tiles * _ROWS - rows).permute(0, 2, 3, 1).numpy()
    of_products = np.empty((batch, tiles, narrow, _PRODUCTS, outs), np.float32)
    np.matmul(_A_BACK, _tiled(of_maps), out=of_products)
    transformed, of_filters, _ = torch.ops.aten.convolution_backward(
        _as_maps(of_products),
        factors.inputs,
        factors.filters,
        None,
        (1, 1),
        (0, 0),
        (1, 1),
        False,
        (0, 0),
        _PRODUCTS,
        (True, True, False),
    )

    # each window of inputs was two tiles, and each tile but the first and the last was in two
    of_inputs = np.empty((batch, (tiles + 1) * _ROWS, width, channels), np.float32)
    upper, lower = _tiled(of_inputs)[:, :-1], _tiled(of_inputs)[:, 1:]
    np.matmul(_B_BACK[:_ROWS], _from_maps(transformed), out=upper)
    of_lower = np.matmul(_B_BACK[_ROWS:], _from_maps(transformed))
    lower[:, :-1] += of_lower[:, :-1]
    lower[:, -1] = of_lower[:, -1]

    of_filters = of_filters.permute(0, 2, 3, 1).reshape(_PRODUCTS, outs, _TAPS * channels)
    of_taps = torch.from_numpy(np.matmul(_G_BACK, of_filters.transpose(0, 1).numpy()))
    return (
        torch.from_numpy(of_inputs).permute(0, 3, 1, 2)[:, :, : rows + _TAPS - 1],
        of_taps.view(outs, _TAPS, _TAPS, channels).permute(0, 3, 1, 2),
    )


def _padded(maps: torch.Tensor, rows: int) -> torch.Tensor:
    """With so many more rows, of zeros."""
    return pad(maps, (0, 0, 0, rows)) if rows else maps


def _tiled(maps: _Floats) -> _Floats:
    """[batch, rows, width, channels] as [batch, tiles, width, 4, channels], uncopied."""
    batch, rows, width, channels = maps.shape
    tiles = maps.reshape(batch, rows // _ROWS, _ROWS, width, channels)
    return tiles.transpose(0, 1, 3, 2, 4)


def _as_maps(products: _Floats) -> torch.Tensor:
    """[batch, tiles, width, 8, channels] as [batch, 8 · channels, tiles, width], uncopied."""
    return torch.from_numpy(products).flatten(3).permute(0, 3, 1, 2)


def _from_maps(maps: torch.Tensor) -> _Floats:
    """[batch, 8 · channels, tiles, width] as [batch, tiles, width, 8, channels]."""
    products: _Floats = maps.permute(0, 2, 3, 1).numpy()
    return products.reshape(*products.shape[:3], _PRODUCTS, -1)
