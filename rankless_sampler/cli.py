"""The `rankless` command. `rankless demo` shows the fault and the repair on real processes of this machine.

The parent starts the ranks, watches them and prints a table: it needs neither torch nor accelerate. The ranks run
`_rank`: two loaders, one after the other, each through `accelerator.prepare`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rankless_sampler import __version__

_LOADERS = ("shuffle=True", "SeededEpochSampler")
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_FIX = "DataLoader(dataset, sampler=SeededEpochSampler(dataset, seed=0), ...) in place of shuffle=True"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 if the demo's sampler was exact, 1 if not or if a rank failed."""
    options = _parser().parse_args(argv)
    missing = [name for name in ("torch", "accelerate", "torchdata") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"rankless demo needs {' and '.join(missing)}: pip install 'rankless-sampler[accelerate]'", file=sys.stderr
        )
        return 1
    try:
        return _report(options, _run(options))
    except RuntimeError as error:
        print(f"rankless demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rankless demo: interrupted; the ranks were ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rankless", description="Shuffling whose order is a value.")
    parser.add_argument("--version", action="version", version=f"rankless-sampler {__version__}")
    demo = parser.add_subparsers(dest="command", required=True).add_parser(
        "demo",
        help="show which samples an epoch loses, and that the sampler loses none",
        description="Start real processes (gloo, CPU, loopback), each with its global RNG in another place, and walk "
        "a loader through accelerator.prepare with use_stateful_dataloader=True: with shuffle=True, then with "
        "SeededEpochSampler. Exit status 0 only if the sampler was exact in every epoch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--ranks", type=_at_least(1), default=2, metavar="N", help="processes")
    demo.add_argument("--workers", type=_at_least(0), default=6, metavar="N", help="loader workers of each process")
    demo.add_argument("--samples", type=_at_least(1), default=96, metavar="N", help="samples in the dataset")
    demo.add_argument("--batch-size", type=_at_least(1), default=4, metavar="N", help="samples in a batch of one rank")
    demo.add_argument("--epochs", type=_at_least(1), default=2, metavar="N", help="epochs for each loader")
    demo.add_argument(
        "--timeout", type=_at_least(1), default=180, metavar="S", help="seconds until the ranks are ended"
    )
    return parser


class _at_least:  # noqa: N801  # an argparse type, used like a function
    """An argparse type: an int that is not below `low`."""

    def __init__(self, low: int) -> None:
        self.low = low

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an int >= {self.low}, got {text!r}") from None
        if value < self.low:
            raise argparse.ArgumentTypeError(f"must be >= {self.low}, got {value}")
        return value
