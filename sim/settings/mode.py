"""Of which rounds a transcript keeps the messages whole: none, all, or some."""

import re
from typing import Final

MODE: Final = r"headers|full|every=[1-9][0-9]{0,8}"
"""What a mode is: "headers", "full" or "every=N", N from 1 to 999999999 in plain digits."""


def is_mode(text: str) -> bool:
    """Whether a text is a mode.

    >>> is_mode("every=20"), is_mode("every=0"), is_mode("some")
    (True, False, False)
    """
    return re.fullmatch(MODE, text) is not None


def keeps_whole(mode: str, round_number: int) -> bool:
    """Whether a transcript in this mode keeps the messages of a round whole."""
    if mode.startswith("every="):
        return round_number % int(mode.removeprefix("every=")) == 0
    return mode == "full"
