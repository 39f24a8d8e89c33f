"""A secure sum in one line: all parties in one process, with real keys, masks and messages.

This is for trying out, and for tests of one's own code. Its caller has all the vectors, so nothing
is hidden from anybody. docs/secagg.md says how the same session runs between machines.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from deltafl.secagg.errors import UsageError
from deltafl.secagg.given import real_numbers
from deltafl.secagg.layout import MAX_NUMERATOR_BITS, Field, Layout, Multiple
from deltafl.secagg.params import DIGEST_SIZE, ClientId, GraphKind, SessionParams, SlotSpec
from deltafl.secagg.policy import DevicePolicy
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.session import run_session
from deltafl.secagg.states import Stage, Step, Vanish
from deltafl.secagg.threat import ThreatModel

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Name: TypeAlias = int | str
"""What a device is called: its id, or a name."""

T = TypeVar("T")
ByDevice: TypeAlias = Mapping[int, T] | Mapping[str, T]

_VECTOR: Final = "vector"
_WEIGHT: Final = "weight"
_LARGEST: Final = 2**MAX_NUMERATOR_BITS - 1
_SUM_BITS: Final = 63  # besides the sign
_MAX_EXPONENT: Final = 1023  # what is below 2^1023 is finite in float64


@dataclass(frozen=True, slots=True, eq=False)
class SecureSum:
    """What the server of `secure_sum` learns.

    Attributes:
        vector: The sum, of the vectors' shape; int64 if all of them are integers, else float64.
            With weights, each vector counts as many times as its weight says.
        contributors: The devices in the sum, ascending; of names, in the order of the vectors.
        total_weight: The sum of their weights; without weights, their number.
    """

    vector: Numbers
    contributors: tuple[Name, ...]
    total_weight: int

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The sum over the total weight, float64, of the vectors' shape.

        Raises:
            UsageError: the total weight is 0.
        """
        if not self.total_weight:
            raise UsageError("the weights of all devices in the sum are 0, so there is no mean")
        return np.asarray(self.vector / self.total_weight, dtype=np.float64)


