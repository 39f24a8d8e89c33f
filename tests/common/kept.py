"""How much an object keeps: the size of all that can be reached from it."""

import gc
import sys
from types import FunctionType, ModuleType

_NOT_ITS_OWN = type | ModuleType | FunctionType


def kept_bytes(*things: object, beside: tuple[object, ...] = ()) -> int:
    """Bytes of the things and of all that they refer to, each counted once.

    Args:
        things: Where to start.
        beside: What is not counted, nor what only it refers to.
    """
    seen = {id(thing) for thing in beside}
    stack, total = list(things), 0
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, _NOT_ITS_OWN):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        stack.extend(gc.get_referents(thing))
    return total
