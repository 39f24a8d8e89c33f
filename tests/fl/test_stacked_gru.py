"""The gradient of a stack of GRUs, without autograd, is that of torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from deltafl.fl.models.gru import EmbeddingGRU, OneHotGRU
from deltafl.fl.stacked import StackedGRU

MODULES = [OneHotGRU, EmbeddingGRU]
ALPHABET = 53


class Plain(nn.Module):
    """Slow and plain; one-hot where there are no vectors."""

    def __init__(self, alphabet, hidden, outputs, dimension=None):
        super().__init__()
        self.alphabet = alphabet
        if dimension is not None:
            self.embedding = nn.Embedding(alphabet, dimension)
        self.gru = nn.GRU(dimension or alphabet, hidden, batch_first=True)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x):
        if hasattr(self, "embedding"):
            read = self.embedding(x)
        else:
            read = one_hot(x, self.alphabet).to(self.output.weight.dtype)
        return self.output(self.gru(read)[0][:, -1])


def plain_twin(kind):
    if kind is OneHotGRU:
        return Plain(ALPHABET, 128, ALPHABET)
    return Plain(ALPHABET, 128, 128, dimension=8)


def by_autograd(plain, x, y, weights):
    loss = (cross_entropy(plain(x), y, reduction="none") * weights).sum()
    return loss.detach(), torch.autograd.grad(loss, list(plain.parameters()))


def stack_of(modules):
    columns = zip(*(module.parameters() for module in modules), strict=True)
    return [torch.stack([one.detach() for one in column]) for column in columns]


def texts(generator, models, batch, num_tokens, alphabet=ALPHABET):
    x = torch.randint(0, alphabet, (models, batch, num_tokens), generator=generator)
    y = torch.randint(0, alphabet, (models, batch), generator=generator)
    return x, y


def ragged_weights(sizes, batch, dtype=torch.float32):
    return torch.stack(
        [torch.cat([torch.full((n,), 1 / n), torch.zeros(batch - n)]) for n in sizes]
    ).to(dtype)


def assert_equal_gradients(found, modules, x, y, weights, **tolerance):
    losses, gradients = found
    for k, module in enumerate(modules):
        loss, expected = by_autograd(module, x[k], y[k], weights[k])
        torch.testing.assert_close(losses[k], loss, **tolerance)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one[k], other, **tolerance)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 3, 8]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(2, 6),
    st.integers(1, 4),
    st.sampled_from([None, 1, 3]),
    st.integers(0, 2**32),
    st.data(),
)
def test_gradients_are_those_of_torch(
    models, batch, num_tokens, alphabet, hidden, dimension, seed, data
):
    generator = torch.Generator().manual_seed(seed)
    modules = [Plain(alphabet, hidden, alphabet + 1, dimension).double() for _ in range(models)]
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x, y = texts(generator, models, batch, num_tokens, alphabet)
    size = st.integers(1, batch)
    sizes = data.draw(st.lists(size, min_size=models, max_size=models))
    weights = ragged_weights(sizes, batch, torch.float64)
    kind = OneHotGRU if dimension is None else EmbeddingGRU
    stacked = StackedGRU(kind((num_tokens,), alphabet))
    found = stacked.gradients(stack_of(modules), x, y, weights)
    assert_equal_gradients(found, modules, x, y, weights, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("models", [1, 3, 8])
@pytest.mark.parametrize("kind", MODULES)
def test_stack_of_the_papers_models_in_float32(kind, models):
    generator = torch.Generator().manual_seed(models)
    modules = [plain_twin(kind) for _ in range(models)]
    x, y = texts(generator, models, 16, 20)
    weights = ragged_weights([16, 5, 1, 16, 9, 16, 2, 7][:models], 16)
    stacked = StackedGRU(kind((20,), ALPHABET))
    found = stacked.gradients(stack_of(modules), x, y, weights)
    assert_equal_gradients(found, modules, x, y, weights, atol=1e-6, rtol=1e-4)
    with pytest.raises(AssertionError):  # the comparison notices the texts' order
        assert_equal_gradients(found, modules, x.flip(2), y, weights, atol=1e-6, rtol=1e-4)
    with pytest.raises(AssertionError):  # and what a text weighs
        assert_equal_gradients(found, modules, x, y, weights * 0.999, atol=1e-6, rtol=1e-4)


# In float64, what another place in a stack rounds otherwise is far below what a mixture would be


@pytest.mark.parametrize("kind", MODULES)
def test_padding_may_hold_any_text(kind):
    generator = torch.Generator().manual_seed(7)
    stack = stack_of([plain_twin(kind).double() for _ in range(2)])
    x, y = texts(generator, 2, 4, 6)
    weights = ragged_weights([4, 3], 4, torch.float64)
    stacked = StackedGRU(kind((6,), ALPHABET))
    losses, gradients = stacked.gradients(stack, x, y, weights)
    other_x, other_y = x.clone(), y.clone()
    other_x[1, 3], other_y[1, 3] = 52 - x[1, 3], 52 - y[1, 3]
    others = stacked.gradients(stack, other_x, other_y, weights)
    torch.testing.assert_close(others, (losses, gradients), atol=1e-14, rtol=1e-9)
    other_x[1, 2] = 52 - x[1, 2]  # this one counts
    assert stacked.gradients(stack, other_x, other_y, weights)[0][1] != losses[1]


@pytest.mark.parametrize("kind", MODULES)
def test_models_do_not_mix(kind):
    generator = torch.Generator().manual_seed(8)
    modules = [plain_twin(kind).double() for _ in range(3)]
    x, y = texts(generator, 3, 4, 5)
    weights = ragged_weights([4, 4, 4], 4, torch.float64)
    stacked, order = StackedGRU(kind((5,), ALPHABET)), torch.tensor([2, 0, 1])
    losses, gradients = stacked.gradients(stack_of(modules), x, y, weights)
    turned = stacked.gradients(
        [one[order] for one in stack_of(modules)], x[order], y[order], weights
    )
    expected = (losses[order], [one[order] for one in gradients])
    torch.testing.assert_close(turned, expected, atol=1e-14, rtol=1e-9)
    assert not torch.allclose(turned[0], losses)


@pytest.mark.parametrize("kind", MODULES)
def test_training_goes_where_the_plain_loop_goes(kind):
    generator = torch.Generator().manual_seed(10)
    plain = plain_twin(kind)
    stack = stack_of([plain])
    stacked = StackedGRU(kind((20,), ALPHABET))
    descent = torch.optim.SGD(plain.parameters(), lr=0.5)
    for batch in (16, 16, 3):
        x, y = texts(generator, 1, batch, 20)
        descent.zero_grad()
        cross_entropy(plain(x[0]), y[0]).backward()
        descent.step()
        _, gradients = stacked.gradients(stack, x, y, torch.full((1, batch), 1 / batch))
        for parameter, gradient in zip(stack, gradients, strict=True):
            parameter.sub_(gradient, alpha=0.5)
    for parameter, expected in zip(stack, plain.parameters(), strict=True):
        torch.testing.assert_close(parameter[0], expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("token", [-1, ALPHABET])
@pytest.mark.parametrize("kind", MODULES)
def test_unknown_tokens_are_refused(kind, token):
    # in a stack of tables, a token too large would be the first of the next model
    module = kind((4,), ALPHABET)
    x, y = texts(torch.Generator().manual_seed(11), 2, 3, 4)
    x[0, 1, 2] = token
    with pytest.raises(ValueError, match="vocabulary"):
        StackedGRU(module).gradients(stack_of([module, module]), x, y, torch.ones(2, 3))


@pytest.mark.parametrize("kind", MODULES)
def test_parameters_changed_before_the_gradient_are_noticed(kind):
    module = kind((4,), ALPHABET)
    x, y = texts(torch.Generator().manual_seed(12), 1, 3, 4)
    loss = cross_entropy(module(x[0]), y[0])
    with torch.no_grad():
        module.gru.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
