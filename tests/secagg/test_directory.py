import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.secagg import directory
from deltafl.secagg.directory import FirstUse, TrustedKeys
from deltafl.secagg.errors import UsageError

KEYS = [bytes([i]) * 32 for i in range(10)]
HEX = [key.hex() for key in KEYS]
# More than a device may have: ids of either end, keys of a small pool and of the whole range.
ids = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**32 - 1]))
lists = st.dictionaries(ids, st.binary(min_size=32, max_size=32), max_size=8).filter(
    lambda keys: len(set(keys.values())) == len(keys)
)


def test_a_list_accepts_exactly_what_it_says():
    trusted = TrustedKeys({3: KEYS[3], 4: KEYS[4]})
    assert trusted.accepts(3, KEYS[3])
    assert trusted.accepts(4, KEYS[4])
    assert not trusted.accepts(3, KEYS[4])  # somebody else's
    assert not trusted.accepts(3, KEYS[5])
    assert not trusted.accepts(5, KEYS[3])
    assert not trusted.accepts(5, KEYS[5])
    assert not trusted.accepts(3, KEYS[3][:31])
    assert not TrustedKeys({}).accepts(0, KEYS[0])


@pytest.mark.slow
@given(keys=lists)
def test_parse_undoes_dump(keys):
    trusted = TrustedKeys(keys)
    text = trusted.dump()
    assert TrustedKeys.parse(text) == trusted
    assert TrustedKeys.parse(text).dump() == text
    assert dict(TrustedKeys.parse(text).keys) == keys


@pytest.mark.slow
@given(keys=lists.filter(lambda keys: len(keys) > 1), shuffle=st.randoms())
def test_the_order_of_a_list_does_not_matter(keys, shuffle):
    lines = TrustedKeys(keys).dump().splitlines()
    shuffle.shuffle(lines)
    again = TrustedKeys.parse("\n".join(lines))
    assert again.dump() == TrustedKeys(keys).dump()
    assert again.fingerprint() == TrustedKeys(keys).fingerprint()


@pytest.mark.slow
@given(first=lists, second=lists)
def test_different_lists_have_different_fingerprints(first, second):
    one, other = TrustedKeys(first), TrustedKeys(second)
    assert (one.fingerprint() == other.fingerprint()) == (first == second)


def test_a_fingerprint_depends_on_the_keys_and_not_on_the_ids_alone():
    fingerprints = {TrustedKeys({1: key}).fingerprint() for key in KEYS}
    assert len(fingerprints) == len(KEYS) > 1


def test_the_dump_is_one_line_a_device_sorted_by_id():
    dumped = TrustedKeys({10: KEYS[1], 9: KEYS[2]}).dump()
    assert dumped == f"9 {HEX[2]}\n10 {HEX[1]}\n"
    assert TrustedKeys({}).dump() == ""


def test_fingerprints_are_sixteen_groups_of_four_hex_digits():
    groups = TrustedKeys({1: KEYS[1]}).fingerprint().split(" ")
    assert [len(group) for group in groups] == [4] * 16
    assert len(bytes.fromhex("".join(groups))) == 32


def test_comments_blank_lines_spaces_and_capitals_are_read_over():
    text = f"# all devices\r\n\r\n \t\n 0\t{HEX[0]} # the first\r\n\n4294967295   {'AB' * 32}#x"
    assert TrustedKeys.parse(text) == TrustedKeys({0: KEYS[0], 2**32 - 1: b"\xab" * 32})
    assert TrustedKeys.parse("") == TrustedKeys.parse("# nobody\n") == TrustedKeys({})


@pytest.mark.parametrize(
    "line",
    [
        "1",
        HEX[1],
        f"1 {HEX[1][:-2]}",
        f"1 {HEX[1]}00",
        f"1 {HEX[1][:-1]}g",
        f"1 0x{HEX[1][2:]}",
        f"1 {HEX[1][:32]} {HEX[1][32:]}",
        f"1,{HEX[1]}",
        f"1{HEX[1]}",
        f"-1 {HEX[1]}",
        f"+1 {HEX[1]}",
        f"01 {HEX[1]}",
        f"1_0 {HEX[1]}",
        f"a {HEX[1]}",
        f"\u0663 {HEX[1]}",  # a digit, and to int() too
        f"1\u00a0{HEX[1]}",
        f"\u00a01 {HEX[1]}",
        f"4294967296 {HEX[1]}",
        f"{10**30} {HEX[1]}",
        f"1 {HEX[1]} phone",
        f"1 {HEX[1]}\x0b2 {HEX[2]}",
    ],
)
def test_other_lines_are_refused_and_named(line):
    text = f"# devices\n7 {HEX[7]}\n{line}\n8 {HEX[8]}"
    with pytest.raises(UsageError, match=r"^line 3: expected a device id .* 64 hex digits$"):
        TrustedKeys.parse(text)


