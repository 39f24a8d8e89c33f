"""What headers keep of vectors and boxes is cut out as it stands in the whole message."""

from collections import Counter

import pytest
from honest_runs import MESSAGE, edited, in_mode, play_honestly

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.fields import random_strings
from deltafl.sim.inspect.audit.kept import kept_strings
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.transcript import Message, read_transcript


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play_honestly(
        tmp_path_factory.mktemp("run"), rounds=1, length=240, federation={"theta": 1}
    )


def messages(path):
    """The messages of devices, with the parameters of their sessions."""
    decoder = Decoder()
    for record in read_transcript(path):
        if isinstance(record, Message):
            seen = decoder.decode(record)
            if not record.sent:
                yield seen, decoder.params[seen.content.tag]


def test_kept_strings_are_those_of_the_whole_message(run, tmp_path):
    in_mode(run.transcript, tmp_path / "t.bin", "headers")
    names = set()
    for (whole, _), (cut, params) in zip(
        messages(run.transcript), messages(tmp_path / "t.bin"), strict=True
    ):
        known = {}
        for name, rows in random_strings(whole.content.message):
            known.setdefault(name, []).extend(row.tobytes() for row in rows)
        packed = getattr(whole.content.message, "packed", b"")
        counts = Counter()
        for name, rows in kept_strings(cut, params):
            names.add(name.split(" ")[0])
            for row in rows:
                if name == "digests of messages":
                    assert row.tobytes() == whole.record.sha256
                elif name.endswith("of vectors"):
                    assert row.tobytes() == packed[: len(row)]
                elif name.endswith("kept bytes of boxes"):
                    assert any(
                        text.startswith(row.tobytes()) for text in known["contents of boxes"]
                    )
                else:
                    assert row.tobytes() == known[name][counts[name]]
                counts[name] += 1
    assert names == {"digests", "first", "commitments", "nonces", "contents", "last"}


def test_text_in_place_of_digests_is_found(run, tmp_path):
    in_mode(run.transcript, tmp_path / "t.bin", "headers")

    def write(kind, fields):
        if kind == MESSAGE and not fields[1] and fields[3] > 256:
            fields[4] = b"loss 2.3025, samples 31, label 7".ljust(32)[:32]

    edited(tmp_path / "t.bin", tmp_path / "text.bin", write)
    found = {
        one: {f.rule for f in audit(tmp_path / one, Options(min_cohort=5)).findings}
        for one in ("t.bin", "text.bin")
    }
    assert "fields.not-random" in found["text.bin"]
    assert "fields.not-random" not in found["t.bin"]
