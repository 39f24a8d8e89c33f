"""Whom to drop after a device says that a neighbour's box held no shares for it.

One of the two is at fault, but nobody else can tell which, because only they can read the box. So a
single complaint drops neither device; the share counts as missing. If the colluding devices in a
neighbourhood are fewer than the others, two things are certain. A device that complains about most
of its neighbours is itself at fault. And a device whose shares too few neighbours accept cannot be
unmasked, whatever the reason.

Spec: §10.6.
"""

from collections.abc import Mapping

import numpy as np

from deltafl.secagg.errors import Fault
from deltafl.secagg.graph import Graph, Members


def judge(
    graph: Graph, members: Members, refusals: Mapping[int, frozenset[int]], threshold: int
) -> dict[int, Fault]:
    """Which devices must leave before a slot opens.

    Args:
        graph: The neighbourhoods.
        members: The devices still in the session, over the roster.
        refusals: For each device the senders whose boxes it refused, by position.
        threshold: Shares needed to rebuild a secret.

    Returns:
        The devices to drop, by position, with their faults.
    """
    present = {
        accuser: [dealer for dealer in refused if members[dealer]]
        for accuser, refused in refusals.items()
        if members[accuser]
    }
    blamed = {
        accuser: Fault.BAD_RECEIPT
        for accuser, refused in present.items()
        if 2 * len(refused) > np.count_nonzero(members[graph.neighbours(accuser)])
    }
    believed = members.copy()
    believed[list(blamed)] = False
    holders = graph.count_holders(believed)
    accused = set[int]()
    for accuser, refused in present.items():
        if believed[accuser]:
            holders[refused] -= 1
            accused.update(refused)
    unheld = (dealer for dealer in sorted(accused) if holders[dealer] < threshold)
    return blamed | {dealer: Fault.BAD_BOX for dealer in unheld if believed[dealer]}