def test_repetitions_are_refused_with_both_lines():
    first = f"\n1 {HEX[1]}\n2 {HEX[2]}\n"
    with pytest.raises(UsageError, match=r"^line 4: device 1 is in line 2 already"):
        TrustedKeys.parse(f"{first}1 {HEX[3]}")
    with pytest.raises(UsageError, match=r"^line 4: device 1 is in line 2 already"):
        TrustedKeys.parse(f"{first}1 {HEX[1]}")
    with pytest.raises(UsageError, match=r"^line 4: the key is in line 3 already"):
        TrustedKeys.parse(f"{first}3 {HEX[2].upper()}")
    assert len(TrustedKeys.parse(f"{first}3 {HEX[3]}").keys) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({-1: KEYS[1]}, "device id -1 is not in"),
        ({2**32: KEYS[1]}, "device id 4294967296 is not in"),
        ({1: KEYS[1][:31]}, "device 1 has 31 bytes, not 32"),
        ({1: KEYS[1] + b"\0"}, "device 1 has 33 bytes, not 32"),
        ({1: KEYS[1], 2: KEYS[1]}, "devices 1 and 2 have one and the same key"),
    ],
)
def test_impossible_lists_are_refused(keys, message):
    with pytest.raises(UsageError, match=message):
        TrustedKeys(keys)


def shown(learner, client, key):
    """Whether a directory accepts a key, which it then learns."""
    accepted = learner.accepts(client, key)
    if accepted:
        learner.learn({client: key})
    return accepted


def test_lists_are_bounded(monkeypatch):
    monkeypatch.setattr(directory, "MAX_DEVICES", 2)
    two = {1: KEYS[1], 2: KEYS[2]}
    assert TrustedKeys.parse(TrustedKeys(two).dump()) == TrustedKeys(two)
    with pytest.raises(UsageError, match="3 devices in a directory of at most 2"):
        TrustedKeys({**two, 3: KEYS[3]})
    with pytest.raises(UsageError, match="line 3: a directory has at most 2 devices"):
        TrustedKeys.parse(TrustedKeys(two).dump() + f"3 {HEX[3]}\nnot even read")
    learner = FirstUse(TrustedKeys(two))
    assert not shown(learner, 3, KEYS[3])
    assert learner.pinned() == TrustedKeys(two)


def test_later_changes_to_the_mapping_do_not_reach_the_list():
    keys = {1: KEYS[1]}
    trusted = TrustedKeys(keys)
    keys[1] = KEYS[2]
    assert trusted.accepts(1, KEYS[1])
    assert not trusted.accepts(1, KEYS[2])


def test_first_use_keeps_to_the_first_key():
    learner = FirstUse()
    assert shown(learner, 1, KEYS[1])
    assert shown(learner, 1, KEYS[1])
    assert not shown(learner, 1, KEYS[2])
    assert shown(learner, 1, KEYS[1])
    assert shown(learner, 2, KEYS[2])  # a refused key was not remembered for anybody


def test_first_use_refuses_one_key_under_two_ids():
    learner = FirstUse()
    assert shown(learner, 1, KEYS[1])
    assert not shown(learner, 2, KEYS[1])
    assert shown(learner, 2, KEYS[2])


@pytest.mark.parametrize(
    ("client", "key"), [(-1, KEYS[1]), (2**32, KEYS[1]), (1, b""), (1, KEYS[1][:31])]
)
def test_first_use_does_not_learn_what_is_no_id_or_key(client, key):
    learner = FirstUse()
    assert not shown(learner, client, key)
    assert learner.pinned() == TrustedKeys({})
    assert shown(learner, 1, KEYS[1])


@pytest.mark.slow
@given(claims=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KEYS[:4])), max_size=12))
def test_first_use_accepts_what_its_pinned_list_accepts(claims):
    learner = FirstUse()
    answers = [shown(learner, client, key) for client, key in claims]
    pinned = learner.pinned()
    assert answers == [pinned.accepts(client, key) for client, key in claims]


def test_first_use_goes_on_from_a_saved_list():
    learner = FirstUse(TrustedKeys({1: KEYS[1]}))
    assert not shown(learner, 1, KEYS[2])
    assert not shown(learner, 2, KEYS[1])
    assert shown(learner, 1, KEYS[1])
    assert shown(learner, 2, KEYS[2])
    assert learner.pinned() == TrustedKeys({1: KEYS[1], 2: KEYS[2]})


def test_pinned_is_a_copy():
    learner = FirstUse()
    before = learner.pinned()
    assert shown(learner, 1, KEYS[1])
    assert not before.accepts(1, KEYS[1])


def test_first_use_does_not_catch_a_server_that_lies_from_the_first_contact():
    """Why it is for experiments: the true key comes too late."""
    learner = FirstUse()
    assert shown(learner, 1, KEYS[9])
    assert not shown(learner, 1, KEYS[1])


def test_to_ask_changes_nothing():
    learner = FirstUse()
    assert learner.accepts(1, KEYS[1])
    assert learner.accepts(1, KEYS[2])
    assert learner.accepts(2, KEYS[1])
    assert learner.pinned() == TrustedKeys({})


def test_of_keys_that_contradict_each_other_or_what_is_known_the_first_are_learnt():
    learner = FirstUse(TrustedKeys({1: KEYS[1]}))
    learner.learn({2: KEYS[2], 3: KEYS[2], 1: KEYS[3], 4: KEYS[1], 5: KEYS[5]})
    assert learner.pinned() == TrustedKeys({1: KEYS[1], 2: KEYS[2], 5: KEYS[5]})


def test_a_closed_list_learns_nothing():
    trusted = TrustedKeys({1: KEYS[1]})
    trusted.learn({2: KEYS[2]})
    assert trusted == TrustedKeys({1: KEYS[1]})
