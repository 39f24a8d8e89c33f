"""The plain peer: the textbook loop, in as many processes of one thread as there are cores.

`python -m sim.bench.peers.plain FOLDER CORES` starts the workers (`plain_worker`) and deals the
clients among them. In a round every worker is sent the model, trains its clients one after another,
and sends back the sum of their models, weighted by samples; the parent divides.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np

from sim.bench.peers.conversation import Conversation
from sim.bench.peers.tasks import HEADER_BYTES, Federation


def main(folder: Path, cores: int) -> None:
    """Play rounds as the conversation asks."""
    conversation = Conversation()
    federation = Federation.load(folder)
    count = min(cores, federation.task.clients)
    model, weight = np.array(federation.model), federation.y.size
    workers = [_start(folder, index, count) for index in range(count)]
    round_index = 0

    def play() -> None:
        nonlocal model, round_index
        for worker in workers:
            _pipe(worker.stdin).write(round_index.to_bytes(HEADER_BYTES) + model.tobytes())
            _pipe(worker.stdin).flush()
        total = np.zeros(model.shape)
        for worker in workers:
            total += np.frombuffer(_pipe(worker.stdout).read(total.nbytes))
        model = (total / weight).astype(np.float32)
        round_index += 1

    conversation.answer(
        {
            "versions": {"torch": metadata.version("torch")},
            "how": f"the textbook loop, processes of one thread: {count}",
        }
    )
    try:
        conversation.serve(play, lambda: model)
    finally:
        for worker in workers:
            _pipe(worker.stdin).close()
            worker.wait()


def _start(folder: Path, index: int, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sim.bench.peers.plain_worker"]
    return subprocess.Popen(  # noqa: S603 - our own program
        [*command, str(folder), str(index), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the worker was started without pipes")
    return stream


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
