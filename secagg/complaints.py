"""Whom to blame where a device says that a neighbour's box held no shares for it.

One of the two is at fault, and nobody else can tell which: what is in a box is between them. So a
single complaint costs nobody the session; the share counts as missing. Two things are certain where
colluding devices are fewer than the rest of a neighbourhood: who finds fault with most of its
neighbours is at fault itself, and whose shares too few accept can not be unmasked, whatever the
reason.

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
        members: Who is still there, over the roster.
        refusals: For each device the senders whose boxes it refused, by position.
        threshold: Shares that rebuild a secret.

    Returns:
        The devices to drop, by position.
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
