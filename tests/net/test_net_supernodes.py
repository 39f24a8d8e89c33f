"""Signatures of SuperNodes for the identities of their devices."""

import shutil
import subprocess
from base64 import b64decode, b64encode
from contextlib import suppress
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given
from hypothesis import strategies as st
from supernode_keys import PEM, enrolled, write_key

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.net.identities import OwnIdentity, read_directory
from deltafl.sim.net.supernodes import (
    SuperNodes,
    read_supernode_key,
    signed_line,
)


class Public:
    """An identity of which somebody else knows only the public key."""

    def __init__(self, client, public):
        self.client = client
        self.identity = SimpleNamespace(public=public, sign=identity(bytes(32)).sign)


def enrolled_alone(folder, client):
    """The line of a SuperNode in another federation."""
    folder.mkdir()
    enrolled(folder, [client])
    return (folder / "supernodes.txt").read_text().split("\n")[1]


@pytest.fixture
def lists(tmp_path):
    keys = enrolled(tmp_path, [7, 2])
    devices = read_directory(tmp_path / "devices.txt")
    return keys, devices, (tmp_path / "supernodes.txt").read_text().split("\n")[1:3]


def test_a_supernodes_public_key_says_which_device_it_is(lists, tmp_path):
    keys, devices, _ = lists
    read = SuperNodes.read(tmp_path / "supernodes.txt", devices)
    assert list(read.keys) == [2, 7]
    assert [read.device_of(key) for key in keys] == [7, 2]


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"no key",
        ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(*PEM),
        ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(*PEM),
    ],
)
def test_other_keys_are_nobodys(lists, key):
    _, devices, lines = lists
    assert SuperNodes.parse("\n".join(lines), devices).device_of(key) is None


def test_a_key_of_a_curve_that_openssh_has_not_is_nobodys(lists):
    _, devices, lines = lists
    key = ec.generate_private_key(ec.SECP256K1()).public_key().public_bytes(*PEM)
    assert SuperNodes.parse("\n".join(lines), devices).device_of(key) is None


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_any_curve_that_flower_takes(tmp_path, curve):
    (key,) = enrolled(tmp_path, [0], curve)
    devices = read_directory(tmp_path / "devices.txt")
    assert SuperNodes.read(tmp_path / "supernodes.txt", devices).device_of(key) == 0


def test_one_key_signs_for_one_identity_of_one_device(lists, tmp_path):
    """A line of another federation, with the same key and id, is refused here."""
    _, devices, lines = lists
    other = OwnIdentity.create(tmp_path / "other.identity", ClientId(7))
    elsewhere = TrustedKeys({**devices.keys, other.client: other.identity.public})
    with pytest.raises(UserError, match="has not signed for the identity of device 7"):
        SuperNodes.parse("\n".join(lines), elsewhere)


def compressed(lines):
    """The key as a compressed point, which is another encoding of it."""
    first = lines[0].split()
    blob = b64decode(first[2])
    point = bytes([2 + (blob[-1] & 1)]) + blob[-96:-48]
    short = blob[: -97 - 4] + len(point).to_bytes(4, "big") + point
    return [" ".join([*first[:2], b64encode(short).decode(), *first[3:]]), lines[1]]


def swapped_ids(lines):
    first, second = (line.split() for line in lines)
    return [" ".join([second[0], *first[1:]]), " ".join([first[0], *second[1:]])]


def swapped_keys(lines):
    first, second = (line.split() for line in lines)
    return [" ".join([*first[:1], *second[1:3], *first[3:]]), lines[1]]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (swapped_ids, "has not signed"),
        (swapped_keys, "has not signed"),
        (lambda lines: lines[:1], "no SuperNode's key has signed for device 2"),
        (lambda lines: [*lines, lines[0]], "line 3: device 7 has a line already"),
        (lambda lines: [lines[0] + "00", lines[1]], "line 1"),
        (lambda lines: [lines[0][:-2], lines[1]], "line 1"),
        (lambda lines: [lines[0].rpartition(" ")[0], lines[1]], "expected ID"),
        (compressed, "expected ID"),
        (lambda lines: [lines[0] + " more", lines[1]], "expected ID"),
        (lambda lines: ["9" + lines[0][1:], lines[1]], "device 9 is not on the list"),
        (lambda lines: ["0" + lines[0], lines[1]], "expected ID"),
        (lambda lines: [lines[0].replace("nistp384", "nistp256"), lines[1]], "expected ID"),
        (lambda lines: ["7 ssh-rsa AAAA 00", lines[1]], "expected ID"),
        (lambda lines: [lines[0] + " " * 2000, lines[1]], "expected ID"),
    ],
)
def test_lists_in_which_something_is_wrong_are_refused(lists, change, complaint):
    _, devices, lines = lists
    with pytest.raises(UserError, match=complaint):
        SuperNodes.parse("\n".join(change(lines)), devices)


