"""What a report says beside its findings: what the run is, and what no audit can show."""

from typing import Final

from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.transcript import Opening

NOT_AUDITED: Final = "not audited here"
"""Name of the fact that an experiment has more runs."""

LIMITS: Final = (
    "Secure aggregation is not differential privacy: the server knows every sum exactly, and a sum "
    "may reveal its members, by their small number, by what is known of them already, or by its "
    "difference from another sum.",
    "The record is the server's. It shows what was written down; a server that writes down "
    "something else in a consistent chain is found only where its messages do not fit together.",
    "Devices that collude with the server are not seen. What they hold, the server holds too.",
    "Statistics find fault, and never prove that there is none: bytes that pass may come from a "
    "generator that somebody can run.",
    "The content of models is not judged. A model can be made so that the sum of its updates tells "
    "about single samples.",
    "Time is not recorded. When an answer came may tell whether its device has trained.",
    "Identities are compared with one another only. Whether a key belongs to whom it names is for "
    "the directory to say.",
)
WITHOUT_TRUTH: Final = (
    "Without a truth file, masked vectors cannot be compared with what they hide, nor order and "
    "answers with who passed the filter."
)


def facts_of_run(
    source: Source, opening: Opening | None, expected: Expected
) -> tuple[tuple[str, str], ...]:
    """What the run says of itself, and what it is held to."""
    facts = [("transcript", opening.mode if opening else "unknown")]
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
    if source.num_others:
        facts.append((NOT_AUDITED, f"{source.num_others} further runs, in arms/"))
    policy = expected.policy
    facts += [
        ("adversary", str(policy.adversary)),
        ("colluding devices", f"{policy.colluding_rate:.0%}"),
    ]
    return tuple(facts)
