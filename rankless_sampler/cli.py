"""The `rankless` command: `rankless demo` shows the fault and the repair on real processes of this machine.

The parent starts the ranks, watches them and prints a table; it imports neither torch nor accelerate. Each rank runs
`_rank`: two loaders, one after the other, through a real `accelerator.prepare`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rankless_sampler import __version__

_LOADERS = ("shuffle=True", "SeededEpochSampler")
_FIX = "DataLoader(dataset, sampler=SeededEpochSampler(dataset, seed=0), ...) in place of shuffle=True"
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_NEEDED = ("accelerate", "torchdata", "torch")
_OUTER = ("ACCELERATE_", "TORCHELASTIC_", "OMPI_", "PMI_", "MV2_")  # an outer launcher's variables, not for the ranks

Seen = list[dict[str, list[list[int]]]]  # by rank, loader and epoch: the indices that arrived


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 only if the sampler was exact, 1 if not or if a rank failed, 130 after Ctrl-C."""
    options = _parser().parse_args(argv)
    try:
        versions = ", ".join(f"{name} {version(name)}" for name in _NEEDED)
        with tempfile.TemporaryDirectory(prefix="rankless-") as folder:
            seen = _run(options, Path(folder))
    except PackageNotFoundError as error:
        print(f"rankless demo: needs {error.name}: pip install 'rankless-sampler[accelerate]'", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"rankless demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rankless demo: interrupted, all ranks are ended", file=sys.stderr)
        return 130
    return _report(options, seen, versions)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rankless", description="Shuffling whose order is a value.")
    parser.add_argument("--version", action="version", version=f"rankless-sampler {__version__}")
    demo = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "demo",
        help="show which samples an epoch loses, and that the sampler loses none",
        description="Starts real processes (gloo, CPU, loopback), each with its global RNG in another place, and walks "
        "a loader through accelerator.prepare with use_stateful_dataloader=True: first with shuffle=True, then with "
        "SeededEpochSampler. Exit status 0 only if the sampler was exact in every epoch.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--ranks", type=_at_least(1), default=2, metavar="N", help="processes")
    demo.add_argument("--workers", type=_at_least(0), default=6, metavar="N", help="loader workers in each process")
    demo.add_argument("--samples", type=_at_least(1), default=96, metavar="N", help="samples in the dataset")
    demo.add_argument("--batch-size", type=_at_least(1), default=4, metavar="N", help="samples in a batch on one rank")
    demo.add_argument("--epochs", type=_at_least(1), default=2, metavar="N", help="epochs of each loader")
    demo.add_argument("--timeout", type=_at_least(1), default=180, metavar="S", help="seconds for the whole run")
    return parser


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        with suppress(ValueError):
            if int(text) >= low:
                return int(text)
        raise argparse.ArgumentTypeError(f"must be an int >= {low}, got {text!r}")

    return number


# ---- the parent --------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, folder: Path) -> Seen:
    """Start the ranks and wait for them.

    Raises:
        RuntimeError: a rank failed or hung; with the end of its stderr. No rank is left running, here or at Ctrl-C.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {k: v for k, v in os.environ.items() if not k.startswith(_OUTER)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(options.ranks)}
    common |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    if sys.platform in _LOOPBACK:
        common["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    command = [sys.executable, "-c", "from rankless_sampler.cli import _rank; _rank()", json.dumps(vars(options))]
    results = [folder / f"rank{rank}.json" for rank in range(options.ranks)]
    errors = [folder / f"rank{rank}.stderr" for rank in range(options.ranks)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, (result, error) in enumerate(zip(results, errors, strict=True)):
            env = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with error.open("wb") as out:
                # A session of its own, so that a rank can be ended with its workers.
                streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                ranks.append(subprocess.Popen([*command, str(result)], env=env, start_new_session=True, **streams))
        end = time.monotonic() + options.timeout
        while any(process.poll() is None for process in ranks) and time.monotonic() < end:
            if any(process.poll() for process in ranks):
                break
            time.sleep(0.05)
        states = [process.poll() for process in ranks]
    finally:
        for process in ranks:
            _end(process)
    # One that failed is the cause of the others' hanging.
    for rank in sorted(range(options.ranks), key=lambda rank: states[rank] is None):
        if states[rank] != 0:
            fault = f"exit status {states[rank]}" if states[rank] else f"no end within --timeout {options.timeout} s"
            text = errors[rank].read_text(encoding="utf-8", errors="replace").splitlines()
            raise RuntimeError("\n".join([f"rank {rank}: {fault}; all ranks are ended", *text[-40:]]))
    return [json.loads(result.read_text(encoding="utf-8")) for result in results]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(AttributeError, OSError):  # Windows has no groups: there the workers leave by themselves
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _report(options: argparse.Namespace, seen: Seen, versions: str) -> int:
    n = options.samples
    padding = -n % (options.ranks * options.batch_size) if options.ranks > 1 else 0
    print(f"ranks: {options.ranks}, workers on each: {options.workers}, samples: {n}, batch size: {options.batch_size}")
    print(versions + "\n")
    print("       " + "".join(f"{name:<32}" for name in _LOADERS).rstrip())
    print("epoch  " + ("    union  missing  duplicates  " * len(_LOADERS)).rstrip())
    wrong: dict[str, list[int]] = {name: [] for name in _LOADERS}
    for epoch in range(options.epochs):
        cells = ""
        for name in _LOADERS:
            arrived = [index for rank in seen for index in rank[name][epoch]]
            union = len(set(arrived))
            if (union, len(arrived)) != (n, n + padding):
                wrong[name].append(epoch)
            cells += f"{f'{union}/{n}':>9} {n - union:>8} {len(arrived) - union:>11}  "
        print(f"{epoch:>5}  {cells.rstrip()}")
    print()
    if padding:
        print(f"{padding} duplicates are accelerate's padding of the last step (even_batches=True).")
    usual, own = _LOADERS
    if not wrong[usual]:
        print(f"{usual} came out right in this run; with several ranks and workers it usually does not.")
    if wrong[own]:
        print(f"{own} was not exact in epochs {wrong[own]}: a bug of rankless-sampler, please report it.")
        return 1
    print(f"What fixed it: {_FIX}")
    return 0


# ---- each rank ---------------------------------------------------------------------------------------


def _rank() -> None:
    """Walk both loaders; leave what arrived as JSON."""
    import faulthandler

    options = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(0.9 * options["timeout"])  # a hung rank says where it stands
    if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
        # CPython gh-112275: a worker hangs if it is forked while another thread ends its use of Python, as gloo's do
        # just after a collective. Give them time for it.
        os.register_at_fork(before=lambda: time.sleep(0.005))

    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    from rankless_sampler.samplers import SeededEpochSampler

    dataset: Any = range(options["samples"])
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    seen: dict[str, list[list[int]]] = {}
    for name in _LOADERS:
        torch.manual_seed(0)
        torch.rand(accelerator.process_index)  # as after one logged picture more on this rank than on that one
        order = {"shuffle": True} if name == "shuffle=True" else {"sampler": SeededEpochSampler(dataset, seed=0)}
        loader = DataLoader(dataset, options["batch_size"], num_workers=options["workers"], **order)
        loader = accelerator.prepare(loader)
        seen[name] = [[index for batch in loader for index in batch.tolist()] for _ in range(options["epochs"])]
    Path(sys.argv[2]).write_text(json.dumps(seen), encoding="utf-8")
    accelerator.end_training()
