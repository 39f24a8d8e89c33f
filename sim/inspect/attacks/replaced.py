"""Switches off a defence: replaces a function by another one for a while.

This demonstrates what an undefended system gives away. It is not a setting: no configuration and
no message does it. Where a subclass of a device can leave out one check, that is
done instead. The replacement holds for the whole process, so attacks are played one at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(owner: object, name: str, substitute: object, *, unless: bool) -> Iterator[None]:
    """Replace an attribute by a substitute, and restore the attribute at the end.

    Args:
        owner: A module or a class that defines the attribute itself.
        name: Of the attribute.
        substitute: What is there meanwhile.
        unless: Where true, nothing is replaced: the defence stays on.
    """
    if unless:
        yield
        return
    original = vars(owner)[name]  # as it lies there: a class method stays one
    setattr(owner, name, substitute)
    try:
        yield
    finally:
        setattr(owner, name, original)
