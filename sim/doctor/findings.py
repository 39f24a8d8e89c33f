"""A finding of the doctor: what was looked at, how it is, and the mend if it is not well."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class State(StrEnum):
    """How something is."""

    GOOD = "ok"
    """As it should be."""
    ABSENT = "absent"
    """Not there, and not needed."""
    WARNING = "warning"
    """Something will be slower, or may go wrong."""
    FAILED = "FAILED"
    """The command does not work as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found.

    Attributes:
        topic: what was looked at, in a word or two.
        state: how it is.
        text: what was found.
        mend: what to do about it; "" if nothing has to be done.
    """

    topic: str
    state: State
    text: str
    mend: str = ""


def good(topic: str, text: str) -> Finding:
    """A finding of what is as it should be."""
    return Finding(topic, State.GOOD, text)


def works(findings: Sequence[Finding]) -> bool:
    """Whether everything needed works."""
    return all(one.state is not State.FAILED for one in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """The findings in a sentence."""
    failed = sum(one.state is State.FAILED for one in findings)
    warnings = sum(one.state is State.WARNING for one in findings)
    noted = f"{warnings} warning{'' if warnings == 1 else 's'}" if warnings else "no warnings"
    if failed:
        return f"{failed} thing{'' if failed == 1 else 's'} that must work failed; {noted}."
    return f"Everything needed works; {noted}."


def as_text(groups: dict[str, list[Finding]], width: int) -> str:
    """The findings as a table for a terminal of some width, with the mends below each line."""
    import textwrap

    topic = max(len(one.topic) for findings in groups.values() for one in findings)
    indent = " " * (2 + 9 + topic + 2)
    lines = []
    for name, findings in groups.items():
        lines.append(name)
        for one in findings:
            begin = f"  {one.state:<9}{one.topic:<{topic}}  "
            texts = [one.text] if not one.mend else [one.text, f"→ {one.mend}"]
            for text in texts:
                lines += textwrap.wrap(
                    text,
                    max(width, len(indent) + 20),
                    initial_indent=begin,
                    subsequent_indent=indent,
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                begin = indent
        lines.append("")
    return "\n".join([*lines, verdict([one for each in groups.values() for one in each])])


def as_json(groups: dict[str, list[Finding]]) -> dict[str, object]:
    """The same for programs."""
    everything = [one for findings in groups.values() for one in findings]
    return {
        "works": works(everything),
        "verdict": verdict(everything),
        "groups": {name: [asdict(one) for one in findings] for name, findings in groups.items()},
    }
