"""What is measured: our samplers beside their peers, real and installed, interleaved in one process.

A case is one question with one answer for each entry. Every entry of a case does the same work; entries take turns,
so that a slow moment of the machine hits them all. What a fresh process must answer (peak memory, import time) runs
in one each.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import BatchSampler as TorchdataBatchSampler
from torchdata.stateful_dataloader.sampler import RandomSampler as TorchdataRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from rankless_sampler import EpochOrder, SeededDistributedSampler, SeededEpochSampler, ShardedBatchSampler

try:
    from grain._src.python.experimental.index_shuffle.python.index_shuffle_module import (
        index_shuffle as grain_index_shuffle,
    )
except ImportError:  # it has no wheels for every machine: then it is left out
    grain_index_shuffle = None

Operation = Callable[[], object]

SEED = 7
UNIT = 32_768  # positions in a slice of the order
POSITIONS = 1_000  # of random access
ALL_WAYS_MAX = 10**7  # longer epochs are walked bare only
TURN = 0.002  # seconds that a turn of an entry lasts at least
PACKAGES = ("rankless-sampler", "numpy", "torch", "torchdata", "accelerate", "grain")
FIRST = 1_000_000  # indices of an epoch that are walked where all of them would be too many


class Plan(NamedTuple):
    """How much is measured."""

    repetitions: int
    lengths: tuple[int, ...]  # of walks by every entry
    huge: tuple[int, ...]  # of walks by ours alone: FIRST indices of them
    growth: tuple[int, ...]  # of first indices and of peak memory, by every entry
    resume: int  # length of the epoch that is resumed, and that ranks share
    loader: int  # length of the epoch through a whole DataLoader
    fresh: bool  # whether to ask fresh processes, too


QUICK = Plan(
    repetitions=5,
    lengths=(100, 1_000, 10_000, 10**6),
    huge=(10**12,),
    growth=(10**4, 10**6),
    resume=10**6,
    loader=10_000,
    fresh=False,
)
FULL = Plan(
    repetitions=5,
    lengths=(10, 100, 1_000, 10_000, 10**6, 10**7, 10**8),
    huge=(10**9, 10**12),
    growth=(10**4, 10**5, 10**6, 10**7, 10**8),
    resume=10**7,
    loader=50_000,
    fresh=True,
)


@dataclass(frozen=True)
class Case:
    """One question: `scale * seconds` of each entry's operation, as `unit`."""

    group: str
    name: str
    unit: str
    scale: float
    baselines: tuple[str, ...]  # the entries that ratios are taken to
    entries: Callable[[], dict[str, Operation]]  # made when the case's turn comes


@dataclass(frozen=True)
class Result:
    """One answer: a value for each repetition."""

    group: str
    name: str
    entry: str
    unit: str
    baselines: tuple[str, ...]
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def wide(self) -> bool:
        """Whether the repetitions lie so far apart that the median says little."""
        if len(self.values) < 2:
            return False
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return high - low > 0.3 * self.median


# ---- how ---------------------------------------------------------------------------------------------


def interleaved(entries: dict[str, Operation], repetitions: int) -> dict[str, list[float]]:
    """Seconds of a call of each entry, `repetitions` times, the entries taking turns.

    A turn repeats a short call until it lasts TURN; what the first call prepares (imports, caches, workers) is left
    out; the garbage of one turn does not burden the next.
    """
    calls = {}
    for name, operation in entries.items():
        first = _seconds(operation, 1)
        calls[name] = 1
        if first < TURN:
            calls[name] = max(1, int(TURN / _seconds(operation, 1)))
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(repetitions):
        for name, operation in entries.items():
            gc.collect()
            seconds[name].append(_seconds(operation, calls[name]))
    return seconds


