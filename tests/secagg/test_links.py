"""What two devices derive from the halves that they sealed to each other, and what from."""

import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.secagg import keys, labels, links
from deltafl.secagg.labels import Label
from deltafl.secagg.links import End

SESSION = b"s" * 32
LOW = End(2, b"\1" * 32, b"\2" * 1216, b"\3" * 32, b"\4" * 32)
HIGH = End(5, b"\5" * 32, b"\6" * 1216, b"\7" * 32, b"\x08" * 32)
CHANGED = {
    "position": 3,
    "identity": b"\x09" * 32,
    "key": b"\x0a" * 1216,
    "half": b"\x0b" * 32,
    "box": b"\x0c" * 32,
}


def linked(session_id=SESSION, low=LOW, high=HIGH, num_slots=3):
    return links.link(session_id, low, high, num_slots)


def variants():
    """Links each of which differs in one argument."""
    yield linked()
    yield linked(session_id=b"t" * 32)
    for field, value in CHANGED.items():
        yield linked(low=LOW._replace(**{field: value}))
        yield linked(high=HIGH._replace(**{field: value}))
    yield linked(low=HIGH, high=LOW)


def test_a_link_depends_on_its_arguments_alone():
    assert linked() == linked()
    assert linked(num_slots=5).keys[:3] == linked().keys
    assert linked(num_slots=5).tags == linked().tags
    assert linked(num_slots=0).keys == ()


def test_every_argument_changes_every_tag_and_every_key():
    made = list(variants())
    assert len(made) == 2 + 2 * len(End._fields) + 1
    derived = [secret for link in made for secret in (*link.tags, *link.keys)]
    assert len(derived) == len(made) * 5
    assert len(set(derived)) == len(derived)


@settings(max_examples=50)
@given(
    halves=st.tuples(*[st.binary(min_size=32, max_size=32)] * 2),
    others=st.tuples(*[st.binary(min_size=32, max_size=32)] * 2),
)
def test_only_the_same_halves_give_the_same_link(halves, others):
    first, second = (
        linked(low=LOW._replace(half=a), high=HIGH._replace(half=b)) for a, b in (halves, others)
    )
    assert (first == second) == (halves == others)


def test_each_end_shows_a_tag_of_its_own():
    """Else the server could show a device its own tag for the other's."""
    link = linked()
    assert link.tags[0] != link.tags[1]
    assert [len(tag) for tag in link.tags] == [links.TAG_SIZE] * 2 == [16] * 2
    assert [len(key) for key in link.keys] == [32] * 3


def test_a_link_is_hkdf_over_everything():
    """Computed anew: RFC 5869 with SHA-256, of one block each."""
    salt = labels.digest(
        Label.LINK,
        SESSION,
        *(LOW.position, LOW.identity, LOW.key, LOW.box),
        *(HIGH.position, HIGH.identity, HIGH.key, HIGH.box),
    )
    secret = hmac.digest(salt, LOW.half + HIGH.half, "sha256")

    def expanded(*info):
        return hmac.digest(secret, labels.pack(*info) + b"\1", "sha256")

    link = linked()
    assert link.tags == tuple(expanded(Label.LINK_TAG, place)[:16] for place in (2, 5))
    assert link.keys == tuple(expanded(Label.LINK_KEY, slot) for slot in range(3))


def test_what_a_box_is_bound_to():
    """All but halves and boxes, and who sends it to whom."""
    base = links.info(SESSION, LOW, HIGH)
    for changed in ({"half": b"h"}, {"box": b"b"}):
        assert links.info(SESSION, LOW._replace(**changed), HIGH._replace(**changed)) == base
    bound = [field for field in End._fields if field not in ("half", "box")]
    others = [
        links.info(b"t" * 32, LOW, HIGH),
        links.info(SESSION, HIGH, LOW),
        *(links.info(SESSION, LOW._replace(**{f: CHANGED[f]}), HIGH) for f in bound),
        *(links.info(SESSION, LOW, HIGH._replace(**{f: CHANGED[f]})) for f in bound),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_a_box_for_another_session_or_between_others_does_not_open():
    own = keys.recipient(b"\1" * 32)
    receiver = HIGH._replace(key=own.public)
    box = keys.seal(b"content", own.public, links.info(SESSION, LOW, receiver))
    assert own.open(box, links.info(SESSION, LOW, receiver)) == b"content"
    for wrong in (
        links.info(b"t" * 32, LOW, receiver),
        links.info(SESSION, LOW._replace(position=3), receiver),
        links.info(SESSION, LOW._replace(identity=b"\x09" * 32), receiver),
        links.info(SESSION, receiver, LOW),
    ):
        assert own.open(box, wrong) is None


def test_a_hidden_key_comes_back_under_the_same_recovery_key_and_ends():
    recovery, key = b"r" * 32, b"k" * 32
    hidden = links.hide(recovery, 2, 5, key)
    assert len(hidden) == 32
    assert links.hide(recovery, 2, 5, hidden) == key
    pads = {
        links.hide(*arguments, bytes(32))
        for arguments in (
            (recovery, 2, 5),
            (recovery, 5, 2),
            (recovery, 2, 6),
            (recovery, 3, 5),
            (b"R" * 32, 2, 5),
        )
    }
    assert len(pads) == 5


def test_the_digest_of_a_key_is_not_the_key_and_depends_on_it():
    digests = {links.key_digest(bytes([i]) * 32) for i in range(20)}
    assert len(digests) == 20
    assert {len(digest) for digest in digests} == {16}


def test_the_digest_of_tags_depends_on_both_and_on_which_is_whose():
    low, high = linked().tags
    made = {links.tag_check(*tags) for tags in ((low, high), (high, low), (low, low), (high, high))}
    assert len(made) == 4
    assert {len(digest) for digest in made} == {16}


@pytest.mark.parametrize("thing", [LOW, linked()])
def test_halves_and_keys_are_not_printed(thing):
    for secret in (LOW.half, *linked().keys):
        assert repr(secret) not in repr(thing)
