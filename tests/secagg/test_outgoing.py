import pytest
from parties import Parties, make_params

from deltafl.secagg import ClientId
from deltafl.secagg.messages import Letters


def test_letters_are_a_mapping_of_what_is_written():
    letters = Letters([ClientId(7), ClientId(2)], lambda client: b"to %d" % client)
    assert list(letters) == [7, 2]
    assert len(letters) == 2
    assert dict(letters) == {7: b"to 7", 2: b"to 2"}
    assert 3 not in letters
    with pytest.raises(KeyError):
        letters[ClientId(3)]


def test_a_letter_is_written_when_it_is_read_and_no_sooner():
    written = []
    letters = Letters([ClientId(1), ClientId(2)], lambda client: bytes(written.append(client) or 1))
    assert written == []
    for client in letters:
        assert written == list(range(1, client))
        assert letters[client] == b"\0"


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_to_be_sent_does_not_change_while_the_session_goes_on(whole):
    """A letter that is read in a later slot is still about its own."""
    slots = ((4, 16, whole), (3, 40), (2, 8, whole))
    parties = Parties(make_params(6, threshold=4, slots=slots))
    said = [(pending, dict(pending)) for pending in parties.steps()]
    assert all(dict(letters) == at_once for letters, at_once in said)
    assert sum(isinstance(letters, Letters) for letters, _ in said) >= 2
