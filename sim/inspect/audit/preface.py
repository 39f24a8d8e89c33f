"""What a report says besides its findings: what the run is, and what no audit can show."""

from typing import Final

from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.transcript import Opening
from deltafl.sim.settings.config import REMOTE

LIMITS: Final = (
    "Secure aggregation is not differential privacy: the server knows every sum exactly. A sum "
    "may reveal its members if they are few, if something is already known about them, or if "
    "another sum can be subtracted from it.",
    "The server wrote the record, and the record shows only what was written down. If a server "
    "writes something else in a consistent chain, the audit can find this only where messages do "
    "not fit together.",
    "The audit cannot see which devices collude with the server. Whatever they know, the server "
    "knows too.",
    "Statistical tests can find a fault, but never prove that there is none: bytes that pass may "
    "come from a generator that somebody can run.",
    "The audit does not judge the content of models. A model can be designed so that the sum of "
    "its updates reveals something about single samples.",
    "The record has no times. The time of an answer may tell whether its device has trained.",
    "The audit only compares identities with one another. Only the directory can say whether a "
    "key belongs to the device it names.",
)


def without_truth(source: Source) -> str:
    """What is not checked where there is no truth file, and why there is none: a phrase."""
    is_remote = source.config is not None and source.config.federation.devices == REMOTE
    why = (
        "the devices are real, and their seeds and values are recorded nowhere"
        if is_remote
        else "no truth file was given"
    )
    return (
        f"what devices drew and hid: {why}. No device was played again, no box opened, and no "
        "masked vector compared with what it hides; whether order or silence tell who passed the "
        "filter is not known"
    )


def facts_of_run(
    source: Source, opening: Opening | None, expected: Expected
) -> tuple[tuple[str, str], ...]:
    """What the run says about itself, and which limits the audit applies to it."""
    facts = [("messages kept", opening.mode if opening else "unknown")]
    if source.config is not None:
        federation, quantile = source.config.federation, source.config.quantile
        facts += [
            ("algorithm", federation.algorithm),
            ("conformity level θ", ", ".join(map(str, federation.thetas))),
            ("cohort", str(federation.cohort_size)),
            ("quantile method", quantile.method),
            ("sums", source.config.privacy.sums),
        ]
        strategy = source.config.strategy
        if strategy.server_optimizer != "sgd" or strategy.server_learning_rate != 1:
            rate = f"{strategy.server_optimizer}, learning rate {strategy.server_learning_rate:g}"
            facts.append(("server optimiser", f"{rate}; by the run's own settings"))
    facts += [
        ("adversary", str(expected.policy.adversary)),
        ("colluding devices", f"{expected.policy.colluding_rate:.0%}"),
    ]
    return tuple(facts)
