import hmac
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parties import make_params

from deltafl.secagg import PeerError, Refusal, labels, masks
from deltafl.secagg.keys import key_pair
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import Link, SlotContext

ALICE, BOB, EVE = (key_pair(bytes([i]) * 32) for i in (1, 2, 3))
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


def pair_key(context, own, public):
    """The key of the mask that a device shares with one peer in a tolerant slot."""
    [pair] = context.pair_secrets(own, [7], [public])
    assert pair.peer == 7
    return pair.key()


def whole_key(context, own, public, members=EVERYBODY):
    """The same in a whole slot, from what seals their boxes."""
    link = Link.between(own, 7, public, context.session_id)
    pair = link.whole(context.whole_slot_info(members))
    assert pair.peer == 7
    return pair.key()


in_each_slot = pytest.mark.parametrize("key_of", [pair_key, whole_key])


def test_every_public_value_changes_every_mask_key():
    pairwise = {pair_key(context, ALICE, BOB.public) for context in contexts()}
    whole = {whole_key(context, ALICE, BOB.public) for context in contexts()}
    own = {context.self_mask_key(SEED) for context in contexts()}
    assert len(pairwise) == len(whole) == len(own) == len(list(contexts())) == 9
    # Not even one secret under two labels would give one key.
    assert len(pairwise | whole | own) == 27


def test_every_list_of_devices_has_masks_of_its_own_in_a_whole_slot():
    context = next(contexts())
    lists = [np.array(bits) for n in (3, 5) for bits in itertools.product([False, True], repeat=n)]
    keys = {whole_key(context, ALICE, BOB.public, members) for members in lists}
    assert len(keys) == len(lists) == 8 + 32


def test_a_link_hides_its_secret():
    context = next(contexts())
    link = Link.between(ALICE, 7, BOB.public, SESSION)
    [tolerant] = context.pair_secrets(ALICE, [7], [BOB.public])
    for holder in (link, link.whole(b"info"), tolerant):
        assert repr(holder.secret) not in repr(holder)
        assert holder.secret.hex() not in repr(holder)


def test_a_link_needs_an_agreement_that_is_not_all_zeros():
    with pytest.raises(PeerError, match="all zeros") as refused:
        Link.between(ALICE, 7, bytes(32), SESSION)
    assert refused.value.reason is Refusal.BAD_KEY


def test_slots_that_look_alike_have_contexts_of_their_own():
    params = make_params(slots=((4, 16), (4, 16)))
    same_label = type(params)((params.slots[0], params.slots[0]), 5, 4, 3, 3, bytes(32), bytes(32))
    first, second = (SlotContext.of(same_label, SESSION, slot, b"") for slot in range(2))
    for key_of in (pair_key, whole_key):
        assert key_of(first, ALICE, BOB.public) != key_of(second, ALICE, BOB.public)
    assert first.self_mask_key(SEED) != second.self_mask_key(SEED)


def hkdf(material, salt, info):
    """RFC 5869 with SHA-256, as far as its first 32 bytes."""
    extracted = hmac.digest(salt, material, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


def test_mask_keys_are_hkdf_over_label_slot_and_both_public_keys():
    params = make_params(slots=((4, 16), (3, 40)))
    context = SlotContext.of(params, SESSION, 1, b"binding")
    slot = labels.pack(params.slots[1].label.encode(), 3, 40, 0, 0)
    info = labels.pack(1, slot, b"binding")
    own = labels.pack(Label.SELF_MASK, info)
    both = min(ALICE.public, BOB.public) + max(ALICE.public, BOB.public)
    pairwise = labels.pack(Label.PAIRWISE_MASK, info) + both
    whole = labels.pack(Label.WHOLE_MASK, info, 5, b"\x0d") + both
    assert context.self_mask_key(SEED) == hkdf(SEED, SESSION, own)
    agreed = ALICE.agree(BOB.public)
    assert pair_key(context, ALICE, BOB.public) == hkdf(agreed, SESSION, pairwise)
    members = np.array([True, False, True, True, False])
    assert whole_key(context, ALICE, BOB.public, members) == hkdf(agreed, SESSION, whole)


@in_each_slot
def test_a_key_under_another_name_gives_another_mask(key_of):
    alias = BOB.public[:31] + bytes([BOB.public[31] | 0x80])
    assert ALICE.agree(alias) == ALICE.agree(BOB.public)
    context = next(contexts())
    assert key_of(context, ALICE, BOB.public) != key_of(context, ALICE, alias)


@in_each_slot
def test_both_devices_derive_the_same_pairwise_key(key_of):
    context = next(contexts())
    pairs = list(itertools.combinations([ALICE, BOB, EVE], 2))
    derived = {key_of(context, one, other.public) for one, other in pairs}
    assert derived == {key_of(context, other, one.public) for one, other in pairs}
    assert len(derived) == 3


def test_several_peers_at_once_are_each_for_itself():
    context = next(contexts())
    both = context.pair_secrets(ALICE, [2, 9], [BOB.public, EVE.public])
    assert [pair.peer for pair in both] == [2, 9]
    keys = [pair_key(context, ALICE, other.public) for other in (BOB, EVE)]
    assert [pair.key() for pair in both] == keys


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
    assert len({masks.seed_commitment(*arguments) for arguments in (base, *others)}) == 5


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
    assert len(Label) == len(Label.__members__) == 18
    assert all(label.startswith(b"deltafl/secagg/v3/") for label in Label)
