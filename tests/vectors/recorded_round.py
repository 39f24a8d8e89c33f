"""Rounds that are played for the vectors: every secret from a stated seed, every envelope kept."""

from fractions import Fraction

import numpy as np
from recorded_session import (
    POLICY,
    draw_elements,
    drops_to_json,
    fixed,
    params_from_json,
    params_to_json,
    sum_to_json,
)

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.server import RoundServer
from deltafl.protocol.states import RoundState
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import Adversary, ClientId, Credentials, SessionParams
from deltafl.secagg.directory import TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import Stage, Step, Vanish

SMALL_ROUND = {
    "round_index": 3,
    "cohort_size": 4,
    "theta": [1, 2],
    "method": "mm",
    "num_pivots": None,
    "max_queries": 2,
    "resolution_bits": 4,
    "bound": 8,
    "max_weight": 100,
    "update_length": 2,
    "update_clip": 2.0,
    "update_resolution_bits": 8,
    "weighting": "samples",
    "epsilon_ticks": 0,
    "min_search_cohort": 0,
    "noise": None,
    "warm_start": None,
    "verified": False,
    "min_tail": 1,
}
"""A round of few and small numbers, in the form that the vectors have it."""

ROUND_POLICY = POLICY | {
    "min_honest_tail": 0,
    "max_levels": 9,
    "max_pivots": 9999,
    "max_pivots_if_equal": 9999,
    "max_mm_pivots_per_device": [9999, 1],
    "max_loss_resolution_bits": 64,
    "max_loss_bound": 9999,
    "max_weight": 9999,
    "min_update_resolution_bits": 0,
    "min_update_clip": 0.0,
    "max_update_clip": 99.0,
    "min_noise": [0, 1],
}
"""What the devices of rounds insist on; far below what a real device should."""


def round_policy_of(limits):
    """What a device of a round insists on, from its fields in a vector."""
    own = {name: Fraction(*limits[name]) for name in ("min_noise", "max_mm_pivots_per_device")}
    own["adversary"] = Adversary(limits["adversary"])
    return RoundPolicy(**limits | own)


def config_from_json(case):
    """The configuration of a round, from its fields in a vector."""
    noise = None
    if case["noise"] is not None:
        numerator, denominator, devices = case["noise"]
        noise = Noise(Fraction(numerator, denominator), devices)
    return RoundConfig(
        round_index=case["round_index"],
        cohort_size=case["cohort_size"],
        theta=Fraction(*case["theta"]),
        method=case["method"],
        search=SearchParams(
            case["max_queries"],
            LossGrid(case["resolution_bits"], case["bound"]),
            Weighting(case["weighting"]),
            case["epsilon_ticks"],
            case["min_search_cohort"],
            case["verified"],
        ),
        update=UpdateParams(
            case["update_clip"], case["update_resolution_bits"], case["max_weight"]
        ),
        update_length=case["update_length"],
        warm_start=case["warm_start"],
        num_pivots=case["num_pivots"],
        min_tail=case["min_tail"],
        noise=noise,
    )


def levels_from_json(cases):
    return Levels(tuple(config_from_json(case) for case in cases))


def question_to_json(question):
    """A query or a threshold."""
    if isinstance(question, Query):
        return {"what": "Query", "method": question.method, "pivots": list(question.pivots)}
    return {
        "what": "Threshold",
        "eta": question.eta_half_ticks,
        "delta": question.half_width_half_ticks,
    }


def make_round(
    name,
    levels,
    *,
    signed,
    vanishing=(),
    losses=None,
    weights=None,
    threshold=2,
    min_cohort=2,
    policy=None,
):
    """A round to play.

    Args:
        name: From which its secrets follow.
        levels: What is not as in SMALL_ROUND, for each level.
        signed: Whether devices have identities.
        vanishing: (index of the device, stage, slot) of those that vanish.
        losses: Of each device, at every level; drawn if not given.
        weights: Of each device; drawn if not given.
        threshold: t.
        min_cohort: Of the session.
        policy: What devices insist on besides.
    """
    configs = [SMALL_ROUND | level for level in levels]
    rounds = levels_from_json(configs)
    models = b"".join(fixed(f"{name}, model {i}")[:8] for i in range(len(levels)))
    num = rounds.common.cohort_size
    params = SessionParams(
        slots=rounds.slots(),
        num_invited=num,
        degree=num - 1,
        threshold=threshold,
        min_cohort=min_cohort,
        graph_seed=fixed("graph seed"),
        context=rounds.context(models),
        signed=signed,
    )
    devices = []
    for index in range(num):
        client = 3 + 7 * index
        draw = draw_elements(fixed(f"{name}, device {client}"))
        own = [draw() % 128 / 16 + 1 / 64 for _ in levels]
        device = {
            "id": client,
            "randomness": fixed(f"{name}, randomness of device {client}").hex(),
            "noise": fixed(f"{name}, noise of device {client}").hex(),
            "losses": own if losses is None else list(losses[index]),
            "weight": draw() % 120 if weights is None else weights[index],
            "updates": [
                [(draw() % 2**16 - 2**15) / 2**13 for _ in range(rounds.common.update_length)]
                for _ in levels
            ],
        }
        if signed:
            device["identity"] = fixed(f"identity of device {client}").hex()
        devices.append(device)
    return {
        "levels": configs,
        "models": models.hex(),
        "params": params_to_json(params),
        "policy": ROUND_POLICY | (policy or {}),
        "devices": devices,
        "vanishing": [
            {"id": 3 + 7 * index, "stage": stage, "slot": slot} for index, stage, slot in vanishing
        ],
    }


