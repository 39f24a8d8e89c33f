"""Which devices may go on, and when a session must end: rules shared with the ideal functionality.

Spec: §10.11.
"""

from collections.abc import Iterable

import numpy as np

from deltafl.secagg.errors import SessionAborted, UsageError
from deltafl.secagg.graph import Graph, Members, without_isolated
from deltafl.secagg.params import ClientId, SessionParams


def settle(graph: Graph, params: SessionParams, members: Members, linked: Members) -> Members:
    """The cohort that a round starts with: the members without the isolated ones.

    Raises:
        SessionAborted: fewer than min_cohort are left.
    """
    settled = without_isolated(graph, members, linked, params.threshold)
    require_cohort(params, int(settled.sum()))
    return settled


def check_invited(params: SessionParams, invited: Iterable[ClientId]) -> tuple[ClientId, ...]:
    """The invited devices in order of their ids.

    Raises:
        UsageError: the ids are not num_invited distinct numbers in [0, 2^32).
    """
    given = tuple(invited)
    for client in given:
        if not isinstance(client, int | np.integer):
            raise UsageError(f"id {client!r} of a device is no whole number in [0, 2^32)")
    ids = tuple(sorted(given))
    if not len(ids) == len(set(ids)) == params.num_invited:
        raise UsageError(
            f"{len(ids)} invited devices, {len(set(ids))} of them distinct; "
            f"the parameters say {params.num_invited}"
        )
    if not 0 <= ids[0] <= ids[-1] < 2**32:
        raise UsageError(f"ids {ids[0]}…{ids[-1]} are not in [0, 2^32)")
    return ids


def require_roster(params: SessionParams, num_devices: int) -> None:
    """End the session if there are too few devices to draw its graph over.

    Raises:
        SessionAborted: there are fewer than min_roster or min_cohort.
    """
    require_cohort(params, num_devices)
    if num_devices < params.min_roster:
        raise SessionAborted(
            f"{num_devices} devices came and min_roster is {params.min_roster}: over fewer the "
            "sparse graph is not safe; take the complete graph or expect more drop-outs"
        )


def require_cohort(params: SessionParams, num_members: int) -> None:
    """End the session if there are fewer than min_cohort devices to sum over.

    Raises:
        SessionAborted: there are fewer.
    """
    if num_members < params.min_cohort:
        raise SessionAborted(
            f"{num_members} devices are left and min_cohort is {params.min_cohort}: "
            "invite more devices or expect more drop-outs when choosing the parameters"
        )


def require_recoverable(
    graph: Graph, params: SessionParams, linked: Members, cohort: Members, helpers: Members
) -> None:
    """End the session if the masks of a slot can no longer be removed.

    Args:
        graph: The neighbourhoods.
        params: Contains the threshold.
        linked: Who has a link with whom, by device and column among its neighbours.
        cohort: The devices whose secrets of the slot are needed.
        helpers: The devices that still give shares.

    Raises:
        SessionAborted: for a device of the cohort, fewer than t helpers hold its shares.
    """
    shares = graph.count_holders(helpers, linked)[cohort]
    if len(shares) and int(shares.min()) < params.threshold:
        raise SessionAborted(
            f"only {int(shares.min())} devices are left to help unmask one of the cohort, "
            f"and the threshold is {params.threshold}: this slot's sum is lost"
        )
