"""The plain peer: the textbook loop, in as many processes of one thread as there are cores.

`python -m deltafl.sim.bench.peers.plain FOLDER CORES` starts the workers (`plain_worker`) and
assigns the clients among them. In a round every worker is sent the model, trains its clients one
after another, and sends back the sum of their models, weighted by samples; the parent divides.

With a third argument, "warm", a worker evaluates a client before the first round
(`textbook.warm_up`), which makes it faster for good.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np

from deltafl.sim.bench.peers.conversation import Conversation
from deltafl.sim.bench.peers.tasks import HEADER_BYTES, Federation


def main(folder: Path, cores: int, *options: str) -> None:
    """Play rounds as the conversation asks."""
    conversation = Conversation()
    federation = Federation.load(folder)
    count = min(cores, federation.task.clients)
    model, weight = np.array(federation.model), federation.y.size
    workers = [_start(folder, index, count, *options) for index in range(count)]
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
            "how": " ".join(("the textbook loop, processes of one thread:", str(count), *options)),
        }
    )
    try:
        conversation.serve(play, lambda: model)
    finally:
        for worker in workers:
            _pipe(worker.stdin).close()
            worker.wait()


def _start(folder: Path, index: int, count: int, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "deltafl.sim.bench.peers.plain_worker"]
    return subprocess.Popen(  # noqa: S603 - our own program
        [*command, str(folder), str(index), str(count), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the worker was started without pipes")
    return stream


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
