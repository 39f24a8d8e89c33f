"""The rules that an audit checks, by their stable ids.

An id never changes its meaning and is never used again for another. `attack` names the entry of the
list of attacks in docs/audit.md that the rule is about.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity

MAX_PLACES: Final = 5
"""So many places are named in a finding."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an audit insists on.

    Attributes:
        severity: How bad it is in general.
        title: What was found, a short noun phrase.
        consequence: What follows from it, one sentence.
        remedy: What to do about it, one sentence.
        attack: Which attack of docs/audit.md it corresponds to, such as "A5 late masked input".
    """

    severity: Severity
    title: str
    consequence: str
    remedy: str
    attack: str

    def texts(self) -> dict[str, str]:
        """The rule's texts, by attribute name."""
        return {
            "title": self.title,
            "consequence": self.consequence,
            "remedy": self.remedy,
            "attack": self.attack,
        }


_A1: Final = "A1 inconsistent survivor lists"
_A2: Final = "A2 both shares of one device"
_A3: Final = "A3 key substitution"
_A4: Final = "A4 small cohort"
_A5: Final = "A5 late masked input"
_A6: Final = "A6 reuse of masks, keys or sessions"
_A7: Final = "A7 weak generator or short seed"
_A8: Final = "A8 model inconsistency"
_A11: Final = "A11 many rounds, partial participation"
_A13: Final = "A13 differences of cohorts"
_A14: Final = "A14 queries of the search"
_A15: Final = "A15 values in clear"
_A16: Final = "A16 metadata"
_A17: Final = "A17 overflow and forged sums"
_A18: Final = "A18 what the sum itself reveals"
_A19: Final = "A19 thresholds dictated by the server"
_A20: Final = "A20 abort and retry"
_A22: Final = "A22 false shares"
_A23: Final = "A23 keys of low order"
_A24: Final = "A24 a record that is not what happened"

