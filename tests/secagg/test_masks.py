import hmac
import itertools

from hypothesis import given
from hypothesis import strategies as st
from parties import make_params

from deltafl.secagg import labels, masks
from deltafl.secagg.keys import key_pair
from deltafl.secagg.masks import SlotContext

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


def test_every_public_value_changes_every_mask_key():
    pairwise = {context.pairwise_mask_keys(ALICE, [BOB.public])[0] for context in contexts()}
    own = {context.self_mask_key(SEED) for context in contexts()}
    assert len(pairwise) == len(own) == len(list(contexts())) == 8
    assert not pairwise & own


def test_slots_that_look_alike_have_contexts_of_their_own():
    params = make_params(slots=((4, 16), (4, 16)))
    same_label = type(params)((params.slots[0], params.slots[0]), 5, 4, 3, 3, bytes(32), bytes(32))
    first, second = (SlotContext.of(same_label, SESSION, slot, b"") for slot in range(2))
    assert (
        first.pairwise_mask_keys(ALICE, [BOB.public])[0]
        != second.pairwise_mask_keys(ALICE, [BOB.public])[0]
    )
    assert first.self_mask_key(SEED) != second.self_mask_key(SEED)


def hkdf(material, salt, info):
    """RFC 5869 with SHA-256, as far as its first 32 bytes."""
    extracted = hmac.digest(salt, material, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


def test_mask_keys_are_hkdf_over_label_slot_and_both_public_keys():
    params = make_params(slots=((4, 16), (3, 40)))
    context = SlotContext.of(params, SESSION, 1, b"binding")
    slot = labels.pack(params.slots[1].label.encode(), 3, 40, 0)
    info = labels.pack(1, slot, b"binding")
    own = labels.pack(labels.SELF_MASK, info)
    pairwise = labels.pack(labels.PAIRWISE_MASK, info) + min(ALICE.public, BOB.public)
    pairwise += max(ALICE.public, BOB.public)
    assert context.self_mask_key(SEED) == hkdf(SEED, SESSION, own)
    assert context.pairwise_mask_keys(ALICE, [BOB.public]) == [
        hkdf(ALICE.agree(BOB.public), SESSION, pairwise)
    ]


def test_a_key_under_another_name_gives_another_mask():
    alias = BOB.public[:31] + bytes([BOB.public[31] | 0x80])
    assert ALICE.agree(alias) == ALICE.agree(BOB.public)
    one, other = next(contexts()).pairwise_mask_keys(ALICE, [BOB.public, alias])
    assert one != other


def test_both_devices_derive_the_same_pairwise_key():
    context = next(contexts())
    pairs = list(itertools.combinations([ALICE, BOB, EVE], 2))
    derived = {context.pairwise_mask_keys(one, [other.public])[0] for one, other in pairs}
    assert derived == {context.pairwise_mask_keys(other, [one.public])[0] for one, other in pairs}
    assert len(derived) == 3


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
    named = {
        name: value
        for name, value in vars(labels).items()
        if name.isupper() and isinstance(value, bytes) and not name.startswith("_")
    }
    assert len(named) == len(set(named.values())) == 11
    assert all(value.startswith(b"deltafl/secagg/v1/") for value in named.values())
