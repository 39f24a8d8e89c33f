"""What a model is trained for: the loss of each sample, and how far off its answer is.

The papers' models classify: their loss is the cross-entropy, and what is reported of a device is
its error, the share of its samples that are misclassified. A module of somebody's own may have
another loss, and targets that are numbers; then it is the mean absolute error, or a measure of
their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch.nn.functional import cross_entropy

from deltafl.fl.registry import ABSOLUTE, CROSS_ENTROPY, ERROR, LOSSES, OWN

Samplewise: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From a module's outputs, [n, ...], and the targets, [n, ...], to a number of each sample, [n]."""


@dataclass(frozen=True, slots=True)
class DeviceMetric:
    """A measure of all samples of a device together, such as F1, AUC or accuracy.

    Attributes:
        function: from a module's outputs and the targets of all n samples of a device, tensors
            [n, ...] on the CPU, to one finite number. It has to give one of every device, also of
            one that lacks a class.
        best: that of a perfect model, where a larger number is better, such as 1.0. What is
            reported is by how much a device falls short of it, `best` less the number. None where a
            smaller number is better, which is reported as it is.

    >>> accuracy = DeviceMetric(lambda logits, y: (logits.argmax(1) == y).float().mean(), best=1.0)
    >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.25
    """

    function: Callable[[torch.Tensor, torch.Tensor], float | torch.Tensor]
    best: float | None = None

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """What is reported of a device; smaller is better.

        Raises:
            ValueError: the function gives no number.
        """
        found = self.function(outputs, targets)
        try:
            number = float(found)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"metric: {found!r:.60} for a device: a DeviceMetric must give one number"
            ) from None
        return number if self.best is None else self.best - number


def tensor_of(outputs: object) -> torch.Tensor:
    """What a module gives, as one tensor: itself, or its `logits`, as those of Hugging Face have.

    Raises:
        ValueError: it is no tensor, and has no such one.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    found: Mapping[object, object] = outputs if isinstance(outputs, Mapping) else {}
    logits = found.get("logits", getattr(outputs, "logits", None))
    if isinstance(logits, torch.Tensor):
        return logits
    raise ValueError(
        f"the module gives a {type(outputs).__name__}: let it return one tensor, or a dictionary "
        "with 'logits'; or pass a `loss` and a `metric` that take what it gives"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Criterion:
    """The loss of a sample, and the measure that is reported beside it.

    Attributes:
        loss: its name in the settings, one of `deltafl.fl.registry.LOSSES`, or `OWN`.
        losses: computes it, at least 0 for every sample; differentiable in the outputs.
        metric: the name of the measure: `ERROR`, `ABSOLUTE`, or `OWN`.
        measures: computes it, smaller where the model is better; of each sample, or of a device.

    Functions of the caller's own get what the module gives, but a `DeviceMetric` gets a tensor.
    """

    loss: str
    losses: Samplewise
    metric: str
    measures: Samplewise | DeviceMetric

    @property
    def is_usual(self) -> bool:
        """Whether it is that of the papers' models, for which there are kernels."""
        return self.loss == CROSS_ENTROPY

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of a minibatch, shape [].

        Raises:
            ValueError: the loss is no tensor of one number for each sample.
        """
        if self.is_usual:
            return cross_entropy(tensor_of(outputs), targets)
        return _of_samples("loss", self.losses(outputs, targets), len(targets)).mean()

    def measure(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss and the measure of each sample, both float64 [n]; zeros for a `DeviceMetric`.

        Losses of this package are computed in float64; others get what the module gave, for they
        may have constants of their own in float32.

        Raises:
            ValueError: a function gives no tensor of one number for each sample, or a loss below 0.
        """
        count = len(targets)
        exact = outputs if self.loss == OWN else tensor_of(outputs).double()
        losses = _of_samples("loss", self.losses(exact, targets), count).double()
        if (losses < 0).any():
            lowest = losses[losses < 0].min().item()
            raise ValueError(
                f"a sample has the loss {lowest:.6g}: losses must be at least 0, for the search "
                "for the worst-served devices begins there; add a constant to the loss"
            )
        if isinstance(self.measures, DeviceMetric):
            return losses, torch.zeros_like(losses)
        return losses, _of_samples("metric", self.measures(outputs, targets), count).double()


def _of_samples(name: str, found: object, count: int) -> torch.Tensor:
    if isinstance(found, torch.Tensor) and found.shape == (count,):
        return found
    what = (
        f"a tensor of shape {tuple(found.shape)}"
        if isinstance(found, torch.Tensor)
        else (f"a {type(found).__name__}")
    )
    raise ValueError(
        f"{name}: {what} for {count} samples: it must give a tensor of one number for each sample, "
        f"of shape ({count},), such as with reduction='none'"
    )


def _entropies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(tensor_of(outputs), targets, reduction="none")


def _squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _by_sample((_like(outputs, targets) - targets).square())


def _distances(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _by_sample((_like(outputs, targets) - targets).abs())


def _missed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outputs = tensor_of(outputs)
    if targets.is_floating_point() or outputs.dim() != 2 or outputs.shape[1] < 2:
        raise ValueError(
            f"metric: outputs of shape {tuple(outputs.shape[1:])} for each sample are no logits of "
            "two classes or more, so nobody can tell which are misclassified: pass `metric`, a "
            "function (outputs, targets) -> a number for each sample"
        )
    return outputs.argmax(1) != targets


def _like(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Outputs in the shape of the targets: a last dimension of 1 is dropped."""
    outputs = tensor_of(outputs)
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape[1:])} for targets of shape "
            f"{tuple(targets.shape[1:])} of each sample: the module must give as many numbers as "
            "a target has; with others, pass functions as `loss` and `metric`"
        )
    return outputs


def _by_sample(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


_LOSSES: Final[Mapping[str, Samplewise]] = MappingProxyType(
    dict(zip(LOSSES, (_entropies, _squares, _distances), strict=True))
)

CLASSIFIES: Final = Criterion(CROSS_ENTROPY, _entropies, ERROR, _missed)
"""That of the papers' models."""


def criterion_of(
    loss: str | Samplewise,
    metric: Samplewise | DeviceMetric | None = None,
    *,
    of_numbers: bool,
) -> Criterion:
    """Make a criterion.

    Args:
        loss: a name of `deltafl.fl.registry.LOSSES`, or a function.
        metric: what is reported of a sample, or of a device; by default, whether a sample is
            misclassified, or how far off it is.
        of_numbers: whether the targets are numbers, and not classes.

    Raises:
        ValueError: an unknown name, or a loss that is not for such targets.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(
            f"loss={loss!r}: must be one of {', '.join(map(repr, LOSSES))}, or a function "
            "(outputs, targets) -> a loss for each sample"
        )
    if isinstance(loss, str) and (loss == CROSS_ENTROPY) == of_numbers:
        raise ValueError(
            f"loss={loss!r}: the targets are "
            + (
                "numbers, and the cross-entropy is of classes: take 'mse', 'mae' or a function"
                if of_numbers
                else "classes: take 'cross-entropy' or a function, or make the federation with "
                "targets='numbers'"
            )
        )
    usual = (ABSOLUTE, _distances) if of_numbers else (ERROR, _missed)
    name, measures = usual if metric is None else (OWN, metric)
    if isinstance(loss, str):
        return Criterion(loss, _LOSSES[loss], name, measures)
    return Criterion(OWN, loss, name, measures)
