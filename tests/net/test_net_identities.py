"""Files of identities and lists."""

import os
import stat

import pytest

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.sim.errors import UserError
from deltafl.sim.net import enrol_cli
from deltafl.sim.net.identities import (
    DeviceList,
    OwnIdentity,
    alone,
    fingerprint_of,
    read_directory,
)


def test_an_identity_is_read_as_it_was_made(tmp_path):
    path = tmp_path / "a.identity"
    made = OwnIdentity.create(path, ClientId(7))
    assert OwnIdentity.read(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.entry == f"7 {made.identity.public.hex()}"
    assert TrustedKeys.parse(made.entry).accepts(ClientId(7), made.identity.public)


def test_an_identity_comes_from_the_randomness_that_is_given(tmp_path):
    made = OwnIdentity.create(tmp_path / "a", ClientId(0), lambda size: b"\7" * size)
    assert "07" * 32 in (tmp_path / "a").read_text()
    assert made == OwnIdentity.read(tmp_path / "a")


def test_an_identity_is_never_overwritten(tmp_path):
    path = tmp_path / "a.identity"
    made = OwnIdentity.create(path, ClientId(7))
    with pytest.raises(UserError, match="never overwritten"):
        OwnIdentity.create(path, ClientId(8))
    assert OwnIdentity.read(path) == made


@pytest.mark.parametrize("client", [-1, 2**32])
def test_an_id_out_of_range_is_refused(tmp_path, client):
    with pytest.raises(UserError, match="is not in"):
        OwnIdentity.create(tmp_path / "a", ClientId(client))
    assert not list(tmp_path.iterdir())


def test_an_identity_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "a.identity"
    OwnIdentity.create(path, ClientId(7))
    path.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        OwnIdentity.read(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "id 7\n",
        "id 07\nseed " + "0" * 64 + "\n",
        "id 4294967296\nseed " + "0" * 64 + "\n",
        "id 7\nseed " + "0" * 63 + "\n",
        "id 7\nseed " + "0" * 64 + "\n\n",
        "id 7\nseed " + "A" * 64 + "\n",
    ],
)
def test_other_files_are_no_identity(tmp_path, content):
    path = tmp_path / "a.identity"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match="no identity"):
        OwnIdentity.read(path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UserError, match="cannot be read"):
        OwnIdentity.read(tmp_path / "pipe")


@pytest.mark.parametrize("content", [b"7 abc\n", b"\xff\xfe", b"7 " + b"a" * 64 + b"\n7 x\n"])
def test_other_files_are_no_list(tmp_path, content):
    path = tmp_path / "devices.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="no list of devices"):
        read_directory(path)


def test_a_list_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_directory(tmp_path / "devices.txt")


def enrol(capsys, *arguments):
    import argparse

    parser = argparse.ArgumentParser()
    enrol_cli.add_arguments(parser)
    assert enrol_cli.main(parser.parse_args(arguments)) == 0
    return capsys.readouterr().out


def test_enrolment_prints_what_the_administrator_needs(tmp_path, capsys):
    path = tmp_path / "d.identity"
    made = enrol(capsys, "7", "--out", str(path))
    own = OwnIdentity.read(path)
    assert own.entry in made
    again = enrol(capsys, "--show", str(path))
    assert again in made
    (tmp_path / "devices.txt").write_text(own.entry + "\n")
    listed = enrol(capsys, "--list", str(tmp_path / "devices.txt"))
    assert TrustedKeys({own.client: own.identity.public}).fingerprint() in listed


def test_a_list_is_read_again_and_numbers_keep_their_keys(tmp_path):
    """Also those of devices that were removed, and after a restart."""
    path, known = tmp_path / "devices.txt", tmp_path / "known"
    keys = {ClientId(i): identity(bytes([i]) * 32).public for i in range(5)}

    def put(**changes):
        path.write_text(TrustedKeys({c: k for c, k in (keys | changes["of"]).items() if k}).dump())

    put(of={4: None})
    listed = DeviceList(path)
    listed.keep(known)
    put(of={0: None, 3: None})
    assert listed.read_again() == "3 devices are on the list: 1 new, 2 removed"
    assert set(listed.keys) == {1, 2, 4}
    assert listed.limit == 5
    for wrong, said in (
        ({3: identity(b"x" * 32).public}, "another key for device 3"),
        ({3: None, 9: keys[ClientId(3)]}, "a key another number"),
    ):
        put(of=wrong)
        with pytest.raises(UserError, match=said):
            listed.read_again()
        assert set(listed.keys) == {1, 2, 4}
        with pytest.raises(UserError, match=said):
            DeviceList(path).keep(known)
    path.write_text("")  # as programs do that are about to write
    for read in (listed.read_again, lambda: DeviceList(path)):
        with pytest.raises(UserError, match="no device is on the list"):
            read()
    assert set(listed.keys) == {1, 2, 4}
    put(of={})
    again = DeviceList(path)
    again.keep(known)
    assert fingerprint_of(again) == bytes.fromhex(TrustedKeys(keys).fingerprint())


def test_an_identity_is_used_by_one_process(tmp_path):
    path = tmp_path / "own.identity"
    OwnIdentity.create(path, ClientId(3))
    with alone(path), pytest.raises(UserError, match="in use by another process"), alone(path):
        pass
    with alone(path):
        pass
