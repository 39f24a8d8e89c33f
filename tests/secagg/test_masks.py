import hmac
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from parties import make_params

from deltafl.secagg import labels, masks
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext

LINK, OTHER_LINK = b"l" * 32, b"m" * 32
"""Keys of links for a slot."""
SEED = bytes(range(32))
SESSION = b"s" * 32

parts = st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 2**64 - 1)), max_size=4)


def contexts():
    """Contexts that differ in one public value each."""
    params = make_params(slots=((4, 16), (4, 16)))
    yield SlotContext.of(params, SESSION, 0, b"binding")
    yield SlotContext.of(params, SESSION, 1, b"binding")
    yield SlotContext.of(params, SESSION, 0, b"another")
    yield SlotContext.of(params, SESSION, 0, b"")
    yield SlotContext.of(params, b"t" * 32, 0, b"binding")
    for slots in (((5, 16),), ((4, 17),), ((4, 16, True),)):
        yield SlotContext.of(make_params(slots=slots), SESSION, 0, b"binding")
    verified = make_params(slots=((4, 19, False, True),))
    yield SlotContext.of(verified, SESSION, 0, b"binding")


EVERYBODY = np.ones(5, dtype=np.bool_)


def pair_key(context, key):
    """The key of the mask that a device shares with one peer in a tolerant slot."""
    [pair] = context.tolerant({7: key})
    assert pair.peer == 7
    return pair.key()


def whole_key(context, key, members=EVERYBODY):
    """The same in a whole slot."""
    [pair] = context.whole({7: key}, members)
    assert pair.peer == 7
    return pair.key()


def test_every_public_value_changes_every_mask_key():
    """But for the session, to which the keys of its links are bound already."""
    every = list(contexts())
    of_session = [context for context in every if context.session_id == SESSION]
    pairwise = {pair_key(context, LINK) for context in of_session}
    whole = {whole_key(context, LINK) for context in of_session}
    own = {context.self_mask_key(SEED) for context in every}
    assert len(pairwise) == len(whole) == len(of_session) == 8
    assert len(own) == len(every) == 9
    # Not even one secret under two labels would give one key.
    assert len(pairwise | whole | own) == 25


def test_every_list_of_devices_has_masks_of_its_own_in_a_whole_slot():
    context = next(contexts())
    lists = [np.array(bits) for n in (3, 5) for bits in itertools.product([False, True], repeat=n)]
    keys = {whole_key(context, LINK, members) for members in lists}
    assert len(keys) == len(lists) == 8 + 32


def test_every_key_of_a_link_gives_a_mask_of_its_own():
    context = next(contexts())
    for key_of in (pair_key, whole_key):
        assert key_of(context, LINK) == key_of(context, LINK)
        assert key_of(context, LINK) != key_of(context, OTHER_LINK)


def test_what_a_mask_comes_from_is_not_printed():
    context = next(contexts())
    for [pair] in (context.tolerant({7: LINK}), context.whole({7: LINK}, EVERYBODY)):
        assert pair.secret == LINK
        assert repr(LINK) not in repr(pair)
        assert LINK.hex() not in repr(pair)


def test_slots_that_look_alike_have_contexts_of_their_own():
    params = make_params(slots=((4, 16), (4, 16)))
    same_label = type(params)((params.slots[0], params.slots[0]), 5, 4, 3, 3, bytes(32), bytes(32))
    first, second = (SlotContext.of(same_label, SESSION, slot, b"") for slot in range(2))
    for key_of in (pair_key, whole_key):
        assert key_of(first, LINK) != key_of(second, LINK)
    assert first.self_mask_key(SEED) != second.self_mask_key(SEED)


def test_mask_keys_are_hkdf_over_label_and_slot():
    params = make_params(slots=((4, 16), (3, 40)))
    context = SlotContext.of(params, SESSION, 1, b"binding")
    slot = labels.pack(params.slots[1].label.encode(), 3, 40, 0, 0)
    info = labels.pack(1, slot, b"binding")
    own = labels.pack(Label.SELF_MASK, info)
    pairwise = labels.pack(Label.PAIRWISE_MASK, info)
    whole = labels.pack(Label.WHOLE_MASK, info, 5, b"\x0d")
    extracted = hmac.digest(SESSION, SEED, "sha256")
    assert context.self_mask_key(SEED) == expanded(extracted, own)
    assert pair_key(context, LINK) == expanded(LINK, pairwise)
    members = np.array([True, False, True, True, False])
    assert whole_key(context, LINK, members) == expanded(LINK, whole)


def expanded(secret, info):
    """The second half of RFC 5869 with SHA-256, as far as its first 32 bytes."""
    return hmac.digest(secret, info + b"\1", "sha256")


def test_several_peers_at_once_are_each_for_itself():
    context = next(contexts())
    links = {2: LINK, 9: OTHER_LINK}
    for both, key_of in (
        (context.tolerant(links), pair_key),
        (context.whole(links, EVERYBODY), whole_key),
    ):
        assert [pair.peer for pair in both] == [2, 9]
        assert [pair.key() for pair in both] == [key_of(context, key) for key in links.values()]


def test_of_two_devices_the_second_subtracts():
    for first, second in itertools.combinations(range(5), 2):
        assert masks.subtracts(second, first)
        assert not masks.subtracts(first, second)


def test_commitments_depend_on_everything():
    base = (SESSION, 0, 1, SEED)
    others = [
        (b"t" * 32, 0, 1, SEED),
        (SESSION, 1, 1, SEED),
        (SESSION, 0, 2, SEED),
        (*base[:3], SESSION),
    ]
    kinds = (masks.seed_commitment, masks.recovery_commitment)
    made = {commit(*arguments) for commit in kinds for arguments in (base, *others)}
    assert len(made) == 2 * 5


def unpacked(data):
    """The parts that were packed."""
    values = []
    while data:
        size = int.from_bytes(data[:4], "little")
        values.append(data[4 : 4 + size])
        data = data[4 + size :]
    return values


@given(values=parts)
def test_packing_can_be_undone_and_is_thus_injective(values):
    as_bytes = [v.to_bytes(8, "little") if isinstance(v, int) else v for v in values]
    assert unpacked(labels.pack(*values)) == as_bytes


@given(values=parts)
def test_a_digest_depends_on_its_label(values):
    assert labels.digest(b"label", *values) != labels.digest(b"Label", *values)


def test_packing_keeps_borders():
    assert labels.pack(b"ab", b"c") != labels.pack(b"a", b"bc")
    assert labels.pack(b"") != labels.pack()


def test_labels_are_all_different_and_carry_the_version():
    assert len(Label) == len(Label.__members__) == 23
    assert all(label.startswith(b"deltafl/secagg/v4/") for label in Label)
