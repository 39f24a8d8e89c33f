"""What a report says besides its findings: what the run is, and what no audit can show."""

from typing import Final

from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.transcript import Opening
from deltafl.sim.settings.config import REMOTE

LIMITS: Final = (
    "Secure aggregation is not differential privacy: sums are exact, and may reveal their members.",
    "The server wrote the record, and the record shows only what was written down.",
    "Which devices collude with the server is not seen. Whatever they know, the server knows too.",
    "Statistical tests can find a fault, but never prove that there is none.",
    "The content of models is not judged: one can be made so that its updates reveal samples.",
    "The record has no times: that of an answer may tell whether its device has trained.",
    "Only the directory can say whether a key belongs to the device it names.",
)


def without_truth(source: Source) -> str:
    """What is not checked where there is no truth file, and why there is none: a phrase."""
    is_remote = source.config is not None and source.config.federation.devices == REMOTE
    real = "the devices are real, and their seeds and values are recorded nowhere"
    return (
        f"what devices drew and hid: {real if is_remote else 'no truth file was given'}. No device "
        "was played again, no box opened, and no masked vector compared with what it hides; "
        "whether order or silence tell who passed the filter is not known"
    )


def facts_of_run(
    source: Source, opening: Opening | None, expected: Expected
) -> tuple[tuple[str, str], ...]:
    """What the run says about itself, and which limits the audit applies to it."""
    facts = {"messages kept": opening.mode if opening else "unknown"}
    if source.config is not None:
        federation = source.config.federation
        facts |= {"algorithm": federation.algorithm, "cohort": str(federation.cohort_size)}
        if federation.is_private:
            facts["conformity level θ"] = ", ".join(map(str, federation.thetas))
            facts["quantile method"] = source.config.quantile.method
            facts["sums"] = source.config.privacy.sums
    facts["adversary"] = str(expected.policy.adversary)
    facts["colluding devices"] = f"{expected.policy.colluding_rate:.0%}"
    return tuple(facts.items())
