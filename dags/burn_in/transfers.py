"""How fast the hosts of a slice hand objects to one another: a Ray program with arguments, as one runs it by hand.

python transfers.py --megabytes 16 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import ray

from airflow_raytpu.runtime import here


@ray.remote
class Peer:
    def make(self, size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    def take(self, data: np.ndarray) -> str:
        return f"{data.nbytes} bytes at worker {os.environ['TPU_WORKER_ID']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ray.init()
    hosts = here.reserved().hosts
    peers = [Peer.options(**here.on(host)).remote() for host in hosts]
    for done in range(1, options.rounds + 1):
        began = time.perf_counter()
        # Each host takes what its neighbour has made, all at once.
        made = [peer.make.remote(options.megabytes * 1_000_000) for peer in peers]
        for said in ray.get([peer.take.remote(made[number - 1]) for number, peer in enumerate(peers)]):
            print(said)
        seconds = time.perf_counter() - began
        here.progress(done, options.rounds, unit="round", megabytes_per_s=len(hosts) * options.megabytes / seconds)


if __name__ == "__main__":
    main()
