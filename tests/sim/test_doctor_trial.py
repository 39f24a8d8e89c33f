from deltafl.secagg import prg
from deltafl.secagg.errors import SecAggError
from deltafl.sim.cohort.masks import Masks
from deltafl.sim.doctor import trial
from deltafl.sim.doctor.findings import State
from deltafl.sim.doctor.trial import secure_sum, used


def test_a_sum_under_masks_is_right():
    (found,) = secure_sum()
    assert (found.state, found.mend) == (State.GOOD, "")


def test_masks_that_do_not_cancel_are_found():
    def wrong(total, added, subtracted):
        prg.add_masks(total, added, [*subtracted[1:], *added[:1]])

    (found,) = secure_sum(Masks(wrong, 0, "a fault"))
    assert (found.state, found.text) == (State.FAILED, "it is wrong: masks do not cancel")


def test_a_session_that_ends_without_a_sum_is_found(monkeypatch):
    def ended(*_arguments, **_options):
        raise SecAggError("too few shares")

    monkeypatch.setattr(trial, "run_session", ended)
    (found,) = secure_sum()
    assert (found.state, found.text) == (State.FAILED, "there is none: too few shares")
    assert found.mend


def test_it_says_what_the_quickstart_would_use():
    backend, masks = used()
    assert backend.text.partition(" ")[0] in ("reference", "processes", "cuda")
    assert masks.text.startswith("by ")
