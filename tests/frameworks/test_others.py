"""ignite, DDP and FSDP2 with torchdata as in torchtitan, datasets, and grain: what the README tells to write."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchdata", reason="torchdata is not installed")

from frameworks.layouts import Batches, dealt_by_sample

from rankless_sampler import EpochOrder

N, SEED, SIZE = 53, 7, 4
EPOCHS = 3
RUNS = {
    "ignite": [f"{kind}{workers}" for kind in ("stateful", "resumable") for workers in (0, 2)],
    "datasets": [f"{form}{workers}" for form in (None, "torch", "numpy", "pandas") for workers in (0, 2)],
    "torch": [f"{kind}{workers}" for kind in ("ddp", "fsdp") for workers in (0, 2)],
}
INSTALLED = [name for name in RUNS if importlib.util.find_spec(name) is not None]

# ---- on the ranks ------------------------------------------------------------------------------------


def walk(folder: str, resume: bool, frameworks: list[str]) -> dict[str, Batches]:
    """The batches of this rank by run: of all epochs, with a checkpoint after step 3 of epoch 1, or of what is left."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return {
        f"{framework} {run}": globals()[f"with_{framework}"](run, str(Path(folder, f"{framework}-{run}")), resume)
        for framework in frameworks
        for run in RUNS[framework]
    }


def new_loader(data: Any, workers: int, collate_fn: Any = None) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from rankless_sampler import SeededDistributedSampler

    sampler = SeededDistributedSampler(data, seed=SEED)
    return StatefulDataLoader(data, batch_size=SIZE, sampler=sampler, num_workers=workers, collate_fn=collate_fn)


def with_ignite(run: str, path: str, resume: bool) -> Batches:
    import ignite.distributed as idist
    import torch
    from ignite.engine import Engine, Events

    from rankless_sampler import SeededDistributedSampler

    data: Any = range(N)
    if run.startswith("stateful"):
        loader = new_loader(data, int(run[-1]))
    else:  # what auto_dataloader makes of one of ours
        given = {
            "batch_size": 2 * SIZE,
            "num_workers": int(run[-1]),
            "sampler": SeededDistributedSampler(data, seed=SEED),
        }
        loader = idist.auto_dataloader(data, **given)
        assert loader.sampler is given["sampler"]
    seen: Batches = []
    trainer = Engine(lambda engine, batch: seen.append(batch.tolist()))

    @trainer.on(Events.EPOCH_STARTED)
    def set_epoch(engine: Engine) -> None:
        loader.sampler.set_epoch(engine.state.epoch - 1)

    @trainer.on(
        Events.ITERATION_COMPLETED(once=7 + 3) if run.startswith("stateful") else Events.EPOCH_COMPLETED(once=1)
    )
    def save(engine: Engine) -> None:
        if not resume:
            state = loader.state_dict() if run.startswith("stateful") else None
            torch.save({"trainer": engine.state_dict(), "loader": state}, f"{path}-{dist_rank()}")

    if resume:
        state = torch.load(f"{path}-{dist_rank()}", weights_only=True)
        trainer.load_state_dict(state["trainer"])
        if state["loader"] is not None:
            loader.load_state_dict(state["loader"])
    trainer.run(loader, max_epochs=EPOCHS)
    return seen