def secure_sum(
    vectors: ByDevice[npt.ArrayLike] | Iterable[npt.ArrayLike],
    *,
    weights: ByDevice[int] | Iterable[int] | None = None,
    min_cohort: int | None = None,
    dropouts: ByDevice[Stage] | None = None,
    threat: ThreatModel | None = None,
    graph: GraphKind = GraphKind.COMPLETE,
) -> SecureSum:
    """Sum vectors by a real session between devices that all live in this process.

    Sums of integers are exact. Other numbers are first rounded to multiples of u, which is 2^-53 of
    the first power of two that is above all of them (times the largest weight). Every device adds
    at most u to the error of a sum. With more than 1023 devices, u is larger, by their number over
    1024. The range is that of the vectors, as all of them are here. Between machines, it has to be
    agreed on beforehand: a `Layout` has bounds, and clips what is beyond them.

    >>> secure_sum([[1, -2], [3, 4], [5, 6], [0, 1], [1, 1]]).vector
    array([10, 10])
    >>> poll = {7: 0.5, 8: 1.5, 9: 2.5, 10: 3.5, 11: 4.5, 12: 5.5}
    >>> result = secure_sum(poll, dropouts={9: Stage.MASK})
    >>> float(result.vector), result.contributors
    (15.5, (7, 8, 10, 11, 12))

    Args:
        vectors: One for each device, at least 2: arrays, lists or numbers, all of one shape, of
            booleans, finite floats, or integers within ±(2^53 − 1). Either by id, a whole number in
            [0, 2^32), or by name, a text; or one after the other, with the ids 0, 1, 2 and so on.
        weights: A whole number ≥ 0 for each device, given like the vectors. Weights are summed in
            the same way as vectors, so the server learns none of them.
        min_cohort: Fewest devices to sum over, from 2 to their number. With fewer, the session ends
            without a sum. The threat may call for more. By default 5, as devices have it.
        dropouts: For each device that vanishes: the first message that it no longer sends.
        threat: What the session must withstand. By default, a curious server, a tenth of the
            devices colluding with it, and a tenth vanishing. Against an active server, sessions are
            signed.
        graph: Who shares masks with whom. With the complete graph, the time grows with the square
            of the number of devices; for hundreds of them, take the sparse one.

    Raises:
        UsageError: one of these values is wrong, or no session withstands the threat; no message
            has been sent.
        PeerError: the session is larger than devices accept by default (`DevicePolicy`).
        SessionAborted: too few devices are left.
    """
    arrays = {name: _array(name, value) for name, value in _by_name(vectors, "vectors").items()}
    _check_alike(arrays)
    clients = _clients(arrays)
    counts = None if weights is None else _checked_weights(weights, arrays)
    threat = ThreatModel() if threat is None else threat
    if not isinstance(threat, ThreatModel):
        raise UsageError(f"threat={threat!r} is no `ThreatModel`")
    policy = _policy(threat, min_cohort, len(arrays))
    vanishing = _vanishing({} if dropouts is None else dropouts, arrays)
    heaviest = max(1, *counts.values()) if counts else 1
    if all(array.dtype.kind == "i" for array in arrays.values()):
        exponent, vector = None, _integer_field(arrays, heaviest)
    else:
        exponent, vector = _float_field(arrays, heaviest)
    fields = (vector, Field(_WEIGHT, 1, 0, heaviest, 0)) if counts else (vector,)
    layout = Layout(fields, cohort_size=len(arrays))
    params = SessionParams.for_threat(
        len(arrays),
        (SlotSpec("secure_sum", layout.length, layout.ring_bits),),
        threat=threat,
        graph=graph,
        min_cohort=policy.min_cohort,
        graph_seed=system_randomness(DIGEST_SIZE),
        context=system_randomness(DIGEST_SIZE),
    )
    policy.check(params)  # before anything of that size is made

    def encoded(name: Name) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint64]:
        numbers = arrays[name].ravel()
        if exponent is not None:
            numbers = np.ldexp(numbers.astype(np.float64), -exponent)
        if counts is None:
            return layout.encode({_VECTOR: numbers})[0]
        weight = counts[name]
        return layout.encode({_VECTOR: Multiple(numbers, weight), _WEIGHT: weight})[0]

    inputs = {client: [encoded(name)] for name, client in clients.items()}
    gone = {clients[name]: where for name, where in vanishing.items()}
    [total] = run_session(params, inputs, [b""], vanishing=gone, policy=policy)
    names = {client: name for name, client in clients.items()}
    sums = layout.decode(total.vector)
    added: Numbers = sums[_VECTOR]
    if exponent is not None:
        added = np.ldexp(layout.to_float(_VECTOR, sums[_VECTOR]), exponent)
    return SecureSum(
        added.reshape(next(iter(arrays.values())).shape),
        tuple(names[client] for client in total.contributors),
        int(sums[_WEIGHT][0]) if counts else len(total.contributors),
    )


def _by_name(values: ByDevice[T] | Iterable[T], name: str) -> dict[Name, T]:
    """The values by device, in the order in which they were given."""
    if isinstance(values, Mapping):
        return dict(values)
    try:
        return dict(enumerate(values))
    except TypeError:
        raise UsageError(
            f"{name} of type {type(values).__name__}: give a dictionary by device, or a sequence"
        ) from None


def _clients(names: Iterable[Name]) -> dict[Name, ClientId]:
    """The id of each device: its own, or the place of its name.

    Raises:
        UsageError: some are names, and others are not.
    """
    kinds = {isinstance(name, str) for name in names}
    if len(kinds) > 1:
        raise UsageError("devices are called by ids and by names: give all an id, or all a name")
    is_named = kinds == {True}
    return {
        name: ClientId(place if is_named else cast("int", name)) for place, name in enumerate(names)
    }


def _array(name: Name, value: npt.ArrayLike) -> Numbers:
    """A device's vector: integers of up to 53 bits and a sign, or finite float64."""
    array = real_numbers(f"device {name}", value, UsageError)
    if not array.size:
        raise UsageError(f"device {name}: an array of shape {array.shape} has no elements")
    if array.dtype.kind != "f":
        largest = max(int(array.max()), -int(array.min()))
        if largest > _LARGEST:
            raise UsageError(
                f"device {name}: integers of magnitude {largest}, more than 2^53 − 1; give "
                "floats, or sum several parts of each number"
            )
        return array.astype(np.int64)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        index = int(np.argmin(np.isfinite(numbers)))
        raise UsageError(
            f"device {name}: element {index} is {numbers.flat[index]}; only finite numbers can "
            "be summed: leave this device out"
        )
    return numbers