def test_no_supernode_signs_for_the_identity_of_another(lists, tmp_path):
    """It has not got it. Else it would be invited in the other's place."""
    _, devices, lines = lists
    other = enrolled_alone(tmp_path / "other", 7)
    _, kind, blob, by_supernode, _ = other.split()
    key = read_supernode_key(tmp_path / "other" / "node-7.key")
    forged = signed_line(Public(ClientId(7), devices.keys[ClientId(7)]), key).split()
    assert forged[1:3] == [kind, blob]
    for last in (lines[0].split()[4], forged[4], by_supernode):
        line = " ".join([*forged[:4], last])
        with pytest.raises(UserError, match="has not signed for this SuperNode's key"):
            SuperNodes.parse("\n".join([line, lines[1]]), devices)


def test_a_supernode_is_one_device(tmp_path):
    key = ec.generate_private_key(ec.SECP384R1())
    both = [OwnIdentity.create(tmp_path / f"{i}", ClientId(i)) for i in range(2)]
    devices = TrustedKeys({one.client: one.identity.public for one in both})
    text = "\n".join(signed_line(one, key) for one in both)
    with pytest.raises(UserError, match="line 1 has the same SuperNode's key"):
        SuperNodes.parse(text, devices)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    devices = TrustedKeys({})
    with suppress(UserError):
        assert SuperNodes.parse(text, devices).keys == {}


def test_a_signature_is_the_same_every_time(lists, tmp_path):
    own = OwnIdentity.read(tmp_path / "device-7.identity")
    assert signed_line(own, read_supernode_key(tmp_path / "node-7.key")) == lists[2][0]


def test_enrolling_signs_for_a_device(tmp_path, capsys):
    key = write_key(tmp_path / "node.key", ec.generate_private_key(ec.SECP384R1()))
    out = tmp_path / "device.identity"
    assert main(["enrol", "5", "--out", str(out), "--supernode-key", str(key)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.split("\n")]
    entry = next(line for line in lines if line.startswith("5 ") and "ecdsa" not in line)
    signed = next(line for line in lines if line.startswith("5 ecdsa"))
    assert list(SuperNodes.parse(signed, TrustedKeys.parse(entry)).keys) == [5]

    (tmp_path / "devices.txt").write_text(entry)
    (tmp_path / "supernodes.txt").write_text(signed)
    files = ["--list", str(tmp_path / "devices.txt")]
    files += ["--supernodes", str(tmp_path / "supernodes.txt")]
    assert main(["enrol", *files]) == 0
    assert "device 5: SHA256:" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_what_is_no_supernodes_key_is_refused(tmp_path, content, capsys):
    path = tmp_path / "node.key"
    if content is None:
        write_key(path, ed25519.Ed25519PrivateKey.generate())
    else:
        path.write_bytes(content)
    out = tmp_path / "device.identity"
    assert main(["enrol", "5", "--out", str(out), "--supernode-key", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_fingerprints_are_those_of_openssh(lists, tmp_path):
    _, devices, _ = lists
    read = SuperNodes.read(tmp_path / "supernodes.txt", devices)
    (tmp_path / "key.pub").write_text(read.keys[ClientId(7)] + "\n")
    shown = subprocess.run(  # noqa: S603 (a key of this test)
        ["ssh-keygen", "-lf", str(tmp_path / "key.pub")],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(read.fingerprints())[ClientId(7)] in shown.stdout
