"""`deltafl enrol`: makes a device's identity."""

import argparse
from pathlib import Path
from typing import Final

from deltafl.secagg import ClientId
from deltafl.secagg.identity import fingerprint
from deltafl.sim.errors import UserError
from deltafl.sim.net.identities import OwnIdentity, read_directory
from deltafl.sim.net.supernodes import SuperNodes, read_supernode_key, signed_line
from deltafl.sim.settings.given import add_flags

_DESCRIPTION: Final = """\
Make a device's identity, and print what the administrator adds to the federation's list.

The identity is a secret file on the device. Its public key goes on the list, which every device and
the server have a copy of. Whoever is on the list can take part; a line that is taken out revokes a
device. Read the fingerprint to the administrator by telephone, or compare it face to face: a list
that comes from the server alone would let it make up devices.
"""

_EXAMPLES: Final = """\
examples:
  deltafl enrol 7 --out device-7.identity
      make the identity of device 7
  deltafl enrol --show device-7.identity
      print its line and its fingerprint again
  deltafl enrol --list devices.txt
      print the fingerprint of a list; all copies must have the same
  deltafl enrol 7 --out device-7.identity --supernode-key node-7.key
      for a node of Flower's: have its SuperNode's key sign for the identity
  deltafl enrol --list devices.txt --supernodes supernodes.txt
      check these signatures, and print whose they are
"""


_FLAGS: Final = {
    "--out": ("FILE", "where the identity goes (device-ID.identity)", Path),
    "--supernode-key": ("FILE", "private key of its SuperNode, which signs for the identity", Path),
    "--supernodes": ("FILE", "with --list: check these signatures", Path),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "id",
        nargs="?",
        type=int,
        metavar="ID",
        help="the device's number in the federation, from 0",
    )
    what.add_argument("--show", type=Path, metavar="FILE", help="print about an identity")
    what.add_argument("--list", type=Path, metavar="FILE", help="print about a list of devices")
    add_flags(parser, _FLAGS)


def main(options: argparse.Namespace) -> int:
    """Make an identity, or show one; the exit code."""
    if options.supernodes is not None and options.list is None:
        raise UserError("--supernodes: give the list of devices as well, with --list")
    if options.list is not None:
        _show_list(options)
        return 0
    key = None if options.supernode_key is None else read_supernode_key(options.supernode_key)
    if options.show is not None:
        path, own = options.show, OwnIdentity.read(options.show)
    else:
        path = options.out or Path(f"device-{options.id}.identity")
        own = OwnIdentity.create(path, ClientId(options.id))
        print(f"The identity is in {path}. Keep it secret, and on this device.\n")
    print(f"The device's line in the list of devices:\n  {own.entry}")
    print(f"Its fingerprint, to compare with the administrator:\n  {_fingerprint(own.entry)}")
    if key is not None:
        print(f"Its line in the list of SuperNodes:\n  {signed_line(own, key)}")
    return 0


def _show_list(options: argparse.Namespace) -> None:
    listed = read_directory(options.list)
    print(f"{len(listed.keys)} devices; fingerprint of the list:\n  {listed.fingerprint()}")
    if options.supernodes is None:
        return
    supernodes = SuperNodes.read(options.supernodes, listed)
    print("Each is signed for by its SuperNode's key; these are the keys, as ssh-keygen -lf does:")
    for client, shown in supernodes.fingerprints():
        print(f"  device {client}: {shown}")


def _fingerprint(entry: str) -> str:
    return fingerprint(bytes.fromhex(entry.split()[1]))
