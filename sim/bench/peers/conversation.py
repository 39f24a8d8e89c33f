"""How a party is told what to do: lines on its standard input, answered by lines of JSON.

    ready                     <- {"versions": {"torch": "2.13.0"}, "how": "two processes"}
    round                     -> plays one round                  <- {"seconds": 1.25}
    model PATH                -> writes the model, float32 .npy   <- {"model": PATH}
    (end of input)            -> ends

A party waits in `read`, so that it takes no time from the others. Whatever libraries print goes to
standard error, and their children cannot read the commands.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

GetModel = Callable[[], npt.NDArray[np.float32]]


class Conversation:
    """The party's end; takes standard input and output for itself."""

    def __init__(self) -> None:
        self._commands = os.fdopen(os.dup(0), "r")
        self._answers = os.fdopen(os.dup(1), "w")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)

    def answer(self, fields: Mapping[str, object]) -> None:
        """Write one line."""
        self._answers.write(json.dumps(fields) + "\n")
        self._answers.flush()

    def is_asked_for_a_round(self, model: GetModel) -> bool:
        """Wait for the next round; False when there is none.

        Args:
            model: gives the model as it stands, should it be asked for meanwhile.
        """
        for line in self._commands:
            command, _, argument = line.strip().partition(" ")
            if command == "round":
                return True
            if command != "model":
                raise ValueError(f"command {line!r} is neither 'round' nor 'model PATH'")
            np.save(Path(argument), model())
            self.answer({"model": argument})
        return False

    def serve(self, play: Callable[[], None], model: GetModel) -> None:
        """Play rounds until there is none to play, and answer with the seconds of each."""
        while self.is_asked_for_a_round(model):
            start = time.perf_counter()
            play()
            self.answer({"seconds": time.perf_counter() - start})