class RoundParties:
    """The machines of a round, and the work that devices are given."""

    def __init__(self, case):
        self.case = case
        self.levels = levels_from_json(case["levels"])
        self.models = bytes.fromhex(case["models"])
        self.params = params_from_json(case["params"])
        self.devices = {ClientId(device["id"]): device for device in case["devices"]}
        self.directory = None
        if self.params.signed:
            self.directory = TrustedKeys({i: self.identity(i).public for i in self.devices})

    def identity(self, client):
        return identity(bytes.fromhex(self.devices[client]["identity"]))

    def server(self):
        return RoundServer(self.levels, self.models, self.params, self.devices, self.directory)

    def client(self, client, policy=None, *, answered=(), ledger=None):
        """A device at its beginning.

        Args:
            client: Its id.
            policy: Where its limits are other than the case's.
            answered: Entries (hex) of models that it answered for before.
            ledger: Its ledger, if it outlives the round.
        """
        credentials = None
        if self.directory is not None:
            credentials = Credentials(self.identity(client), self.directory)
        self.ledger = ledger = MemoryLedger() if ledger is None else ledger
        ledger.admit([bytes.fromhex(entry) for entry in answered])
        own = self.devices[client]
        return RoundClient(
            client,
            round_policy_of(self.case["policy"] | (policy or {})),
            SeededRandomness(bytes.fromhex(own["randomness"])),
            credentials,
            SeededRandomness(bytes.fromhex(own["noise"])),
            ledger=ledger,
        )

    def answer(self, machine, client, data):
        """What a device says to an envelope, its work done."""
        own, level = self.devices[client], machine.level
        match machine.receive(data):
            case LocalWork.MEASURE_LOSS:
                return machine.supply_losses(own["losses"], own["weight"])
            case LocalWork.TRAIN:
                return machine.supply_update(np.array(own["updates"][level], dtype=np.float32))
            case LocalWork.WAIT:
                return machine.supply_zeros()
            case reply:
                return reply


def play_round(case):
    """Play a round to its end.

    Returns:
        The rounds (stage, slot, envelopes to the devices and messages from them, by id), what was
        asked in which slots, the sums, the tails that devices computed, the outcomes and the drops.
    """
    parties = RoundParties(case)
    server = parties.server()
    machines = {client: parties.client(client) for client in parties.devices}
    vanishing = {
        v["id"]: Vanish(Step(Stage[v["stage"].upper()], v["slot"])) for v in case["vanishing"]
    }
    rounds, questions, sums, tails = [], [], [], []
    pending = server.start()
    while pending:
        step, asked, answers = server.step, dict(pending), {}
        told = [wire.decode(data) for data in asked.values()]
        if isinstance(told[0], Ask):
            shown = {"slot": step.slot} | question_to_json(told[0].question)
            questions.append(shown)
        for client, data in asked.items():
            vanish = vanishing.get(client)
            if vanish is None or vanish.answers(step):
                answers[client] = parties.answer(machines[client], client, data)
                server.receive(client, answers[client])
        rounds.append(
            {"stage": step.stage.name.lower(), "slot": step.slot, "to": asked, "from": answers}
        )
        if isinstance(told[0], Ask) and questions[-1]["what"] == "Threshold":
            found = {machines[client].tail for client in answers}
            assert len(found) == 1
            tail = found.pop()
            tails.append(tail and {"fewest": tail.fewest, "most": tail.most})
        pending = server.close_round()
        if server.revealed is not None:
            sums.append(sum_to_json(server.revealed))
    for client in rounds[-1]["from"]:
        assert machines[client].state is RoundState.UPDATED
    drops = drops_to_json(server.outcomes[0])
    outcomes = [_outcome(one) for one in server.outcomes]
    return rounds, questions, sums, tails, outcomes, drops


def _outcome(outcome):
    found = outcome.search
    return {
        "eta": found.eta_half_ticks,
        "delta": found.half_width_half_ticks,
        "certified": found.certified,
        "ended": found.ended.value,
        "num_queries": found.num_queries,
        "kept_weight": outcome.kept_weight,
        "kept_devices": outcome.kept_devices,
        "clipped": outcome.clipped,
        "train_loss": outcome.train_loss,
        "update": None if outcome.update is None else outcome.update.tolist(),
        "aborted": outcome.aborted,
    }
