"""A stated part of a data set, for a machine on which the whole does not fit or takes too long.

Users are drawn by rank of SHA-256 of (seed, id) among those that the rule for small devices keeps,
so that a larger part contains a smaller one. Of a text the first samples are taken, so that it
stays in one piece; other samples are drawn (`draw_rows`), for files are often sorted by class. The
part is named in `FederatedDataset.rule`, so no table hides it.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.errors import DataError


@dataclass(frozen=True, slots=True)
class Subset:
    """Which part of the users and of their samples.

    Attributes:
        num_users: as many of the users that the rule keeps, at least 2; None takes all.
        max_samples: at most so many samples of each, at least 1; None takes all.
    """

    num_users: int | None = None
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.num_users is not None and self.num_users < 2:
            raise ValueError(f"num_users={self.num_users} is not at least 2")
        if self.max_samples is not None and self.max_samples < 1:
            raise ValueError(f"max_samples={self.max_samples} is not at least 1")


WHOLE = Subset()
"""Everybody and everything."""


def choose_users(name: str, counts: Mapping[str, int], split: Split, subset: Subset) -> list[str]:
    """Say who stays, in the order of the ids, before anything of theirs is read.

    Args:
        name: of the data set, for messages.
        counts: how many samples each user has.
        split: the rule for small devices, and the seed.
        subset: how many to take.

    Raises:
        DataError: fewer than two users, or fewer than asked for, are left by the rule.
    """
    kept = sorted(user for user, count in counts.items() if count > split.more_than)
    wanted = subset.num_users
    if len(kept) < 2 or (wanted is not None and len(kept) < wanted):
        raise DataError(
            f"{name}: {len(kept)} of {len(counts)} users have more than {split.more_than} "
            f"samples and {wanted or 'at least 2'} are needed (largest: "
            f"{max(counts.values(), default=0)} samples): "
            f"{'lower the number' if split.more_than else 'ask for fewer users, or give more'}"
        )
    if wanted is None:
        return kept

    def rank(user: str) -> bytes:
        return hashlib.sha256(f"subset\0{split.seed}\0{user}".encode()).digest()

    return sorted(sorted(kept, key=rank)[:wanted])


def draw_rows(user: str, count: int, subset: Subset, seed: int) -> npt.NDArray[np.int64]:
    """Draw which of a user's samples are in the part, in rising order, by seed and name alone.

    A larger part of one user contains a smaller one.

    >>> draw_rows("a", 3, WHOLE, 0).tolist(), len(draw_rows("a", 9, Subset(max_samples=4), 0))
    ([0, 1, 2], 4)
    """
    digest = hashlib.sha256(f"rows\0{seed}\0{user}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(digest, "big")).permutation(count)
    return np.sort(order[: subset.max_samples])


def federate_chosen(
    name: str,
    devices: Sequence[DeviceData],
    split: Split,
    *,
    counts: Mapping[str, int],
    subset: Subset,
    is_text: bool = False,
    test_ids: Collection[str] | None = None,
) -> FederatedDataset:
    """Split the devices of the chosen users, and state the rule and the part.

    Args:
        name: what to call the data set.
        devices: one for each user of `choose_users`, with all samples or those of the part.
        split: the split. Its rule for small devices has been applied to `counts`.
        counts: how many samples each user of the source has.
        subset: the part; devices are cut to its max_samples here if they are not yet.
        is_text: whether a device's samples are to stay in one piece.
        test_ids: a split that came with the data.

    Raises:
        DataError: as `deltafl.fl.data.federated.federate`.
    """
    cut = [_cut(device, subset, split.seed, is_text) for device in devices]
    # a device cut to fewer samples than the rule asks for must not be dropped by it
    dataset = federate(name, cut, replace(split, more_than=0), test_ids=test_ids)
    kept = sum(count > split.more_than for count in counts.values())
    return replace(
        dataset, dropped=len(counts) - kept, rule=_rule(kept, split.more_than, subset, is_text)
    )


def federate_part(
    name: str,
    devices: Sequence[DeviceData],
    split: Split,
    subset: Subset,
    *,
    is_text: bool = False,
    test_ids: Collection[str] | None = None,
) -> FederatedDataset:
    """Choose users among devices that were read whole, and split them; as `federate_chosen`.

    Raises:
        DataError: as `choose_users` and `federate_chosen`.
    """
    counts = {device.id: device.num_samples for device in devices}
    chosen = frozenset(choose_users(name, counts, split, subset))
    return federate_chosen(
        name,
        [device for device in devices if device.id in chosen],
        split,
        counts=counts,
        subset=subset,
        is_text=is_text,
        test_ids=test_ids,
    )


def _cut(device: DeviceData, subset: Subset, seed: int, is_text: bool) -> DeviceData:
    limit = subset.max_samples
    if limit is None or device.num_samples <= limit:
        return device
    if is_text:
        return DeviceData(device.id, device.x[:limit], device.y[:limit])
    rows = draw_rows(device.id, device.num_samples, subset, seed)
    return DeviceData(device.id, device.x[rows], device.y[rows])


def _rule(kept: int, more_than: int, subset: Subset, is_text: bool) -> str:
    words = [f"keep devices with more than {more_than} samples"]
    if subset.num_users is not None:
        words.append(f"{subset.num_users} of the {kept} kept")
    if subset.max_samples is not None:
        which = "the first" if is_text else "at most"
        words.append(f"{which} {subset.max_samples} samples of each")
    return "; ".join(words)