def _check_alike(arrays: Mapping[Name, Numbers]) -> None:
    if len(arrays) < 2:
        raise UsageError(f"{len(arrays)} vectors: a secure sum is over at least 2 devices")
    first = next(iter(arrays))
    for name, array in arrays.items():
        if array.shape != arrays[first].shape:
            raise UsageError(
                f"device {name}: shape {array.shape} is not that of device {first}, "
                f"{arrays[first].shape}"
            )


def _checked_weights(
    weights: ByDevice[int] | Iterable[int], arrays: Mapping[Name, object]
) -> dict[Name, int]:
    counts = _by_name(weights, "weights")
    if counts.keys() != arrays.keys():
        missing = sorted(arrays.keys() - counts.keys(), key=str)
        unknown = sorted(counts.keys() - arrays.keys(), key=str)
        raise UsageError(
            f"weights are missing for devices {missing} and have no vector for devices "
            f"{unknown}: give one for each vector"
        )
    for name, weight in counts.items():
        if not isinstance(weight, int | np.integer) or not 0 <= weight <= _LARGEST:
            raise UsageError(f"device {name}: weight {weight!r} is not a whole number in [0, 2^53)")
    return {name: int(weight) for name, weight in counts.items()}


def _policy(threat: ThreatModel, min_cohort: int | None, num_devices: int) -> DevicePolicy:
    """What devices insist on: the threat, and the smallest cohort that the caller wants."""
    policy = DevicePolicy(threat.adversary, threat.colluding_rate, threat.dropout_rate)
    if min_cohort is not None:
        if not isinstance(min_cohort, int | np.integer) or not 2 <= min_cohort <= num_devices:
            raise UsageError(
                f"min_cohort={min_cohort!r} is not a whole number from 2 to {num_devices}, the "
                "number of vectors"
            )
        policy = replace(policy, min_cohort=int(min_cohort))
    if num_devices < policy.min_cohort:
        raise UsageError(
            f"{num_devices} vectors are fewer than the {policy.min_cohort} of a cohort: a sum over "
            "few says much of each; give more vectors, or a smaller min_cohort"
        )
    return policy


def _vanishing(dropouts: ByDevice[Stage], arrays: Mapping[Name, object]) -> dict[Name, Vanish]:
    if not isinstance(dropouts, Mapping):
        raise UsageError(f"dropouts are stages by device, not a {type(dropouts).__name__}")
    vanishing = {}
    for name, stage in dropouts.items():
        if name not in arrays:
            raise UsageError(f"dropouts: there is no device {name}")
        if not isinstance(stage, Stage):
            raise UsageError(
                f"dropouts: device {name}: {stage!r} is no Stage: {', '.join(Stage.__members__)}"
            )
        vanishing[name] = Vanish(Step(stage))
    return vanishing


def _integer_field(arrays: Mapping[Name, Numbers], heaviest: int) -> Field:
    """The field of integers, as wide as the largest of them times the largest weight."""
    largest = max(max(int(array.max()), -int(array.min())) for array in arrays.values()) * heaviest
    if largest > _LARGEST:
        raise UsageError(
            f"integers times weights up to {largest}, more than 2^53 − 1: give floats, or smaller "
            "weights"
        )
    return Field(_VECTOR, next(iter(arrays.values())).size, -largest, largest, 0)


def _float_field(arrays: Mapping[Name, Numbers], heaviest: int) -> tuple[int, Field]:
    """The exponent e of the first power of two above all products, and the field of x / 2^e."""
    largest = max(float(np.abs(array.astype(np.float64)).max()) for array in arrays.values())
    exponent = math.frexp(largest)[1] + (heaviest - 1).bit_length()
    num_bits = len(arrays).bit_length()
    if exponent + num_bits > _MAX_EXPONENT:
        raise UsageError(
            f"numbers up to {largest} times the largest weight: their sum may be too large for "
            "float64; divide them by a power of two"
        )
    bound = math.ldexp(largest, -exponent) * heaviest
    bits = min(MAX_NUMERATOR_BITS, _SUM_BITS - num_bits)
    return exponent, Field(_VECTOR, next(iter(arrays.values())).size, -bound, bound, bits)
