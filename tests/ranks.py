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
from pathlib import Path
from typing import Any

import numpy as np
import torch


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def disturb_global_rngs() -> None:
    """Seed every global RNG differently on each rank, and consume another amount of each."""
    torch.manual_seed(100 + rank())
    np.random.seed(200 + rank())  # noqa: NPY002  # the global one is what is meant
    random.seed(300 + rank())
    torch.rand(1 + rank())
    np.random.rand(2 + rank())  # noqa: NPY002
    random.random()


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
    module, _, function = name.rpartition(":")
    result: Any = getattr(importlib.import_module(module or "ranks"), function)(**json.loads(kwargs))
    target = Path(folder, f"rank{rank()}.json")
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(target)
    watch.cancel()


if __name__ == "__main__":
    main(*sys.argv[1:])
