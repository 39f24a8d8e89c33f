"""A worker of the plain peer: trains its share of the clients in one thread.

`python -m deltafl.sim.bench.peers.plain_worker FOLDER INDEX COUNT [warm]` has every client whose
number leaves INDEX when divided by COUNT, with its samples as tensors from the start. It reads the
number of a round and a model, float32, from its standard input, and writes Σ n_k·w_k over its
clients, float64.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from deltafl.sim.bench.peers import textbook
from deltafl.sim.bench.peers.tasks import HEADER_BYTES, Federation


def main(folder: Path, index: int, count: int, *options: str) -> None:
    """Train until the input ends."""
    torch.set_num_threads(1)
    federation = Federation.load(folder)
    task, length = federation.task, federation.model.nbytes
    module = textbook.build(task)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
    clients = {k: textbook.tensors(federation, k) for k in range(index, task.clients, count)}
    if "warm" in options:
        textbook.warm_up(module, clients[index][0])
    while header := sys.stdin.buffer.read(HEADER_BYTES):
        model = np.frombuffer(bytearray(sys.stdin.buffer.read(length)), dtype=np.float32)
        total = torch.zeros(len(model), dtype=torch.float64)
        for client, (x, y) in clients.items():
            textbook.load(module, model)
            batches = textbook.epoch(task, x, y, round_index=int.from_bytes(header), client=client)
            textbook.train(module, optimizer, batches)
            total.add_(torch.from_numpy(textbook.flat(module)), alpha=len(y))
        sys.stdout.buffer.write(total.numpy().tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
