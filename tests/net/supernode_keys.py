"""Keys of SuperNodes, and devices for which they have signed."""

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.supernodes import signed_line

PEM = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo


def write_key(path, key):
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    return path


def enrolled(folder, ids, curve=ec.SECP384R1):
    """Devices with identities, and a SuperNode's key for each; their lists, in files.

    Returns:
        The public keys of the SuperNodes, in PEM, in the order of the ids.
    """
    keys, lines, entries = [], [], {}
    for i in ids:
        key = ec.generate_private_key(curve())
        write_key(folder / f"node-{i}.key", key)
        own = OwnIdentity.create(folder / f"device-{i}.identity", ClientId(i))
        lines.append(signed_line(own, key))
        entries[own.client] = own.identity.public
        keys.append(key.public_key().public_bytes(*PEM))
    (folder / "devices.txt").write_text(TrustedKeys(entries).dump())
    (folder / "supernodes.txt").write_text("# who is who\n" + "\n".join(lines) + "\n")
    return keys
