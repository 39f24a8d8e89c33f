"""`deltafl bench net`: a round with connected devices, and what it cost."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from deltafl.fl.strategies.private_delta_fl import PrivateRoundReport
from deltafl.protocol.losses import LossGrid
from deltafl.sim.bench import net
from deltafl.sim.bench.harness import as_text
from deltafl.sim.bench.net import measure
from deltafl.sim.bench.net_flags import NetBenchmark
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError
from deltafl.sim.run.algorithms import strategy_of

SMALL = NetBenchmark(
    clients=12,
    dim=50,
    queries=3,
    graph="complete",
    dropout=0.0,
    processes=1,
    wait=3.0,
    seed=1,
)


@pytest.fixture(scope="module")
def with_dropouts():
    return measure(replace(SMALL, dropout=0.17))


@pytest.mark.slow
def test_a_round_over_tls_from_which_two_devices_vanish(with_dropouts):
    stages = with_dropouts["by_stage"]
    assert list(stages) == ["advertise", "share", "receipt", "mask", "unmask"]
    assert 2 <= with_dropouts["sums"] <= 4
    # one deadline for the first query, one for the update; all else is answered at once
    assert 5.0 < stages["mask"]["waited_in_vain_s"] < 8.0
    assert stages["share"]["waited_in_vain_s"] < 1.0
    assert sum(one["wall_s"] for one in stages.values()) == pytest.approx(
        with_dropouts["wall_s"], rel=0.1
    )


@pytest.mark.slow
def test_it_counts_what_is_sent(with_dropouts):
    stages = with_dropouts["by_stage"]
    assert stages["advertise"]["kb_down_per_device"] > 4 * SMALL.dim / 1e3  # the model
    for each in stages.values():
        assert each["kb_up_per_device"] > 0
        assert each["kb_down_per_device"] > 0
        assert each["protocol_cpu_s"] >= 0


def test_the_command_prints_a_table_or_json(capsys):
    small = ["bench", "net", "--clients", "10", "--dim", "20", "--queries", "2", "--no-tls"]
    small += ["--graph", "complete", "--processes", "1"]
    assert main([*small, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "confirm" in told["by_stage"]
    assert told["no_tls"]
    assert "waited in vain s" in as_text(told)


@pytest.mark.slow
def test_devices_that_cannot_take_part_are_an_error(monkeypatch, capsys):
    monkeypatch.setattr(net, "_CONNECTING_S", 1.0)
    monkeypatch.setattr(net, "_take_part", print)  # processes that end at once
    assert main(["bench", "net", "--clients", "10", "--graph", "complete"]) == 1
    assert "of the 10 devices that the next round needs, 0 were there" in capsys.readouterr().err


def reported(eta, half_width, kept_devices, kept_weight):
    return PrivateRoundReport(
        eta=eta,
        half_width=half_width,
        kept_devices=kept_devices,
        kept_weight=kept_weight,
        train_loss=1.0,
        empty=False,
        secure_sums=3,
        num_queries=2,
        certified=True,
        search_ended=None,
        dropped_by_stage={},
        bytes_up_per_device=1.0,
        clipped=0,
        aborted=None,
    )


def searched(benchmark, weights):
    """The ticks of a benchmark's losses, and what its search finds."""
    strategy = strategy_of(benchmark.remote())
    state = strategy.init(np.zeros(benchmark.dim, dtype=np.float32), benchmark.clients)
    config = strategy.round_config(state, benchmark.clients)
    ticks = [config.search.grid.tick(loss)[0] for loss in benchmark.losses()[0]]
    search, layout = config.start_search(), config.search_layout
    while (query := search.query) is not None:
        answers = (
            layout.encode(config.quantile.contribution(config.search_config, query, *device))[0]
            for device in zip(ticks, weights, strict=True)
        )
        search = search.update(layout.decode(sum(answers) & np.uint64(2**layout.ring_bits - 1)))
    return ticks, search.result()


@pytest.mark.parametrize(("clients", "seed"), [(60, 1), (101, 1), (200, 1), (200, 2)])
def test_losses_are_compared_on_the_grid_as_devices_compare_them(clients, seed):
    """Here a loss that is rounded up is in the tail, and just below the threshold without."""
    benchmark = replace(SMALL, clients=clients, seed=seed, queries=24)
    losses, weights = benchmark.losses()
    ticks, found = searched(benchmark, weights)
    kept = [i for i, tick in enumerate(ticks) if found.passes(tick)]
    eta = found.grid.value(Fraction(min(ticks[i] for i in kept)))  # with the same tail
    report = reported(eta, 0.0, len(kept), sum(weights[i] for i in kept))
    model = np.full(SMALL.dim, net._UPDATE, dtype=np.float32)
    net._check(benchmark, model, report)
    assert kept != [i for i, loss in enumerate(losses) if loss >= eta]
    with pytest.raises(RunError, match="wrong"):
        net._check(benchmark, model, replace(report, kept_devices=len(kept) - 1))


def test_a_wrong_sum_is_an_error():
    losses, weights = SMALL.losses()
    grid = LossGrid()
    least = grid.value(grid.tick(sorted(losses)[6])[0])
    kept = [i for i, loss in enumerate(losses) if grid.value(grid.tick(loss)[0]) >= least]
    model = np.full(SMALL.dim, net._UPDATE, dtype=np.float32)
    right = reported(least, 0.0, len(kept), sum(weights[i] for i in kept))
    net._check(SMALL, model, right)
    for wrong in (
        replace(right, kept_devices=5),
        replace(right, kept_weight=right.kept_weight + 1),
    ):
        with pytest.raises(RunError, match="wrong"):
            net._check(SMALL, model, wrong)
    with pytest.raises(RunError, match=r"lost: too few.*not answer within 3 s.*--wait"):
        net._check(SMALL, model, replace(right, aborted="too few"))
    late = replace(right, kept_devices=4, dropped_by_stage={"share": 1, "mask": 2})
    with pytest.raises(RunError, match=r"^3 devices more .*1 at share, 2 at mask.*--wait"):
        net._check(SMALL, model, late)
    with pytest.raises(RunError, match="the model"):
        net._check(SMALL, model + 1, right)


def test_a_cohort_that_no_session_has_is_refused(capsys):
    assert main(["bench", "net", "--clients", "4"]) == 2
    assert "cohort_size = 4" in capsys.readouterr().err
