"""A second opinion on sessions: what it computes, and that nothing makes it fail."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from honest_runs import messages_of, play_honestly

from deltafl.secagg import keys, links
from deltafl.secagg.messages import AdvertiseKeys, MaskedInput, UnmaskRequest, UnmaskShares
from deltafl.sim.inspect.audit import plain
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.checks.independent import Independent
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.second_opinion import Opinion, digest_of
from deltafl.sim.inspect.audit.views import RoundView
from deltafl.sim.record.transcript import Message, sum_sha256


@pytest.fixture(scope="module")
def passed():
    """The messages of an honest round, and their session's parameters."""
    view, every = RoundView(1), []
    settings = {"federation": {"cohort_size": 5, "theta": 1}}
    for number, (sent, peer, data) in enumerate(messages_of(length=5, **settings), start=1):
        record = Message(number, 1, sent, peer, len(data), sha256(data).digest(), data)
        every.append(view.add(record))
    (session,) = view.sessions.values()
    return every, session.params


def heard(passed, change=lambda message: message):
    """An opinion that has taken the messages, changed; what it found, and the sum."""
    every, params = passed
    opinion, found = Opinion(params, {}), []
    for seen in every:
        message = change(seen.content.message)
        found += opinion.take(replace(seen, content=replace(seen.content, message=message)))
    return opinion, [detail for detail, _ in found], opinion.total(0)


def of(kind, **changes):
    """A change of the first message of a kind."""
    seen = Counter()

    def change(message):
        seen[type(message)] += 1
        if isinstance(message, kind) and seen[kind] == 1:
            return replace(message, **{k: make(message) for k, make in changes.items()})
        return message

    return change


def test_an_honest_sum_is_computed(passed):
    _, found, total = heard(passed)
    assert found == []
    layout = passed[0][0].content.envelope.levels.common.update_layout
    assert len(total) == layout.length
    one = np.array([1, 2], np.uint64)
    assert digest_of(one) == sum_sha256(one)


def test_a_changed_vector_changes_the_sum(passed):
    _, _, honest = heard(passed)
    _, _, other = heard(
        passed, of(MaskedInput, packed=lambda m: bytes([m.packed[0] ^ 1]) + m.packed[1:])
    )
    assert other is not None
    assert not np.array_equal(other, honest)


def test_a_false_share_is_passed_over(passed):
    wrong = of(UnmaskShares, shares=lambda message: (message.shares + 1) % (2**31 - 1))
    _, _, honest = heard(passed)
    _, _, other = heard(passed, wrong)
    np.testing.assert_array_equal(other, honest)


def test_a_signature_that_does_not_hold_is_named(passed):
    def other(message):
        return replace(message.credential, signature=bytes(64))

    _, found, _ = heard(passed, of(AdvertiseKeys, credential=other))
    assert len(found) == 1
    assert "does not hold" in found[0]


def test_another_graph_is_named(passed):
    every, params = passed
    opinion = Opinion(params, {})
    opinion.params = {**opinion.params, "degree": 2}
    found = [one for seen in every for one in opinion.take(seen)]
    assert sum("neighbours" in detail for detail, _ in found) == 5


@pytest.mark.parametrize(
    "change",
    [
        of(UnmaskRequest, survivors=lambda m: m.survivors[:-1]),
        of(
            UnmaskShares,
            positions=lambda m: m.positions[:0],
            kinds=lambda m: m.kinds[:0],
            shares=lambda m: m.shares[:0],
        ),
        lambda message: None if isinstance(message, UnmaskShares) else message,
        lambda message: None if isinstance(message, AdvertiseKeys) else message,
    ],
    ids=["short list", "fewer shares", "no shares", "no keys"],
)
def test_whatever_came_it_does_not_fail(passed, change):
    opinion, _, total = heard(passed, change)
    assert total is None or len(total) > 5
    assert list(opinion.inputs(0)) == list(opinion.told()) == []


SECRET, INFO = b"of a device".ljust(32), b"what it is bound to"


def test_boxes_are_opened_by_x_wing_and_hpke_from_their_parts():
    box = keys.seal(b"a half", keys.recipient(SECRET).public, INFO)
    assert plain.public_key(SECRET) == keys.recipient(SECRET).public
    assert plain.opened(SECRET, box, INFO) == b"a half"
    low_order = box[:1088] + bytes(32) + box[1120:]
    for other in (box[:-1] + bytes([box[-1] ^ 1]), bytes([box[0] ^ 1]) + box[1:], low_order):
        assert plain.opened(SECRET, other, INFO) is None
    assert plain.opened(SECRET, box, b"something else") is None
    assert plain.opened(bytes(32), box, INFO) is None


def test_a_link_is_that_of_the_devices():
    low, high = (
        links.End(place, bytes([place]) * 32, bytes(9), bytes([7, place]) * 16, bytes([place]) * 32)
        for place in (3, 5)
    )
    link = links.link(bytes(32), low, high, 2)
    ends, halves, boxes = (
        [end[:3] for end in (low, high)],
        [low.half, high.half],
        [low.box, high.box],
    )
    secret = plain.link_secret(bytes(32), ends, halves, boxes)
    assert link.tags == (plain.link_tag(secret, 3), plain.link_tag(secret, 5))
    assert link.keys == (plain.link_key(secret, 0), plain.link_key(secret, 1))
    assert plain.key_digest(link.keys[0]) == links.key_digest(link.keys[0])
    hidden = links.hide(SECRET, 3, 5, link.keys[0])
    assert plain.hidden(SECRET, 3, 5, hidden) == link.keys[0]
    assert plain.hidden(SECRET, 5, 3, hidden) != link.keys[0]


@pytest.mark.slow
def test_every_sum_of_an_honest_run_with_drop_outs_is_computed(tmp_path):
    run = play_honestly(tmp_path, rounds=2, dropout=0.2, batches=2, length=5)
    report = audit(run.transcript, Options(truth=run.truth, independent=True))
    assert sum(run.lost_at.values()) > 0
    assert [f.detail for f in report.findings if f.rule == "independent.differs"] == []
    (said,) = [check.detail for check in report.checks if check.name == Independent.name]
    assert said.startswith(f"{report.sums_released} of {report.sums_released} sums")
    assert Independent.name not in {check.name for check in audit(run.transcript).checks}
