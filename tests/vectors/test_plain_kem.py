"""The boxes of the vectors and those of the library open each other's way."""

import plain_kem
import pytest
from cryptography.exceptions import InvalidTag

from deltafl.secagg import keys

SECRETS = [bytes([number]) * 32 for number in range(4)]


@pytest.mark.parametrize("secret", SECRETS, ids=bytes.hex)
def test_boxes_open_both_ways(secret):
    pair = keys.recipient(secret)
    assert pair.public == plain_kem.public_key(secret)
    content, info = secret * 3, b"info"
    assert pair.open(plain_kem.seal(content, pair.public, info), info) == content
    assert plain_kem.unseal(secret, keys.seal(content, pair.public, info), info) == content


def test_another_info_key_or_box_does_not_open():
    public = plain_kem.public_key(SECRETS[0])
    box = plain_kem.seal(b"content", public, b"info")
    assert plain_kem.unseal(SECRETS[0], box, b"info") == b"content"
    for secret, data, info in (
        (SECRETS[1], box, b"info"),
        (SECRETS[0], box, b"other"),
        (SECRETS[0], bytes([box[0] ^ 1]) + box[1:], b"info"),
        (SECRETS[0], box[:1100] + bytes([box[1100] ^ 1]) + box[1101:], b"info"),
    ):
        with pytest.raises(InvalidTag):
            plain_kem.unseal(secret, data, info)
        assert keys.recipient(secret).open(data, info) is None
