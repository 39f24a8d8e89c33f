"""Convolutions with fewer products against their definition, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

from deltafl.fl.models import winograd


def draw(batch, channels, outs, height, width, seed, layout=torch.channels_last):
    """Inputs, a weight and a gradient of the maps."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, channels, height, width),
        (outs, channels, 5, 5),
        (batch, outs, height - 4, width - 4),
    )
    return [
        torch.randn(shape, generator=generator).contiguous(memory_format=layout) for shape in shapes
    ]


def by_definition(inputs, weight, gradient):
    inputs, weight = (each.double().requires_grad_() for each in (inputs, weight))
    maps = conv2d(inputs, weight)
    return [maps.detach(), *torch.autograd.grad(maps, (inputs, weight), gradient.double())]


def written_out(inputs, weight, gradient):
    maps, factors = winograd.convolution(inputs, weight)
    return [maps, *winograd.gradients(gradient, factors)]


def assert_right(drawn):
    """Within some tens of roundings of float32, by the largest sum of absolute values.

    Sums themselves may cancel.
    """
    found, expected = written_out(*drawn), by_definition(*drawn)
    sums = by_definition(*(each.abs() for each in drawn))
    for name, a, b, most in zip(("maps", "inputs", "weight"), found, expected, sums, strict=True):
        assert a.shape == b.shape, name
        assert a.dtype == torch.float32, name
        atol = 5e-6 * float(most.max())
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=atol, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(5, 15),
    st.integers(5, 15),
    st.integers(0, 99),
    st.sampled_from([torch.channels_last, torch.contiguous_format]),
)
def test_maps_and_gradients_are_those_of_the_definition(
    batch, channels, outs, height, width, seed, layout
):
    assert_right(draw(batch, channels, outs, height, width, seed, layout))


@pytest.mark.parametrize("batch", [1, 16])
def test_of_the_convnet_it_rounds_about_as_much_as_plain_sums(batch, monkeypatch):
    """At most three times as much as adding up term by term.

    PyTorch's kernels are no measure: by how much they round less hangs on the processor. Of n terms
    of variance 1 the first k add up to about √k, and float32 is off by up to 2⁻²⁴ of that, evenly:
    by a variance of 2⁻⁴⁸·k/3. Over all k this is 2⁻⁴⁸·n²/6, where the sum has the variance n.
    """
    drawn = draw(batch, 32, 64, 12, 12, 1)
    _, weight, gradient = drawn
    expected = by_definition(*drawn)
    terms = np.array([weight[0].numel(), weight[:, 0].numel(), gradient[:, 0].numel()])

    def is_right():
        pairs = zip(written_out(*drawn), expected, strict=True)
        errors = [float((a - b).square().mean().sqrt() / b.std()) for a, b in pairs]
        return errors < 3 * 2.0**-24 * np.sqrt(terms / 6)

    assert is_right().all()
    monkeypatch.setattr(winograd, "_B", winograd._B * np.float32(1 + 5e-6))
    assert not is_right()[0]
    monkeypatch.setattr(winograd, "_B_BACK", winograd._B_BACK * np.float32(1 + 5e-6))
    assert not is_right().any()


def test_what_goes_in_is_left_as_it_was():
    drawn = draw(2, 3, 4, 12, 9, 1)
    before = [each.clone() for each in drawn]
    written_out(*drawn)
    assert all(map(torch.equal, drawn, before))


@pytest.mark.parametrize("name", ["_A", "_B", "_G", "_A_BACK", "_B_BACK", "_G_BACK"])
def test_comparison_notices_a_wrong_matrix(name, monkeypatch):
    drawn = draw(2, 3, 4, 12, 9, 1)
    assert_right(drawn)
    damaged = getattr(winograd, name).copy()
    damaged[1, 2] += 1e-3
    monkeypatch.setattr(winograd, name, damaged)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_right(drawn)
