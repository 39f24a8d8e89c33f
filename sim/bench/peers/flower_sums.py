"""The peer of `deltafl bench secagg`: one round of flwr's own secure aggregation, its CPU time.

The workflow (SecAgg or SecAgg+) and the client mod are those of the package flwr. All parties share
this process; there is no SuperLink, no Ray and no network. Devices do not train: each holds a ready
update of weight 1, so that the aggregate is the plain mean.

CPU time is that of the whole process, all threads. A device's share is its calls of the client
app, the mod included; the server's is all the rest of the workflow. Carrying messages counts for
neither: flwr encodes and decodes each of them once, which keeps the parties from sharing objects.
`deltafl bench round` counts this work; leaving it out here favours Flower.

Devices drop out only before their masked vector, because a single device that drops out earlier
ends a round of flwr 1.41 and 1.42, for which this module is written.
"""

import logging
import os
import random
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.progress import Bar

OfFlower: TypeAlias = Any
"""The package flwr, or an object of it: mypy accepts these modules with and without flwr."""

_RELEASES: Final = ("1.41", "1.42")
_MODULES: Final = (
    "flwr.app",
    "flwr.client.mod",
    "flwr.clientapp",
    "flwr.common.secure_aggregation.secaggplus_constants",
    "flwr.common.serde",
    "flwr.server.compat.grid_client_proxy",
    "flwr.server.strategy",
    "flwr.server.workflow.constant",
    "flwr.supercore.task_identity",
)
_EXTRA: Final = "install the extra: pip install '.[bench]'"

# Flower's defaults; the first is made smaller if so many devices could overflow the second.
_QUANTIZATION_RANGE: Final = 1 << 22
_MODULUS_RANGE: Final = 1 << 32

_RUN_ID: Final = 1
_ROUND: Final = 1


def measure(
    *, clients: int, dim: int, neighbours: int | None, threshold: int, dropped: int, seed: int
) -> dict[str, Any]:
    """Run one round and return what it cost.

    Args:
        clients: devices, at least 2.
        dim: numbers in the update, at least 1.
        neighbours: devices with which a device shares masks, itself not counted: even, below
            `clients`. None is the complete graph and Flower's SecAgg instead of SecAgg+.
        threshold: shares that reconstruct a secret, in [2, neighbours], or in [2, clients] on the
            complete graph, where Flower lets a device's own share count.
        dropped: devices that vanish before their masked vector, in [0, clients).
        seed: of the updates, the graph and the drop-outs, at least 0. Keys and masks come from
            flwr, rounding from NumPy's global generator.

    Returns:
        version: version of flwr.
        workflow: name of flwr's class, "SecAggWorkflow" or "SecAggPlusWorkflow".
        neighbours: devices with which a device shares masks, itself not counted.
        device_cpu_s: by Flower's stage, the median over the devices that took part in it, seconds.
        devices_cpu_s: all devices together, seconds.
        server_cpu_s: the workflow without its devices, seconds. Flower's strategy, which averages
            one copy of the aggregate per device, is part of it.
        total_cpu_s: devices and server, seconds.
        max_error: greatest absolute difference between the aggregate and the mean of the survivors'
            updates. Rounding accounts for about 16 / 2^22 at most with fewer than 1024 devices.

    Raises:
        UserError: flwr is not installed, or in another release.
        RunError: Flower halted the round, because too few of some device's neighbours survived.
    """
    with _silence():
        flwr = import_flwr(*_MODULES)
        generator = Seeds(seed).generator(Purpose.DROPOUT)
        nodes = [int(node) for node in generator.integers(1, 1 << 63, clients)]
        vanishing = frozenset(nodes[:dropped])
        devices, mean = _devices(flwr, nodes, dim, vanishing, generator)
        grid = _MemoryGrid(flwr, _client_app(flwr, devices, neighbours), nodes, vanishing)
        workflow = _workflow(flwr, clients, neighbours, threshold)
        context = _server_context(flwr, grid, dim)
        model_key = flwr.server.workflow.constant.MAIN_PARAMS_RECORD
        initial_model = context.state[model_key]
        with _seeded_shuffles(Seeds(seed).integer(Purpose.GRAPH)):
            start = time.process_time()
            workflow(grid, context)
            total = time.process_time() - start - grid.carrying_cpu_s
        if context.state[model_key] is initial_model:
            raise RunError(
                f"Flower halted the round: with dropped={dropped} of clients={clients}, some "
                f"device kept fewer than threshold={threshold} of its neighbourhood"
            )
        aggregate = context.state[model_key].to_numpy_ndarrays()[0]
    devices_cpu_s = sum(sum(spent) for spent in grid.device_cpu_s.values())
    return {
        "version": metadata.version("flwr"),
        "workflow": type(workflow).__name__,
        "neighbours": clients - 1 if neighbours is None else neighbours,
        "device_cpu_s": {stage: median(spent) for stage, spent in grid.device_cpu_s.items()},
        "devices_cpu_s": devices_cpu_s,
        "server_cpu_s": total - devices_cpu_s,
        "total_cpu_s": total,
        "max_error": float(np.abs(aggregate - mean).max()),
    }


