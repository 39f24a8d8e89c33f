"""Servers that choose which signatures they show to whom."""

from dataclasses import replace

from leaks import leak
from leaks_by_devices import UPDATE, VICTIM
from staged_runs import ActiveStage, Edit, Kind


def signatures_of(edit: Edit, slot: int) -> dict[int, bytes]:
    """All that came, by position."""
    ids = edit.run.stage.ids
    signed = edit.find(1, Kind.SIGNATURE, slot=slot)
    return {ids.index(one.peer): edit.message(one).signature for one in signed}


def choose(edit: Edit, kind: Kind, slot: int, choice) -> None:
    """Show a device other signatures, by what it was shown and all that came."""
    (shown,) = edit.find(1, kind, slot=slot, peer=VICTIM)
    message = edit.message(shown)
    came = signatures_of(edit, slot)
    chosen = choice(sorted(message.signatures), sorted(came))
    edit.put_message(shown, replace(message, signatures={p: came[p] for p in chosen}))


def with_the_last_for_the_first(shown, came):
    return sorted({*shown[1:], came[-1]})


def all_of_them(_shown, came):
    return came


@leak("lists.chosen-signatures", stage=ActiveStage)
def a_request_with_signatures_of_the_server_s_choice(edit):
    choose(edit, Kind.REQUEST, UPDATE, with_the_last_for_the_first)


@leak("lists.chosen-signatures", stage=ActiveStage)
def a_request_with_all_signatures(edit):
    choose(edit, Kind.REQUEST, UPDATE, all_of_them)
