import numpy as np
import pytest

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.metrics import PERCENTILES, summarise_test_error, summarise_train_loss


def metrics(losses, errors, counts):
    return [
        DeviceMetrics(str(k), n, loss, error)
        for k, (loss, error, n) in enumerate(zip(losses, errors, counts, strict=True))
    ]


def test_percentiles_are_the_papers():
    assert PERCENTILES == (20, 50, 60, 80, 90, 95)


def test_train_loss_is_weighted_by_samples():
    summary = summarise_train_loss(metrics([1.0, 2.0, 3.0], [0, 0, 0], [8, 1, 1]))
    assert summary.mean == pytest.approx(1.3)
    assert dict(summary.percentiles) == {20: 1.0, 50: 1.0, 60: 1.0, 80: 1.0, 90: 2.0, 95: 3.0}


def test_test_error_gives_every_device_one_vote():
    errors = np.linspace(0, 1, 11)
    summary = summarise_test_error(metrics([0.0] * 11, errors, range(1, 12)))
    assert summary.mean == pytest.approx(0.5)
    assert summary.percentiles[90] == pytest.approx(0.9)
    assert summary.percentiles[95] == pytest.approx(0.95)  # between two devices: interpolated


def test_no_devices_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        summarise_train_loss([])
    with pytest.raises(ValueError, match="at least one"):
        summarise_test_error([])


def test_a_loss_that_diverged_is_refused():
    with pytest.raises(ValueError, match="nan"):
        summarise_train_loss(metrics([float("nan")], [0.0], [1]))