class _Device:
    """A client whose training is done: `fit`, which flwr looks for in the class, hands it out."""

    def __init__(self, result: OfFlower) -> None:
        self._result = result

    def fit(self, instructions: object) -> OfFlower:
        """Return the update."""
        del instructions
        return self._result


class _MemoryGrid:
    """Carries messages between workflow and devices, and watches the devices.

    Implements what the workflow uses of flwr's `Grid`.

    Attributes:
        device_cpu_s: by stage, the CPU seconds of each device that took part.
        carrying_cpu_s: CPU seconds of the grid itself.
    """

    def __init__(
        self, flwr: OfFlower, app: OfFlower, nodes: Iterable[int], vanishing: frozenset[int]
    ) -> None:
        self._serde = flwr.common.serde
        self._protocol = flwr.common.secure_aggregation.secaggplus_constants
        self._app = app
        self._contexts = {node: _context(flwr, node) for node in nodes}
        self._vanishing = vanishing
        self.device_cpu_s: dict[str, list[float]] = defaultdict(list)
        self.carrying_cpu_s = 0.0

    @property
    def nodes(self) -> list[int]:
        """Ids of all devices."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: list[OfFlower], *, timeout: float | None = None
    ) -> list[OfFlower]:
        """Let the devices answer, one after the other; who vanishes does not."""
        del timeout
        start, spent_before = time.process_time(), self._all_devices_cpu_s()
        records = messages[0].content.config_records[self._protocol.RECORD_KEY_CONFIGS]
        stage = records[self._protocol.Key.STAGE]
        if stage == self._protocol.Stage.COLLECT_MASKED_VECTORS:
            messages = [m for m in messages if m.metadata.dst_node_id not in self._vanishing]
        replies = [self._deliver(message, stage) for message in Bar(messages, desc=f"flwr {stage}")]
        devices = self._all_devices_cpu_s() - spent_before
        self.carrying_cpu_s += time.process_time() - start - devices
        return replies

    def _deliver(self, message: OfFlower, stage: str) -> OfFlower:
        message.content = self._carry(message.content)
        context = self._contexts[message.metadata.dst_node_id]
        start = time.process_time()
        reply = self._app(message, context)
        self.device_cpu_s[stage].append(time.process_time() - start)
        reply.content = self._carry(reply.content)
        return reply

    def _carry(self, content: OfFlower) -> OfFlower:
        """Encode and decode records."""
        return self._serde.recorddict_from_proto(self._serde.recorddict_to_proto(content))

    def _all_devices_cpu_s(self) -> float:
        return sum(sum(spent) for spent in self.device_cpu_s.values())


def import_flwr(*modules: str) -> OfFlower:
    """Import parts of flwr; the package.

    Raises:
        UserError: it is not installed, or in another release.
    """
    try:
        version = metadata.version("flwr")
        if version.rpartition(".")[0] not in _RELEASES:
            raise UserError(f"flwr is {version}, not {' or '.join(_RELEASES)}: {_EXTRA}")
        # Nothing used here reports home; this keeps it so.
        os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
        for name in modules:
            import_module(name)
    except ImportError as error:
        raise UserError(f"flwr is not installed ({error}): {_EXTRA}") from error
    return sys.modules["flwr"]


@contextmanager
def _silence() -> Iterator[None]:
    """Drop flwr's log and the warnings that it causes."""
    logger = logging.getLogger("flwr")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def _seeded_shuffles(seed: int) -> Iterator[None]:
    """Make the workflow's graph, which it draws from Python's global generator, repeatable."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _devices(
    flwr: OfFlower,
    nodes: list[int],
    dim: int,
    vanishing: frozenset[int],
    generator: np.random.Generator,
) -> tuple[dict[int, _Device], npt.NDArray[np.float64]]:
    """Draw an update per device, float32 in [0, 1); the devices and the survivors' mean."""
    common = flwr.common
    devices, total = {}, np.zeros(dim)
    for node in nodes:
        update = generator.random(dim, dtype=np.float32)
        if node not in vanishing:
            total += update
        result = common.FitRes(
            status=common.Status(common.Code.OK, ""),
            parameters=common.ndarrays_to_parameters([update]),
            num_examples=1,
            metrics={},
        )
        devices[node] = _Device(result)
    return devices, total / (len(nodes) - len(vanishing))