def dist_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def with_torch(run: str, path: str, resume: bool) -> Batches:
    """As torchtitan trains: DDP or FSDP2, a StatefulDataLoader, and torch.distributed.checkpoint for both."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    loader = new_loader(range(N), int(run[-1]))
    model: torch.nn.Module = torch.nn.Linear(1, 2)
    if run.startswith("ddp"):
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    progress = Progress()
    content = {"model": model, "dataloader": loader, "progress": progress}
    if resume:
        dcp.load(content, checkpoint_id=path)
    seen: Batches = []
    for epoch in range(progress.epoch, EPOCHS):
        if epoch > progress.epoch or not resume:  # a restored loader knows its epoch
            loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, start=1):
            seen.append(batch.tolist())
            model(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
            if not resume and (epoch, step) == (1, 3):
                progress.epoch = epoch
                dcp.save(content, checkpoint_id=path)
                progress.epoch = 0
    return seen


class Progress:
    epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


def as_list(samples: Any) -> list[int]:
    return [int(sample["i"]) for sample in samples]


def with_datasets(run: str, path: str, resume: bool) -> Batches:
    import json

    from datasets import Dataset

    form = None if run[:-1] == "None" else run[:-1]
    data = Dataset.from_dict({"i": list(range(N))}).with_format(form)
    assert hasattr(data, "__getitems__")  # takes a batch of indices at once
    loader = new_loader(data, int(run[-1]), collate_fn=as_list)
    state = Path(f"{path}-{dist_rank()}")
    first = 0
    if resume:
        first = 1
        loader.load_state_dict(json.loads(state.read_text()))
    seen: Batches = []
    for epoch in range(first, EPOCHS):
        if epoch > first or not resume:
            loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader, start=1):
            seen.append(batch)
            if not resume and (epoch, step) == (1, 3):
                state.write_text(json.dumps(loader.state_dict()))
    return seen


# ---- the tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walks(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments = {"folder": str(tmp_path_factory.mktemp("others")), "frameworks": INSTALLED}
    return [run_ranks(2, "frameworks.test_others:walk", resume=resume, **arguments) for resume in (False, True)]


@pytest.mark.parametrize(("framework", "run"), [(framework, run) for framework in RUNS for run in RUNS[framework]])
def test_epochs_and_their_rest_come_in_their_orders(framework: str, run: str, walks: Any) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    whole, rest = walks
    for rank in range(2):
        epochs = [dealt_by_sample(N, SEED, epoch, SIZE, 2, rank) for epoch in range(EPOCHS)]
        done = 0 if run.startswith("resumable") else 3  # ignite's own loader can only begin an epoch
        assert whole[rank][f"{framework} {run}"] == epochs[0] + epochs[1] + epochs[2]
        assert rest[rank][f"{framework} {run}"] == epochs[1][done:] + epochs[2]


def grain_records(folder: str, workers: int, resume: bool) -> list[list[int]]:
    """Of each of two shards (with workers, which take long to start, of one): all records, with a checkpoint after the
    40th, or what is left."""
    import grain.python as grain
    from frameworks.grain_adapter import SeededIndexSampler

    results = []
    for shard in range(2)[:: 1 + (workers > 0)]:
        loader = grain.DataLoader(
            data_source=list(range(N)),  # type: ignore[arg-type]
            sampler=SeededIndexSampler(N, SEED, EPOCHS),  # type: ignore[arg-type]
            shard_options=grain.ShardOptions(shard, 2),
            worker_count=workers,
        )
        records = iter(loader)
        path = Path(folder, f"{workers}-{shard}")
        if resume:
            records.set_state(path.read_bytes())
        seen = []
        for record in records:
            seen.append(int(record))
            if not resume and len(seen) == 40:
                path.write_bytes(records.get_state())
        results.append(seen)
    return results


@pytest.mark.parametrize("workers", [0, 2])
def test_grain_reads_our_order_and_resumes(workers: int, run_ranks: Any, tmp_path: Path) -> None:
    pytest.importorskip("grain", reason="grain is not installed")
    arguments = {"folder": str(tmp_path), "workers": workers}
    whole, rest = (
        run_ranks(1, "frameworks.test_others:grain_records", resume=resume, **arguments)[0] for resume in (False, True)
    )
    records = [index for epoch in range(EPOCHS) for index in EpochOrder(N, seed=SEED, epoch=epoch)]
    records = records[: len(records) // 2 * 2]  # grain deals the tail to nobody
    for shard in range(len(whole)):
        assert whole[shard] == records[shard::2]
        assert rest[shard] == records[shard::2][40:]


def test_jax_and_numpy_users_need_no_torch() -> None:
    import subprocess

    code = """
import sys
from rankless_sampler import EpochOrder


def block(n, size, hosts, step, host):
    i = (step * hosts + host) * size
    return EpochOrder(n, seed=7, epoch=3)[i : i + size].tolist()


blocks = [block(53, 8, 2, step, host) for step in range(4) for host in range(2)]
assert [len(indices) for indices in blocks] == [8] * 6 + [5, 0]
assert sum(blocks, []) == list(EpochOrder(53, seed=7, epoch=3))
assert block(10**12, 4, 64, 10**9, 5) == [EpochOrder(10**12, seed=7, epoch=3)[256 * 10**9 + 20 + i] for i in range(4)]
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
