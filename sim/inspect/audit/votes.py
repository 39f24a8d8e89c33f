"""Whether answers to a search were proved to be valid, checked again as a server does.

Whoever has the messages of a session can do so: a proof needs no secret to be checked.
"""

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.ballots import admits
from deltafl.protocol.quantile.search import Query
from deltafl.secagg import pedersen
from deltafl.secagg.openings import Commitment
from deltafl.sim.inspect.audit.proved import signer_of
from deltafl.sim.inspect.audit.views import SessionView, SlotView


def has_proofs(session: SessionView) -> bool:
    """Whether answers of a session come with proofs."""
    return any(spec.proof_size for spec in session.params.slots)


def unproved(session: SessionView, device: int) -> frozenset[int]:
    """The slots in which a device sent an answer that it had not proved to be valid.

    Answers that cannot be checked, because the transcript does not hold what it takes, are not
    among them.

    Args:
        session: A session, of all its levels.
        device: A device.
    """
    signer, position = signer_of(session, device), session.positions.get(device)
    if session.levels is None or signer is None or position is None:
        return frozenset()
    weights, found = dict[int, bytes](), set[int]()
    for level, config in enumerate(session.levels.rounds):
        first = session.levels.first_slot(level)
        for index in range(first, first + config.num_query_slots):
            slot = session.slots.get(index)
            context = None if slot is None else session.slot_context(slot)
            if slot is None or context is None or device not in slot.proofs:
                continue
            point = slot.committed[device][: pedersen.COMMITMENT_SIZE]
            commitment = Commitment(context, position, signer, point)
            is_first = index == first
            if not is_first and position not in weights:
                continue  # the message that the weight is in was not recorded
            if not _is_proved(config, slot, weights, commitment, slot.proofs[device], is_first):
                found.add(index)
    return frozenset(found)


def _is_proved(
    config: RoundConfig,
    slot: SlotView,
    weights: dict[int, bytes],
    commitment: Commitment,
    proof: bytes,
    is_first: bool,
) -> bool:
    query = slot.question
    return isinstance(query, Query) and admits(
        config.search_config, query, weights, commitment, proof, is_first=is_first
    )
