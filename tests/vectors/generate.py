"""Write the test vectors: `python tests/vectors/generate.py`, or `--check` that they are current.

Every value follows from fixed names and from `secagg`; nothing is drawn. What the files hold is in
README.md beside them.
"""

import argparse
import json
import sys
from pathlib import Path

import device_vectors
import message_vectors
import negative_vectors
import pedersen_vectors
import primitive_vectors
import round_lies
import round_vectors
import session_vectors
import signature_vectors

from deltafl.secagg.labels import VERSION

FOLDER = Path(__file__).parent
RENEW = "python tests/vectors/generate.py"

FILES = {
    "devices": (
        device_vectors.devices,
        "Device",
        "Conversations with one device: every message, and what it answers, ignores or refuses.",
    ),
    "commitments": (
        pedersen_vectors.commitments,
        "Primitives",
        "Generators, blindings, commitments to vectors, and what they open to.",
    ),
    "round_refusals": (
        round_lies.round_refusals,
        "Device in a round",
        "Lies of a server in a round, in the order of a device's checks, and each refusal's name.",
    ),
    "rounds": (
        round_vectors.rounds,
        "Device in a round",
        "Whole small rounds, every envelope and message byte for byte.",
    ),
    "searches": (
        round_vectors.searches,
        "Server in a round",
        "Searches that devices follow: from sums to questions, thresholds and tails.",
    ),
    "noises": (
        round_vectors.noises,
        "Noise",
        "Resolution, variance and bound of a device's share of the noise.",
    ),
    "contributions": (
        round_vectors.contributions,
        "Contributions",
        "What devices answer to queries and thresholds, before it is masked.",
    ),
    "ticks": (
        round_vectors.ticks,
        "Loss grid",
        "Losses and their ticks.",
    ),
    "envelopes": (
        round_vectors.envelopes,
        "Envelopes",
        "Every kind of envelope, its fields and its bytes.",
    ),
    "contexts": (
        round_vectors.contexts,
        "Context and binding",
        "Rounds at one or more levels: contexts, slots, bindings of questions.",
    ),
    "layouts": (
        round_vectors.layouts,
        "Layouts and slots",
        "Layouts, slots and contexts of rounds by every method.",
    ),
    "decoding": (
        primitive_vectors.decoding,
        "Recovery, and who lied",
        "Shares of one field element, some wrong: what is decoded, and which are named (indices).",
    ),
    "directories": (
        signature_vectors.directories,
        "Directory",
        "Lists of keys as people write them: what they say, or null where they are refused.",
    ),
    "dropouts": (
        session_vectors.dropouts,
        "Who may go on",
        "Whole sessions in which devices vanish, every message byte for byte.",
    ),
    "faults": (
        negative_vectors.faults,
        "Faults",
        "Devices that deviate, and whom the server drops for it, under which name.",
    ),
    "graph": (
        primitive_vectors.graphs,
        "Graph",
        "Neighbours and holders of shares, by roster position.",
    ),
    "identity": (
        primitive_vectors.identities,
        "Identities",
        "Ed25519 identities, what they sign, and fingerprints.",
    ),
    "key_schedule": (
        primitive_vectors.key_schedule,
        "Masks",
        "From secrets to the keys of masks, and commitments to secrets.",
    ),
    "labels": (
        primitive_vectors.packing_of_parts,
        "Packing and digests",
        "Injective packing, hashes under a label, and all labels.",
    ),
    "malformed": (
        message_vectors.malformed,
        "Encoding",
        "Bytes that no reader accepts, each as an edit of a valid message of messages.json.",
    ),
    "mask_expansion": (
        primitive_vectors.mask_expansion,
        "Keystream",
        "From keys to masks; digests are SHA-256 of the words, little-endian.",
    ),
    "messages": (
        message_vectors.messages,
        "Messages",
        "Every message, its fields and its bytes.",
    ),
    "packing": (
        primitive_vectors.ring_packing,
        "Ring and packing",
        "Ring elements of every width as bytes.",
    ),
    "parameters": (
        primitive_vectors.parameters,
        "Parameters' digest, tag, session id",
        "Canonical bytes, digest and tag of parameters; the session id that a roster gives.",
    ),
    "refusals": (
        negative_vectors.refusals,
        "Refusals",
        "Lies of a server that a device refuses for good, and the name of each refusal.",
    ),
    "links": (
        primitive_vectors.linking,
        "Sealed boxes",
        "Boxes between two devices, the link that they make, and a deposit.",
    ),
    "sessions": (
        session_vectors.sessions,
        "Order of draws",
        "Whole small sessions, every message byte for byte.",
    ),
    "shamir": (
        primitive_vectors.shamir_sharing,
        "Secret sharing",
        "Limbs, shares from stated randomness, Lagrange weights.",
    ),
    "signatures": (
        signature_vectors.signatures,
        "Signatures",
        "Signatures, also those about which verifiers disagree, and whether they are valid.",
    ),
    "whole_slots": (
        primitive_vectors.whole_slots,
        "Masks",
        "Masks of whole slots, bound to the members.",
    ),
    "thresholds": (
        primitive_vectors.thresholds,
        "Parameters",
        "Degree, threshold and smallest rosters for threat models.",
    ),
}
"""By file: what makes its cases, the section of the specification, what it holds."""


def render(value, indent=0):
    """JSON with sorted keys, an item a line; arrays of plain values stay on one line."""
    pad, inner = " " * indent, " " * (indent + 1)
    if isinstance(value, dict) and value:
        items = [
            f"{inner}{json.dumps(key)}: {render(value[key], indent + 1)}" for key in sorted(value)
        ]
        return "{\n" + ",\n".join(items) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [inner + render(item, indent + 1) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{pad}]"
    return json.dumps(value)


def generate():
    """The text of every file by its name."""
    texts = {}
    for name, (make, section, description) in FILES.items():
        content = {
            "description": description,
            "section": section,
            "version": VERSION,
            "cases": make(),
        }
        texts[f"{name}.json"] = render(content) + "\n"
    return texts


def stale(folder, texts):
    """Names of files in a folder that are not what they should be, that lack, or are too many."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in there.keys() | texts if there.get(name) != texts.get(name))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name stale files")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    options = parser.parse_args(arguments)
    texts = generate()
    names = stale(options.folder, texts)
    for name in names:
        print(f"{'stale' if options.check else 'written'}: {name}")
        if not options.check:
            path = options.folder / name
            if name in texts:
                path.write_text(texts[name], encoding="utf-8")
            else:
                path.unlink()
    if options.check and names:
        print(f"renew with: {RENEW}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
