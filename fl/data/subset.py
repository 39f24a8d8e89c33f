"""A stated part of a data set, for a machine on which the whole does not fit or takes too long.

Users are drawn by rank of SHA-256 of (seed, id) among those that the rule for small devices keeps,
so that a larger part contains a smaller one. Of each device the first samples are taken: a text
stays in one piece. The part is named in `FederatedDataset.rule`, so no table hides it.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fl.data.federated import DeviceData, FederatedDataset, Partition, federate
from fl.errors import DataError


@dataclass(frozen=True, slots=True)
class Subset:
    """Which part of the users and of their samples.

    Attributes:
        num_users: as many of the users that the rule keeps, at least 2; None takes all.
        max_samples: at most so many samples of each, the first ones, at least 1; None takes all.
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


def choose_users(
    name: str, counts: Mapping[str, int], partition: Partition, subset: Subset
) -> list[str]:
    """Say who stays, in the order of the ids, before anything of theirs is read.

    Args:
        name: of the data set, for messages.
        counts: how many samples each user has.
        partition: the rule for small devices, and the seed.
        subset: how many to take.

    Raises:
        DataError: fewer than two users, or fewer than asked for, are left by the rule.
    """
    kept = sorted(user for user, count in counts.items() if count > partition.more_than)
    wanted = subset.num_users
    if len(kept) < 2 or (wanted is not None and len(kept) < wanted):
        raise DataError(
            f"{name}: {len(kept)} of {len(counts)} users have more than {partition.more_than} "
            f"samples and {wanted or 'at least 2'} are needed (largest: "
            f"{max(counts.values(), default=0)} samples): lower the number"
        )
    if wanted is None:
        return kept

    def rank(user: str) -> bytes:
        return hashlib.sha256(f"subset\0{partition.seed}\0{user}".encode()).digest()

    return sorted(sorted(kept, key=rank)[:wanted])


def federate_chosen(
    name: str,
    devices: Sequence[DeviceData],
    partition: Partition,
    *,
    counts: Mapping[str, int],
    subset: Subset,
    test_ids: Collection[str] | None = None,
) -> FederatedDataset:
    """Split the devices of the chosen users, and state the rule and the part.

    Args:
        name: what to call the data set.
        devices: one for each user of `choose_users`, with all samples or the first ones.
        partition: the split. Its rule for small devices has been applied to `counts`.
        counts: how many samples each user of the source has.
        subset: the part; devices are cut to its max_samples here if they are not yet.
        test_ids: a split that came with the data.

    Raises:
        DataError: as `fl.data.federated.federate`.
    """
    limit = subset.max_samples
    cut = [DeviceData(device.id, device.x[:limit], device.y[:limit]) for device in devices]
    # a device cut to fewer samples than the rule asks for must not be dropped by it
    dataset = federate(name, cut, replace(partition, more_than=0), test_ids=test_ids)
    kept = sum(count > partition.more_than for count in counts.values())
    return replace(
        dataset, dropped=len(counts) - kept, rule=_rule(kept, partition.more_than, subset)
    )


def _rule(kept: int, more_than: int, subset: Subset) -> str:
    words = [f"keep devices with more than {more_than} samples"]
    if subset.num_users is not None:
        words.append(f"{subset.num_users} of the {kept} kept")
    if subset.max_samples is not None:
        words.append(f"the first {subset.max_samples} samples of each")
    return "; ".join(words)