def _seconds(operation: Operation, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        operation()
    return (time.perf_counter() - start) / calls


def measured(case: Case, repetitions: int) -> list[Result]:
    """The answers to one case."""
    return [
        Result(case.group, case.name, entry, case.unit, case.baselines, [case.scale * s for s in seconds])
        for entry, seconds in interleaved(case.entries(), repetitions).items()
    ]


def machine() -> dict[str, str]:
    """What it was measured on."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "processors": str(os.cpu_count()),
        "memory": f"{_physical_memory() / 2**30:.0f} GiB",
        "python": platform.python_version(),
        **versions,
    }


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def drain(items: Iterable[object]) -> None:
    """Walk `items` as a loop does."""
    for _ in items:
        pass


# ---- who ---------------------------------------------------------------------------------------------

SAMPLERS: dict[str, Callable[[int], Any]] = {
    "SequentialSampler": lambda n: SequentialSampler(range(n)),
    "RandomSampler": lambda n: RandomSampler(range(n)),
    "DistributedSampler": lambda n: DistributedSampler(_Lengthy(n), 1, 0),
    "torchdata RandomSampler": lambda n: TorchdataRandomSampler(range(n)),
    "torchdata StatefulDistributedSampler": lambda n: StatefulDistributedSampler(_Lengthy(n), 1, 0),
    "accelerate SeedableRandomSampler": lambda n: SeedableRandomSampler(range(n)),
    "SeededDistributedSampler": lambda n: SeededDistributedSampler(range(n), 1, 0, seed=SEED),
    "SeededEpochSampler": lambda n: SeededEpochSampler(n, seed=SEED),
}
OURS = tuple(name for name in SAMPLERS if name.startswith("Seeded"))
USUAL = ("RandomSampler", "SequentialSampler")


class _Lengthy(torch.utils.data.Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def fits(n: int) -> bool:
    """Whether a peer's list of `n` ints and the permutation it is made of fit into half of this machine's memory."""
    return 48 * n < _physical_memory() / 2


# ---- what --------------------------------------------------------------------------------------------


def cases(plan: Plan) -> Iterator[Case]:
    """All that is measured in this process."""
    yield from walks(plan)
    yield from arrays(plan)
    yield from loaders(plan)
    yield from starts(plan)
    yield from states(plan)
    yield from ranks(plan)


WAYS: dict[str, Callable[[Any], Iterable[object]]] = {
    "bare": lambda sampler: sampler,
    "BatchSampler(32)": lambda sampler: BatchSampler(sampler, 32, drop_last=False),
    "BatchSampler(256)": lambda sampler: BatchSampler(sampler, 256, drop_last=False),
    "torchdata BatchSampler(32)": lambda sampler: TorchdataBatchSampler(sampler, 32, drop_last=False),
}
SHARDED = {"BatchSampler(32)": 32, "BatchSampler(256)": 256}


def walks(plan: Plan) -> Iterator[Case]:
    """ns an index, through what stands between a sampler and a loader."""
    for n in filter(fits, plan.lengths):
        for way in WAYS if n <= ALL_WAYS_MAX else ("bare",):
            entries = functools.partial(_walks, way, n)
            yield Case(way, f"n = {n:,}", "ns an index", 1e9 / n, USUAL, entries)
    for n in plan.huge:
        name = f"n = {n:,}, the first {FIRST:,}"
        yield Case("bare", name, "ns an index", 1e9 / FIRST, (), functools.partial(_of_ours, _walk_first, n))


def _walks(way: str, n: int) -> dict[str, Operation]:
    walked = {name: WAYS[way](sampler(n)) for name, sampler in SAMPLERS.items()}
    if way in SHARDED:
        walked["ShardedBatchSampler"] = ShardedBatchSampler(SeededEpochSampler(n, seed=SEED), SHARDED[way])
    return {name: functools.partial(drain, items) for name, items in walked.items()}


def _of_ours(operation: Callable[[str, int], object], n: int) -> dict[str, Operation]:
    return {name: functools.partial(operation, name, n) for name in OURS}


def _of_all(operation: Callable[[str, int], object], n: int) -> dict[str, Operation]:
    return {name: functools.partial(operation, name, n) for name in SAMPLERS}


def _walk_first(name: str, n: int) -> None:
    drain(itertools.islice(iter(SAMPLERS[name](n)), FIRST))


def arrays(plan: Plan) -> Iterator[Case]:
    """ns an index, of a whole permutation as an array; and of one index at a random position."""
    for n in filter(fits, plan.lengths):
        if n >= 10_000:
            entries = functools.partial(_arrays, n)
            yield Case("as arrays", f"n = {n:,}", "ns an index", 1e9 / n, ("torch.randperm",), entries)
    if grain_index_shuffle is not None:
        name = f"n = {plan.resume:,}, {POSITIONS:,} random positions"
        entries = functools.partial(_random_access, plan.resume)
        yield Case("random access", name, "ns an index", 1e9 / POSITIONS, ("grain index_shuffle",), entries)


def _arrays(n: int) -> dict[str, Operation]:
    generator = np.random.Generator(np.random.Philox(SEED))

    def slices() -> None:
        order = EpochOrder(n, seed=SEED)
        for start in range(0, n, UNIT):
            order[start : start + UNIT]

    return {
        "torch.randperm": lambda: torch.randperm(n),
        "numpy Generator(Philox).permutation": lambda: generator.permutation(n),
        f"EpochOrder, slices of {UNIT:,}": slices,
    }


def _random_access(n: int) -> dict[str, Operation]:
    assert grain_index_shuffle is not None
    shuffle = grain_index_shuffle
    positions = np.random.Generator(np.random.Philox(SEED)).integers(0, n, POSITIONS)
    numbers = positions.tolist()
    order = EpochOrder(n, seed=SEED)
    return {
        "grain index_shuffle": lambda: [shuffle(p, n - 1, SEED, 4) for p in numbers],
        "EpochOrder[i]": lambda: [order[p] for p in numbers],
        "EpochOrder[array]": lambda: order[positions],
    }


def loaders(plan: Plan) -> Iterator[Case]:
    """us a batch of 32, through a whole loader over real tensors; its workers are up already."""
    for kind in (DataLoader, StatefulDataLoader):
        for workers in (0, 2):
            entries = functools.partial(_loaders, kind, plan.loader, workers)
            batches = -(-plan.loader // 32)
            name = f"{workers} workers, n = {plan.loader:,}"
            yield Case(kind.__name__, name, "us a batch", 1e6 / batches, ("shuffle=True",), entries)


def _loaders(kind: Callable[..., Iterable[object]], n: int, workers: int) -> dict[str, Operation]:
    dataset = TensorDataset(torch.randn(n, 8), torch.randn(n, 1))
    options: dict[str, Any] = {"batch_size": 32, "num_workers": workers, "persistent_workers": workers > 0}
    return {
        "shuffle=True": functools.partial(drain, kind(dataset, shuffle=True, **options)),
        "SeededEpochSampler": functools.partial(
            drain, kind(dataset, sampler=SeededEpochSampler(dataset, seed=SEED), **options)
        ),
    }


def starts(plan: Plan) -> Iterator[Case]:
    """us to the first index of a new pass, from the start and from a state within the epoch."""
    for n in filter(fits, plan.growth):
        yield Case("first index", f"n = {n:,}", "us", 1e6, USUAL, functools.partial(_of_all, _first, n))
    for n in plan.huge:
        yield Case("first index", f"n = {n:,}", "us", 1e6, (), functools.partial(_of_ours, _first, n))
    n = plan.resume
    for percent in (1, 50, 99):
        entries = functools.partial(_resumptions, n, n * percent // 100)
        yield Case("resume", f"at {percent} % of n = {n:,}", "us", 1e6, USUAL, entries)
    for n in plan.huge:
        for position in (10, n // 10):
            entries = functools.partial(_resumptions, n, position)
            yield Case("resume", f"at {position:,} of n = {n:,}", "us", 1e6, (), entries)


def _first(name: str, n: int) -> None:
    next(iter(SAMPLERS[name](n)))


def _resumptions(n: int, done: int) -> dict[str, Operation]:
    """A new sampler, put after `done` indices as its own protocol has it, or else by skipping; and one index."""
    operations: dict[str, Operation] = {}
    for name, sampler in SAMPLERS.items():
        if name in OURS:
            operations[name] = functools.partial(_load, name, n, sampler(n).state_dict(position=done))
        elif not fits(n):
            continue
        elif name.startswith("torchdata"):
            walk = iter(sampler(n)) if name == "torchdata RandomSampler" else sampler(n)
            state = {**walk.state_dict(), "yielded": done}
            operations[name] = functools.partial(_load, name, n, state)
        else:
            operations[name] = functools.partial(_skip, name, n, done)
    return operations


def _load(name: str, n: int, state: dict[str, Any]) -> int:
    sampler = SAMPLERS[name](n)
    target = iter(sampler) if name == "torchdata RandomSampler" else sampler
    target.load_state_dict(state)
    return int(next(iter(target)))


def _skip(name: str, n: int, done: int) -> int:
    return int(next(itertools.islice(iter(SAMPLERS[name](n)), done, None)))


def states(plan: Plan) -> Iterator[Case]:
    """us of a state_dict within an epoch: of a sampler or its iterator, and of a whole loader."""
    yield Case("state_dict", "of a sampler", "us", 1e6, ("torchdata RandomSampler",), _state_dicts)
    entries = functools.partial(_loaders_state_dicts, plan.loader)
    yield Case("state_dict", "of a StatefulDataLoader", "us", 1e6, ("shuffle=True",), entries)


def _state_dicts() -> dict[str, Operation]:
    return {name: walk.state_dict for name, walk in stateful().items()}


def stateful() -> dict[str, Any]:
    """What has a `state_dict`, in the midst of an epoch."""
    found = {}
    views: dict[str, Any] = {"ShardedBatchSampler(32)": ShardedBatchSampler(SeededEpochSampler(10**5, seed=SEED), 32)}
    names = ("torchdata RandomSampler", "torchdata StatefulDistributedSampler", *OURS)
    for name, sampler in ({name: SAMPLERS[name](10**5) for name in names} | views).items():
        walk = iter(sampler)
        drain(itertools.islice(walk, 1_000))
        found[name] = walk if hasattr(walk, "state_dict") else sampler
    return found


def _loaders_state_dicts(n: int) -> dict[str, Operation]:
    dataset = TensorDataset(torch.randn(n, 8))
    samplers: dict[str, dict[str, Any]] = {
        "shuffle=True": {"shuffle": True},
        "SeededEpochSampler": {"sampler": SeededEpochSampler(dataset, seed=SEED)},
    }
    operations: dict[str, Operation] = {}
    for name, sampler in samplers.items():
        loader = StatefulDataLoader(dataset, 32, **sampler)
        drain(itertools.islice(loader, 10))
        operations[name] = loader.state_dict
    return operations


def ranks(plan: Plan) -> Iterator[Case]:
    """ms of one rank's whole epoch, on so many ranks."""
    for world in (1, 8, 64, 1_024):
        name = f"n = {plan.resume:,}, {world:,} ranks"
        entries = functools.partial(_ranks, plan.resume, world)
        yield Case("a rank's epoch", name, "ms", 1e3, ("DistributedSampler",), entries)


def _ranks(n: int, world: int) -> dict[str, Operation]:
    rank = world // 2
    views: dict[str, Iterable[object]] = {
        "DistributedSampler": DistributedSampler(_Lengthy(n), world, rank),
        "torchdata StatefulDistributedSampler": StatefulDistributedSampler(_Lengthy(n), world, rank),
        "SeededDistributedSampler": SeededDistributedSampler(range(n), world, rank, seed=SEED),
        "ShardedBatchSampler(32)": ShardedBatchSampler(
            SeededEpochSampler(n, seed=SEED), 32, num_replicas=world, rank=rank
        ),
    }
    return {name: functools.partial(drain, view) for name, view in views.items()}


# ---- what fresh processes tell -----------------------------------------------------------------------


def in_fresh_process(code: str) -> float:
    """The number that `code` prints."""
    folder = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{code!r} failed:\n{ended.stderr}")
    return float(ended.stdout.split()[-1])


def peak_memory(name: str, n: int) -> float:
    """MiB by which a walk of (the first FIRST indices of) an epoch lets this process's peak memory grow."""
    before = _high_water_mark()
    _walk_first(name, n)
    return (_high_water_mark() - before) / 2**20


def _high_water_mark() -> int:
    """This process's peak memory, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux hands ru_maxrss on to a child: a small one of a large parent would never grow
        return next(1_024 * int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)


IMPORTS = {
    "import numpy": "import numpy",
    "import rankless_sampler.order": "import rankless_sampler.order",
    "import torch.utils.data": "import torch.utils.data",
    "from rankless_sampler import SeededEpochSampler": "from rankless_sampler import SeededEpochSampler",
}


def fresh_cases(plan: Plan) -> Iterator[Callable[[], list[Result]]]:
    """All that is measured in processes of their own, a few repetitions of each in turn."""
    for n in plan.growth + plan.huge:
        names = [name for name in SAMPLERS if name in OURS or n in plan.growth]
        baselines = ("RandomSampler",) if n in plan.growth else ()  # SequentialSampler's is nothing
        yield functools.partial(_memories, names, n, baselines)
    yield functools.partial(_imports, plan.repetitions)


def _memories(names: list[str], n: int, baselines: tuple[str, ...]) -> list[Result]:
    code = "from benchmarks import speed; print(speed.peak_memory({!r}, {!r}))"
    # The same in each process, within some pages: three of them are enough.
    values = {name: [in_fresh_process(code.format(name, n)) for _ in range(3)] for name in names}
    return [Result("peak memory", f"n = {n:,}", name, "MiB", baselines, found) for name, found in values.items()]


def _imports(repetitions: int) -> list[Result]:
    code = "import time; start = time.perf_counter(); {}; print(1e3 * (time.perf_counter() - start))"
    values: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repetitions):
        for name, statement in IMPORTS.items():
            values[name].append(in_fresh_process(code.format(statement)))
    return [
        Result("import", "in a new process", name, "ms", ("import torch.utils.data",), found)
        for name, found in values.items()
    ]


def state_sizes() -> list[Result]:
    """Bytes of a state in the midst of an epoch, pickled."""
    return [
        Result("state size", "pickled", name, "bytes", ("torchdata RandomSampler",), [float(len(pickle.dumps(state)))])
        for name, walk in stateful().items()
        for state in [walk.state_dict()]
    ]


def run(plan: Plan, progress: Callable[[Iterable[Any], int], Iterable[Any]]) -> list[Result]:
    """Everything, in a reproducible order.

    Args:
        plan: how much.
        progress: wraps the parts, whose number it is told, in a progress bar.
    """
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what the imports made is no garbage: looking through it would be the larger part of short turns
    parts: list[Callable[[], list[Result]]] = [
        functools.partial(measured, case, plan.repetitions) for case in cases(plan)
    ]
    parts += [state_sizes, *(fresh_cases(plan) if plan.fresh else ())]
    return [result for part in progress(parts, len(parts)) for result in part()]


def as_json(results: list[Result]) -> str:
    """Results and machine, one result a line."""
    lines = [
        json.dumps(
            {
                "group": r.group,
                "name": r.name,
                "entry": r.entry,
                "unit": r.unit,
                "baselines": r.baselines,
                "values": [float(f"{value:.4g}") for value in r.values],
            }
        )
        for r in results
    ]
    return f'{{"machine": {json.dumps(machine(), indent=1)},\n"results": [\n' + ",\n".join(lines) + "\n]}\n"


def from_json(text: str) -> tuple[dict[str, str], list[Result]]:
    """What `as_json` wrote."""
    document = json.loads(text)
    results = [Result(**{**entry, "baselines": tuple(entry["baselines"])}) for entry in document["results"]]
    return document["machine"], results