def _client_app(flwr: OfFlower, devices: dict[int, _Device], neighbours: int | None) -> OfFlower:
    mods = flwr.client.mod
    mod = mods.secagg_mod if neighbours is None else mods.secaggplus_mod
    return flwr.clientapp.ClientApp(lambda context: devices[context.node_id], mods=[mod])


def _workflow(flwr: OfFlower, clients: int, neighbours: int | None, threshold: int) -> OfFlower:
    """Flower's workflow, with settings under which the sum of all devices cannot overflow."""
    largest = (_MODULUS_RANGE - 1) // clients
    settings = {
        "max_weight": 1.0,
        "quantization_range": min(_QUANTIZATION_RANGE, 1 << (largest.bit_length() - 1)),
        "modulus_range": _MODULUS_RANGE,
    }
    workflows = flwr.server.workflow
    if neighbours is None:
        return workflows.SecAggWorkflow(threshold, **settings)
    return workflows.SecAggPlusWorkflow(neighbours + 1, threshold, **settings)  # with itself


def _server_context(flwr: OfFlower, grid: _MemoryGrid, dim: int) -> OfFlower:
    """What flwr's default workflow hands to a secure one: clients, the round and a model."""
    identity = flwr.supercore.task_identity.TaskIdentity
    identity.run_id, identity.node_id, identity.task_id = _RUN_ID, 0, 0
    context = flwr.server.LegacyContext(
        _context(flwr, identity.node_id), strategy=flwr.server.strategy.FedAvg()
    )
    for node in grid.nodes:
        context.client_manager.register(
            flwr.server.compat.grid_client_proxy.GridClientProxy(node, grid, _RUN_ID)
        )
    constant = flwr.server.workflow.constant
    context.state[constant.MAIN_CONFIGS_RECORD] = flwr.app.ConfigRecord(
        {constant.Key.CURRENT_ROUND: _ROUND}
    )
    context.state[constant.MAIN_PARAMS_RECORD] = flwr.app.ArrayRecord(
        [np.zeros(dim, dtype=np.float32)]
    )
    return context


def _context(flwr: OfFlower, node: int) -> OfFlower:
    return flwr.app.Context(
        run_id=_RUN_ID, node_id=node, node_config={}, state=flwr.app.RecordDict(), run_config={}
    )
