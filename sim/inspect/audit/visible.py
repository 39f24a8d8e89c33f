"""What everybody can see of a session: the first that an attacker would try as a secret."""

from collections.abc import Iterator

from deltafl.sim.inspect.audit.field_values import numbers_of
from deltafl.sim.inspect.audit.views import SessionView


def of_session(session: SessionView) -> tuple[bytes, ...]:
    """What is the same for all devices."""
    params = session.params
    return params.tag, params.digest, params.context, params.graph_seed, session.session_id


def visible_in(session: SessionView) -> Iterator[bytes]:
    """Parameters, devices and keys of a session."""
    yield from of_session(session)
    for device, message, _ in session.advertised():
        yield from numbers_of(device)
        yield from (message.sealing_key, *message.mask_keys)
        if message.credential is not None:
            yield bytes(message.credential.identity)
