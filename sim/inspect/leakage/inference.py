"""Chooses the inference of the numbers of devices that fits a view."""

from deltafl.protocol.quantile.registry import NOISY
from deltafl.sim.inspect.leakage.counts import BucketCounts, bucket_counts
from deltafl.sim.inspect.leakage.noisy_counts import noisy_bucket_counts
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.inspect.leakage.prior import Prior


def infer_counts(view: SearchView, prior: Prior) -> BucketCounts:
    """Infer how many devices are in each bucket, from exact sums or from noisy ones.

    Raises:
        SearchError: The sums contradict each other.
    """
    if view.method == NOISY and view.answers:
        return noisy_bucket_counts(view, prior)
    return bucket_counts(view, prior)
