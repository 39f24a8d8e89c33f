"""The transitions of the models are those of the code, no more and no fewer."""

import pytest
from model_tables import TABLES, moves_of, moves_of_code
from spin_models import MODELS

PARTIAL = ("unmasking.pml", "agreement.pml", "whole_slots.pml")
"""Models of a part of a device."""


@pytest.mark.parametrize("machine", TABLES)
def test_the_model_of_a_session_has_the_tables_of_the_code(machine):
    modelled = moves_of("session.pml", machine=machine)
    coded = moves_of_code(TABLES[machine])
    assert modelled - coded == set()
    assert coded - modelled == set()


@pytest.mark.parametrize("file", PARTIAL)
def test_a_model_of_a_part_makes_only_moves_of_the_code(file):
    modelled = moves_of(file, machine="MOVE")
    assert len(modelled) >= 4
    assert modelled <= moves_of_code(TABLES["MOVE"])
    assert moves_of(file, machine="SERVER") == set()


@pytest.mark.parametrize(
    ("old", "new", "machine"),
    [
        ("MOVE(D, ADVERTISED, RosterMessage, SHARED)", "skip", "MOVE"),
        ("MOVE(D, OPENED, Contribute, MASKED)", "MOVE(D, OPENED, Contribute, READY)", "MOVE"),
        ("SERVER(MASK, MaskedInput, MASK)", "SERVER(MASK, MaskedInput, UNMASK)", "SERVER"),
        ("SERVER(from, EndLastSlot, DONE)", "SERVER(from, EndLastSlot, READY)", "SERVER"),
    ],
)
def test_a_model_with_another_move_is_found(old, new, machine, tmp_path, monkeypatch):
    text = (MODELS / "session.pml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "session.pml").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr("model_tables.MODELS", tmp_path)
    modelled = moves_of("session.pml", machine=machine)
    assert modelled != moves_of_code(TABLES[machine])