_RULES: dict[str, Rule] = {
    "record.edited": Rule(
        Severity.HIGH,
        "a record was edited",
        "What follows it in the file proves nothing, and what it says itself may be invented.",
        "Take the file from where it was written, and compare its digest with the one in "
        "the run's summary.",
        _A24,
    ),
    "record.missing": Rule(
        Severity.HIGH,
        "records were taken out",
        "Whatever was in them is not audited.",
        "Take the file from where it was written; a log that leaves the server's hands at "
        "once cannot be cut later.",
        _A24,
    ),
    "record.reordered": Rule(
        Severity.HIGH,
        "records were moved or repeated",
        "The order in which things happened decides whether masks protect a vector, and "
        "it is not known.",
        "Take the file from where it was written.",
        _A24,
    ),
    "record.cut": Rule(
        Severity.HIGH,
        "the file ends too early",
        "What was in the rest is not audited.",
        "Take the whole file; after a crash, resume the run, which cuts the file back to "
        "its last checkpoint and goes on.",
        _A24,
    ),
    "record.malformed": Rule(
        Severity.HIGH,
        "a record is none of the format",
        "The program that wrote the file is not the one that the format describes.",
        "Write transcripts with the release whose version the file names.",
        _A24,
    ),
    "record.unfinished": Rule(
        Severity.MEDIUM,
        "the file has no closing record",
        "The run was stopped, still goes on, or the end of its record was cut off between "
        "two records.",
        "Finish the run (`--resume`), or give the digest that the run's checkpoint vouches for.",
        _A24,
    ),
    "record.head-differs": Rule(
        Severity.HIGH,
        "the digest of the file is not the one that the run states",
        "The whole file may be another than the one that the run wrote.",
        "Take the file from where it was written.",
        _A24,
    ),
    "record.disagrees": Rule(
        Severity.HIGH,
        "the run's own record says something else",
        "The run published results that do not follow from what its server received.",
        "Find out which of the two was changed; trust neither until then.",
        _A24,
    ),
    "record.unasked": Rule(
        Severity.HIGH,
        "an answer has no question",
        "What the server sent to get it was left out of the record, and may have been a lie.",
        "Take the file from where it was written; a log that leaves the server's hands at once "
        "cannot be cut later.",
        _A24,
    ),
    "record.no-messages": Rule(
        Severity.MEDIUM,
        "nothing passed the server",
        "Nothing can be said about the privacy of devices: the sums were computed without "
        "cryptography, or the record is of another run.",
        'Run with `privacy.sums = "masked"`.',
        _A24,
    ),
    "clear.by-design": Rule(
        Severity.CRITICAL,
        "the algorithm shows the server every device's loss",
        "The server reads every loss and knows who passed the filter.",
        "Use `private-delta-fl`, which needs sums only.",
        _A15,
    ),
    "clear.values": Rule(
        Severity.CRITICAL,
        "a device's message holds values in clear",
        "The server reads what it should only know as part of a sum.",
        "Put the values into the masked vector; send nothing beside it.",
        _A15,
    ),
    "clear.unknown": Rule(
        Severity.MEDIUM,
        "a message is none of the protocol",
        "What it holds is not known, and nothing in the protocol protects it.",
        "Find out which party sends it; honest ones send the messages of the specification only.",
        _A15,
    ),
    "broadcast.announcement": Rule(
        Severity.HIGH,
        "devices were shown different models or settings",
        "The masks of those who were shown different ones do not cancel; a party without "
        "this binding would have its update isolated.",
        "Keep devices that check the binding; stop using this server.",
        _A8,
    ),
    "broadcast.question": Rule(
        Severity.HIGH,
        "devices were asked different questions in one slot",
        "Different queries or thresholds single out a device; only the binding of the "
        "masks stands between.",
        "Keep devices that check the binding; stop using this server.",
        _A8,
    ),
    "lists.roster": Rule(
        Severity.HIGH,
        "devices were shown different rosters",
        "Devices that believe in different cohorts can be isolated from one another.",
        "Sign sessions (`privacy.signed`); stop using this server.",
        _A1,
    ),
    "lists.members": Rule(
        Severity.HIGH,
        "devices were told different cohorts for one slot",
        "A device may have been made to mask against devices that are not there.",
        "Sign sessions (`privacy.signed`); stop using this server.",
        _A1,
    ),
    "lists.survivors": Rule(
        Severity.HIGH,
        "devices were told different survivors",
        "With enough helpers on each side, the server gets both secrets of a device and "
        "reads its vector.",
        "Sign sessions (`privacy.signed`): devices then compare the list before they help.",
        _A1,
    ),
    "lists.not-whole": Rule(
        Severity.HIGH,
        "a query was asked over a part of its search's cohort",
        "The difference of two answers is the answer of whoever is missing.",
        "Keep devices that insist on whole slots; stop using this server.",
        _A13,
    ),
    "keys.substituted": Rule(
        Severity.HIGH,
        "a device's keys were replaced on the way",
        "Whoever replaced them can read the shares that were sealed for them and compute "
        "the masks.",
        "Sign sessions with identities that the server does not choose.",
        _A3,
    ),
    "keys.twice": Rule(
        Severity.MEDIUM,
        "a device advertised two sets of keys",
        "Which of the two others were shown is for the server to choose.",
        "Advertise keys once; repeat them only byte for byte.",
        _A3,
    ),
    "keys.reused": Rule(
        Severity.HIGH,
        "a public key was used twice",
        "Masks under one key pair repeat, and the difference of two vectors is the "
        "difference of their inputs.",
        "Draw new keys for every slot of every session.",
        _A6,
    ),
    "keys.low-order": Rule(
        Severity.HIGH,
        "a public key is of low order",
        "Everybody can compute what is agreed with it.",
        "Refuse such keys, as devices and server of this protocol do.",
        _A23,
    ),
    "keys.unsigned": Rule(
        Severity.HIGH,
        "sessions are not signed although the server may be active",
        "Nothing shows devices whose keys they use, or that all were told the same survivors.",
        'Set `privacy.adversary = "active"` or `privacy.signed = true`.',
        _A3,
    ),
    "keys.bad-signature": Rule(
        Severity.HIGH,
        "a signature does not hold",
        "Keys or lists are not vouched for by the device that is said to have sent them.",
        "Find out whether the device or the server made it.",
        _A3,
    ),
    "keys.identity-changed": Rule(
        Severity.HIGH,
        "a device's identity key changed between sessions",
        "Somebody else may be speaking for it since.",
        "Compare fingerprints with the device's owner.",
        _A3,
    ),
    "boxes.exchanged": Rule(
        Severity.MEDIUM,
        "sealed shares did not arrive as they were sent",
        "Devices refuse a box that was changed; those whose shares are missing are easier "
        "to isolate.",
        "Find out whether the network or the server changed them.",
        _A3,
    ),
    "session.reused": Rule(
        Severity.HIGH,
        "the parameters of a session came twice",
        "Masks are bound to the session: what is bound to the same can be made equal.",
        "Draw a new graph seed for every session; keep the devices' ledgers.",
        _A6,
    ),
    "session.twice": Rule(
        Severity.HIGH,
        "one round was announced in two sessions",
        "Two sums of the same inputs over different devices differ by what the devices in "
        "one of them sent.",
        "Keep the devices' ledgers, which refuse a round that they were in before.",
        _A20,
    ),
    "session.unbound": Rule(
        Severity.HIGH,
        "a session is not bound to the model and settings it was announced with",
        "Devices cannot tell whether all were shown the same model.",
        "Keep devices that check the binding; stop using this server.",
        _A8,
    ),
    "shares.both-kinds": Rule(
        Severity.CRITICAL,
        "both secrets of a device were given away",
        "With its self mask and its pairwise masks known, the device's vector is in clear.",
        "Sign sessions; devices must release one kind of share for a device and slot.",
        _A2,
    ),
    "shares.wrong": Rule(
        Severity.LOW,
        "a rebuilt secret is not what was promised",
        "A device dealt or returned false shares; the sum may be wrong or lost.",
        "Nothing, if it is rare; else exclude the devices that the run names.",
        _A22,
    ),
    "input.late": Rule(
        Severity.LOW,
        "a masked vector came for a device that was called lost",
        "Its pairwise masks are known, and its self mask alone protects it.",
        "Nothing, as long as no share of its self mask is given; expect it where networks "
        "are slow.",
        _A5,
    ),
    "input.twice": Rule(
        Severity.HIGH,
        "a device sent two different vectors for one slot",
        "Under one mask, their difference is the difference of the inputs.",
        "Send a masked vector once; repeat it only byte for byte.",
        _A6,
    ),
    "masks.biased": Rule(
        Severity.HIGH,
        "masked bytes are not uniform",
        "The masks do not hide all of the inputs.",
        "Check the generator of the masks; the protocol's is ChaCha20.",
        _A7,
    ),
    "masks.reused": Rule(
        Severity.CRITICAL,
        "masks were used twice",
        "The difference of two masked vectors is the difference of their inputs.",
        "Bind masks to session and slot, as the specification says.",
        _A6,
    ),
    "masks.weak-seed": Rule(
        Severity.CRITICAL,
        "secrets were drawn from too few values",
        "Whoever tries all values takes the masks off.",
        "Draw secrets from the operating system.",
        _A7,
    ),
    "masks.depend": Rule(
        Severity.CRITICAL,
        "masked vectors depend on what they hide",
        "The vectors tell about the inputs without any share.",
        "Check how devices mask; compare with the test vectors.",
        _A7,
    ),
    "sums.differ": Rule(
        Severity.HIGH,
        "a sum is not what the messages add up to",
        "The server reported something else than it received.",
        "Trust the replayed sums; find out why the server's differ.",
        _A17,
    ),
    "sums.unreplayable": Rule(
        Severity.MEDIUM,
        "a sum cannot be computed from the messages",
        "Either messages are missing from the record, or the server has it from elsewhere.",
        "Look at the evidence; a sum that no message explains was not learnt by this protocol.",
        _A17,
    ),
    "sums.out-of-range": Rule(
        Severity.MEDIUM,
        "a sum is outside its range",
        "Devices were bound to different values, or one sent something else than the layout says.",
        "Discard the round; look for different announcements.",
        _A17,
    ),
    "sums.unrecorded": Rule(
        Severity.HIGH,
        "shares were given for a sum that the record does not have",
        "The server learnt a sum that it does not admit.",
        "Find out what became of it.",
        _A24,
    ),
    "sums.differ-by-few": Rule(
        Severity.HIGH,
        "two released sums of the same question differ by few devices",
        "Their difference is the sum of the answers of those few.",
        "Sum a question over one cohort, once; keep whole slots and ledgers.",
        _A13,
    ),
    "sums.search-and-update": Rule(
        Severity.LOW,
        "the update was summed over fewer devices than the search",
        "The difference tells whether the missing devices passed the filter, and their weight.",
        "Part of the design (docs/limitations.md); expect fewer with fewer drop-outs "
        "after the search.",
        _A13,
    ),
    "sums.small-tail": Rule(
        Severity.HIGH,
        "few devices passed the filter",
        "The sum of updates is that of these few; of one device, it is its update.",
        "Raise θ or the cohort; announce a threshold that keeps more.",
        _A19,
    ),
    "cohort.below-floor": Rule(
        Severity.HIGH,
        "a sum was released over fewer devices than the floor",
        "Each device hides among those in the sum only.",
        "Raise `privacy.min_cohort`; invite more devices.",
        _A4,
    ),
    "parameters.below-policy": Rule(
        Severity.HIGH,
        "the parameters of a session fall short of the policy",
        "Fewer colluding devices than assumed rebuild a device's secrets.",
        "Compute the parameters from the threat model, as `SessionParams.for_threat` does.",
        _A19,
    ),
    "question.unfounded": Rule(
        Severity.HIGH,
        "a question does not follow from the sums before it",
        "A server that chooses thresholds at will can isolate the device with the largest loss.",
        "Recompute every question from the sums; stop using this server.",
        _A14,
    ),
    "model.unfounded": Rule(
        Severity.HIGH,
        "a model does not follow from the round before",
        "Devices were made to work on a model of the server's own making, unless the server steps "
        "by an optimiser that the audit was not told of.",
        "Of a run with `strategy.server_optimizer`, audit the run directory, whose settings name "
        "it: the step is then computed as well. Else stop using this server.",
        _A8,
    ),
    "search.losses-found": Rule(
        Severity.HIGH,
        "the losses of a cohort follow from the sums of its search",
        "The server knows the losses, and with known weights whose they are.",
        "Search over more devices (`quantile.min_cohort`), or by `bracketed`.",
        _A14,
    ),
    "search.narrow": Rule(
        Severity.INFO,
        "what the searches gave away",
        "The server knows the threshold, and the ranks of the losses at every query.",
        "Part of the method; docs/audit.md says how much each method gives away.",
        _A14,
    ),
    "participation.solvable": Rule(
        Severity.LOW,
        "updates could be solved for over many rounds",
        "If a device's update stayed the same from round to round, the server could "
        "compute it from the sums.",
        "Draw cohorts in fixed batches, or end the run earlier.",
        _A11,
    ),
    "retry.same-model": Rule(
        Severity.MEDIUM,
        "a model was announced again after its sums were released",
        "Sums of the same losses over different devices can be subtracted.",
        "Announce a model once; after a round that failed, draw the same cohort again.",
        _A20,
    ),
    "retry.aborted": Rule(
        Severity.LOW,
        "a round was given up after sums were released",
        "A server that gives up when it likes gets the sums before for nothing.",
        "Watch the rate; the run's settings for drop-outs should make it rare.",
        _A20,
    ),
    "metadata.size": Rule(
        Severity.HIGH,
        "the size of devices' messages varies within a slot",
        "The size may tell who passed the filter.",
        "Send vectors of one size, zeros included.",
        _A16,
    ),
    "metadata.order": Rule(
        Severity.MEDIUM,
        "the order of answers depends on who passed the filter",
        "Who answers late has trained, and so passed.",
        "Wait a fixed time before answering.",
        _A16,
    ),
    "metadata.answers": Rule(
        Severity.MEDIUM,
        "who answers depends on who passed the filter",
        "Who stays away has, or has not, passed.",
        "Answer in any case, with zeros where there is nothing to add.",
        _A16,
    ),
}

RULES: Final = MappingProxyType(_RULES)
"""Every rule by its id."""


def found(
    rule: str, detail: str, places: Iterable[Evidence], severity: Severity | None = None
) -> Finding:
    """A finding of a rule.

    Args:
        rule: Its id.
        detail: What was seen, one sentence without the full stop.
        places: Where; at least one.
        severity: How bad, where it is not as bad as the rule says, or worse.
    """
    evidence = tuple(places)
    level = RULES[rule].severity if severity is None else severity
    return Finding(rule, level, detail, evidence[:MAX_PLACES], len(evidence))
