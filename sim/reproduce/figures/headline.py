"""The headline's figures: errors over rounds, differences with intervals, and devices in pairs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deltafl.sim.charts.chart import LineStyle
from deltafl.sim.charts.files import line_style, new_figure
from deltafl.sim.reproduce.declared import LEVEL, SMALL_STEPS
from deltafl.sim.reproduce.headline_tables import (
    TAIL,
    Arm,
    Test,
    curve,
    device_means,
    small_steps,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG

Arms = Mapping[tuple[str, str], Arm]

_SHOWN = DELTA_FL[1].label


def draw_headline(arms: Arms, tests: Sequence[Test], at: int) -> Figure:
    """Errors over rounds, differences over rounds, and the declared tests."""
    figure, (panels,) = new_figure(1, 3, (4.17, 3.9))
    _errors(panels[0], arms)
    _differences(panels[1], arms, at)
    _tests(panels[2], tests, at)
    return figure


def draw_devices(arms: Arms, at: int, users: str) -> Figure:
    """Each device's error under FedAvg and under Δ-FL, averaged over the seeds that tested it."""
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    panel = figure.add_subplot()
    panel.spines[["top", "right"]].set_visible(False)
    mine = small_steps(arms)
    if FEDAVG.label in mine and _SHOWN in mine:
        x = device_means(mine[FEDAVG.label], at, list(mine[FEDAVG.label].seeds))
        y = device_means(mine[_SHOWN], at, list(mine[FEDAVG.label].seeds))
        devices = [device for device in x if device in y]
        pairs = 100 * np.array([[x[device], y[device]] for device in devices])
        lower = pairs[:, 1] < pairs[:, 0]
        for chosen, number, word in ((lower, 0, "gain"), (~lower, 1, "lose, or are equal")):
            panel.scatter(
                pairs[chosen, 0],
                pairs[chosen, 1],
                s=11,
                alpha=0.6,
                linewidths=0,
                color=LineStyle(number).colour,
                marker=LineStyle(number).marker,
                label=f"{int(chosen.sum())} {users} {word}",
            )
        most = float(pairs.max()) * 1.03
        panel.plot([0, most], [0, most], color="0.5", linewidth=0.8)
        panel.legend(frameon=False, fontsize="small")
    panel.set_xlabel(f"test error of a {users.removesuffix('s')} with FedAvg (%)")
    panel.set_ylabel(f"with {_SHOWN} (%)")
    panel.set_title(f"{SMALL_STEPS}, after {at} rounds", fontsize="medium")
    return figure


def _errors(panel: Axes, arms: Arms) -> None:
    for number, (method, arm) in enumerate(small_steps(arms).items()):
        rounds = [at for at in arm.rounds() if at]
        values = [arm.values(list(arm.seeds), at, TAIL).mean() for at in rounds]
        panel.plot(rounds, values, label=method, **line_style(number, marked=False))
    panel.set_title(f"{SMALL_STEPS}: one learning rate for all", fontsize="medium")
    panel.set_xlabel("round")
    panel.set_ylabel("90th percentile of the test error (%)")
    panel.legend(frameon=False, fontsize="small")


def _differences(panel: Axes, arms: Arms, at: int) -> None:
    mine = small_steps(arms)
    baseline = mine.get(FEDAVG.label)
    for number, (method, arm) in enumerate(mine.items()):
        if baseline is None or arm is baseline or len(arm.seeds) < 2:
            continue
        rounds, found = curve(arm, baseline, TAIL)
        low, mean, high = zip(*((one.low, one.mean, one.high) for one in found), strict=True)
        looks = line_style(number, marked=False)
        panel.plot(rounds, mean, label=method, **looks)
        panel.fill_between(rounds, low, high, color=looks["color"], alpha=0.15, linewidth=0)
    panel.axhline(0, color="0.5", linewidth=0.8)
    panel.axvline(at, color="0.7", linewidth=0.8, linestyle=":")
    panel.set_title("less FedAvg, with 95% intervals", fontsize="medium")
    panel.set_xlabel("round")
    panel.set_ylabel("difference (points)")
    panel.legend(frameon=False, fontsize="small")


def _tests(panel: Axes, tests: Sequence[Test], at: int) -> None:
    for row, test in enumerate(reversed(tests)):
        counts = test.adjusted_p < LEVEL
        panel.errorbar(
            test.tail.mean,
            row,
            xerr=[[test.tail.mean - test.tail.low], [test.tail.high - test.tail.mean]],
            fmt="o" if counts else "s",
            markerfacecolor=LineStyle(0).colour if counts else "white",
            color=LineStyle(0).colour if counts else "0.4",
            markersize=5,
            linewidth=1.2,
        )
    names = [f"{test.method}, {test.family}" for test in reversed(tests)]
    panel.set_yticks(range(len(tests)), names, fontsize="small")
    panel.axvline(0, color="0.5", linewidth=0.8)
    panel.set_xlabel("difference to FedAvg (points)")
    panel.set_title(f"after {at} rounds; filled: p < {LEVEL:g}, corrected", fontsize="medium")
