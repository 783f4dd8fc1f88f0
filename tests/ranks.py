"""What runs on every rank of a multi-process test, and the entry point that torchrun starts.

`run_ranks(world_size, "function", **kwargs)` (conftest.py) starts real processes over this file. Each calls the
function with the keyword arguments and leaves what it returns, as JSON, in a file of its own. The function is one of
this module, or ``"module:function"`` of another one in this folder. A launch costs seconds, a loader milliseconds:
let one launch run many loaders.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def disturb_global_rngs(how: str = "seeded") -> None:
    """Let every global RNG stand elsewhere on each rank: "unseeded", "seeded" differently or "consumed" differently."""
    if how == "unseeded":
        torch.seed()
        np.random.seed()  # noqa: NPY002  # the global one is what is meant
        random.seed()
        return
    seed = rank() if how == "seeded" else 0
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    for _ in range(1 + rank()):
        torch.rand(1)
        np.random.rand()  # noqa: NPY002
        random.random()


# ---- plain accelerate --------------------------------------------------------------------------------

Batches = list[list[int]]


def _accelerator(**config: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


def _walk(loader: Any) -> Batches:
    return [batch.tolist() for batch in loader]


def walk_prepared(loaders: list[dict[str, Any]], epochs: int) -> list[list[Batches]]:
    """The batches of this rank, by loader and epoch, each through an `accelerator.prepare` of its own.

    A loader's settings: "order" ("seeded", "peeked": rank 0 has looked at one batch before, or "shuffle"), "rng" (see
    `disturb_global_rngs`), "samples", "seed", "config" (DataLoaderConfiguration), "loader" (DataLoader).
    """
    from torch.utils.data import DataLoader

    from rankless_sampler import SeededEpochSampler

    walks = []
    for settings in loaders:
        disturb_global_rngs(settings["rng"])
        data: Any = range(settings["samples"])
        order = settings["order"]
        chosen: Any = (
            {"shuffle": True} if order == "shuffle" else {"sampler": SeededEpochSampler(data, settings["seed"])}
        )
        loader = DataLoader(data, **chosen, **settings["loader"])
        if order == "peeked" and rank() == 0:
            next(iter(loader))
        loader = _accelerator(**settings["config"]).prepare(loader)
        walks.append([_walk(loader) for _ in range(epochs)])
    return walks


def train_and_save(loaders: list[dict[str, Any]], epoch: int, steps: list[int], folder: str) -> None:
    """Walk all epochs before `epoch`, then that one up to the last of `steps`, with a checkpoint after each of them."""
    for number, settings in enumerate(loaders):
        accelerator, loader = _seeded_loader(settings)
        for before in range(epoch):
            loader.set_epoch(before)
            _walk(loader)
        loader.set_epoch(epoch)
        for step, _ in enumerate(loader, start=1):
            if step in steps:
                accelerator.save_state(str(Path(folder, f"loader{number}-step{step}")))
            if step == max(steps):
                break


def resume(loaders: list[dict[str, Any]], epoch: int, steps: list[int], folder: str) -> list[list[list[Batches]]]:
    """In a new run: the rest of `epoch` after each of `steps`, and the next epoch; by loader and step."""
    walks = []
    for number, settings in enumerate(loaders):
        walks.append([])
        for step in steps:
            accelerator, loader = _seeded_loader(settings)
            accelerator.load_state(str(Path(folder, f"loader{number}-step{step}")))
            loader.set_epoch(epoch)
            stateful = settings["config"]["use_stateful_dataloader"]  # goes on by itself after load_state
            rest = _walk(loader if stateful else accelerator.skip_first_batches(loader, step))
            loader.set_epoch(epoch + 1)
            walks[-1].append([rest, _walk(loader)])
    return walks


def _seeded_loader(settings: dict[str, Any]) -> tuple[Any, Any]:
    from torch.utils.data import DataLoader

    from rankless_sampler import SeededEpochSampler

    disturb_global_rngs(settings["rng"])
    data: Any = range(settings["samples"])
    accelerator = _accelerator(**settings["config"])
    sampler = SeededEpochSampler(data, settings["seed"])
    return accelerator, accelerator.prepare(DataLoader(data, sampler=sampler, **settings["loader"]))


# ---- the entry point ---------------------------------------------------------------------------------


def _give_up() -> None:
    """A hung rank says where it stands, and ends with its loader workers: torchrun then ends the other ranks."""
    faulthandler.dump_traceback(all_threads=True)
    if os.getpgrp() == os.getpid():  # torchrun gives each rank a group of its own
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main(name: str, folder: str, kwargs: str, seconds: str) -> None:
    watch = threading.Timer(float(seconds), _give_up)
    watch.daemon = True
    watch.start()
    if sys.version_info < (3, 12):
        # CPython gh-112275: a worker hangs if it is forked while another thread ends its use of Python, as gloo's do
        # just after a collective. Give them time for it.
        os.register_at_fork(before=lambda: time.sleep(0.005))
    module, _, function = name.rpartition(":")
    result: Any = getattr(importlib.import_module(module or "ranks"), function)(**json.loads(kwargs))
    target = Path(folder, f"rank{rank()}.json")
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(target)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # gloo's threads may abort a process that ends with them
    watch.cancel()


if __name__ == "__main__":
    main(*sys.argv[1:])
