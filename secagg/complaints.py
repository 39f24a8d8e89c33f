"""Whom to blame where a device says that a neighbour's box held no shares for it.

One of the two is at fault, and nobody else can tell which: what is in a box is between them. So a
single complaint costs nobody the session; the share counts as missing. Two things are certain where
colluding devices are fewer than the rest of a neighbourhood: who finds fault with most of its
neighbours is at fault itself, and whose shares too few accept can not be unmasked, whatever the
reason.
"""

from collections.abc import Mapping

import numpy as np

from secagg.errors import Fault
from secagg.graph import Graph, Members


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
    blamed = {}
    for accuser, refused in refusals.items():
        near = graph.neighbours(accuser)
        near = graph.neighbours(accuser)
        if members[accuser] and 2 * len(refused) > np.count_nonzero(members[near]):
            blamed[accuser] = Fault.BAD_RECEIPT
    believed = members.copy()
    believed[list(blamed)] = False
    holders = graph.count_holders(believed)
    for accuser in np.flatnonzero(believed).tolist():
        holders[list(refusals.get(accuser, ()))] -= 1
    accused = frozenset().union(*(refusals.get(a, ()) for a in np.flatnonzero(believed).tolist()))
    for dealer in sorted(accused):
        if believed[dealer] and holders[dealer] < threshold:
            blamed[dealer] = Fault.BAD_BOX
    return blamed
