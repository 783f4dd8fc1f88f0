"""What runs on the ranks of test_accelerate_prepare.py: real accelerate, real save_state and load_state.

Each function returns what happened, and judges nothing. `several` runs many of them in one launch.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, DataLoader, Dataset

import rankless_sampler.accelerate
from rankless_sampler import SeededEpochSampler, ShardedBatchSampler


class Numbers(Dataset[torch.Tensor]):
    """Sample i is i. Takes whole lists of indices too, as Hugging Face datasets do."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int | list[int]) -> torch.Tensor:
        return torch.tensor(index)


def accelerator_of(config: dict[str, bool]) -> Any:
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


def loader_of(
    n: int, batch_size: int, *, seed: int = 7, kind: str = "samples", drop_last: bool = False, **options: Any
) -> DataLoader[Any]:
    data, sampler = Numbers(n), SeededEpochSampler(n, seed)
    if kind == "batches":
        return DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size, drop_last), **options)
    if kind == "lists":
        return DataLoader(data, sampler=BatchSampler(sampler, batch_size, drop_last), batch_size=None, **options)
    if kind == "view":
        return DataLoader(data, batch_sampler=ShardedBatchSampler(sampler, batch_size, drop_last=drop_last), **options)
    return DataLoader(data, batch_size, sampler=sampler, drop_last=drop_last, **options)


def several(calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [globals()[name](**kwargs) for name, kwargs in calls]


# ---- legs of elastic runs ----------------------------------------------------------------------------


def legs(jobs: list[dict[str, Any]], folder: str) -> list[list[dict[str, Any]]]:
    """Each job in a "new run": an accelerator, a prepared loader, `load` (a checkpoint's name) and some passes.

    A pass: "epoch" (for set_epoch, else None), "stop" (break after so many steps), "save" (after which steps, under
    ``<name>-<step>``; 0 is before the first, -1 after the loop). What came of it: "batches", "gathered", "states"
    (after each step and after the loop), "ends" (end_of_dataloader).
    """
    results = []
    for job in jobs:
        accelerator = accelerator_of(job["config"])
        loader = rankless_sampler.accelerate.prepare(accelerator, loader_of(**job["loader"]))
        if job.get("load"):
            accelerator.load_state(str(Path(folder, job["load"])))
        results.append([_pass(accelerator, loader, job, settings, folder) for settings in job["passes"]])
    return results


def _pass(accelerator: Any, loader: Any, job: dict[str, Any], settings: dict[str, Any], folder: str) -> dict[str, Any]:
    result: dict[str, Any] = {"batches": [], "gathered": [], "states": [], "ends": []}
    save = settings.get("save", [])

    def save_at(step: int) -> None:
        result["states"].append(loader.state_dict())
        if step in save:
            accelerator.save_state(str(Path(folder, f"{job['name']}-{step}")))

    if settings.get("epoch") is not None:
        loader.set_epoch(settings["epoch"])
    if 0 in save:
        save_at(0)
        result["states"].clear()
    for step, batch in enumerate(loader, start=1):
        result["batches"].append(batch.tolist())
        result["ends"].append(loader.end_of_dataloader)
        if job.get("gather"):
            result["gathered"] += accelerator.gather_for_metrics(batch).tolist()
        save_at(step)
        if step == settings.get("stop"):
            break
    save_at(-1)
    accelerator.wait_for_everyone()
    return result


# ---- beside accelerate's own loader ------------------------------------------------------------------


def beside_accelerates_own(cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What a loader of `prepare` shows of itself, and what one of accelerator.prepare shows, over equal samplers."""
    results = []
    for case in cases:
        pair = []
        for own in (True, False):
            accelerator = accelerator_of(case["config"])
            plain = loader_of(**case["loader"])
            theirs = accelerator.prepare
            prepare = functools.partial(rankless_sampler.accelerate.prepare, accelerator) if own else theirs
            pair.append(_shown(accelerator, prepare, plain, gather=case["gather"]))
        results.append(pair)
    return results


def _shown(accelerator: Any, prepare: Any, plain: Any, *, gather: bool) -> dict[str, Any]:
    loader = prepare(plain)
    shown: dict[str, Any] = {
        "len": len(loader),
        "total_batch_size": loader.total_batch_size,
        "total_dataset_length": loader.total_dataset_length,
        "device": str(loader.device),
        "known": [known is loader for known in accelerator._dataloaders],
        "is a DataLoader": isinstance(loader, DataLoader),
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
        "prefetch_factor": loader.prefetch_factor,
    }
    for epoch in range(2):
        steps = []
        for batch in loader:
            state = accelerator.gradient_state
            step = [batch.tolist(), loader.end_of_dataloader, state.end_of_dataloader, loader.remainder]
            step += [state.remainder, state.active_dataloader is loader, str(batch.device)]
            if gather:
                step.append(accelerator.gather_for_metrics(batch).tolist())
            steps.append(step)
        shown[f"epoch {epoch}"] = steps
        shown[f"after epoch {epoch}"] = [accelerator.gradient_state.in_dataloader, loader.iteration]
    loader.set_epoch(5)
    shown["epoch 5"] = [batch.tolist() for batch in loader]
    loader.set_epoch(5)
    shown["skipped"] = [batch.tolist() for batch in accelerator.skip_first_batches(loader, 1)]
    loader.set_epoch(8)
    for batch in loader:  # an early break
        shown["first of 8"] = batch.tolist()
        break
    shown["after the break"] = [batch.tolist() for batch in loader]
    loader.set_epoch(9)  # where batches are uneven, not all ranks have left that pass early
    again = prepare(loader)
    shown["prepared twice"] = [again is loader, len(accelerator._dataloaders)]
    if loader.num_workers:  # now and then: it takes a while
        accelerator.free_memory()
        shown["after free_memory"] = len(accelerator._dataloaders)
    return shown


def peek_on_one_rank(n: int, epochs: int) -> dict[str, Any]:
    """The batches of each epoch, in which rank 0 looks at a batch of another iterator now and then; and a state."""
    accelerator = accelerator_of({})
    loader = rankless_sampler.accelerate.prepare(accelerator, loader_of(n, 8))
    walked = []
    for _ in range(epochs):
        walked.append([])
        for step, batch in enumerate(loader):
            walked[-1].append(batch.tolist())
            if step % 2 and accelerator.is_main_process:
                next(iter(loader))
            if step == 3:
                state = loader.state_dict()
    return {"epochs": walked, "state": state}


# ---- gradient accumulation, models, optimizers and schedulers ----------------------------------------


def accumulate(folder: str, *, save_after: int | None = None) -> dict[str, Any]:
    """A DDP model that accumulates over 4 steps; saves after a step, or else loads that checkpoint and goes on."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    prepared = rankless_sampler.accelerate.prepare(accelerator, model, optimizer, loader_of(60, 2), scheduler)
    kinds = [type(thing).__name__ for thing in prepared]
    model, optimizer, loader, scheduler = prepared
    if save_after is None:
        accelerator.load_state(folder)
    synced, seen = [], []
    for step, batch in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch.float().reshape(-1, 1)).mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        synced.append(accelerator.sync_gradients)
        seen += batch.tolist()
        if step == save_after:
            accelerator.save_state(folder)
            break
    weight = next(model.parameters()).item()
    accelerator.wait_for_everyone()
    GradientState._reset_state()  # the next accelerator of this process accumulates over 1 step again
    return {"kinds": kinds, "synced": synced, "seen": seen, "weight": weight}


# ---- meshes ------------------------------------------------------------------------------------------


def on_meshes(meshes: list[dict[str, int]], folder: str) -> list[dict[str, Any]]:
    """By mesh (sizes by name): the batches of a pass, and of the rest after a checkpoint of the second step."""
    from torch.distributed.device_mesh import init_device_mesh

    results = []
    for number, sizes in enumerate(meshes):
        accelerator = accelerator_of({})
        # On CPUs accelerate refuses a ParallelismConfig; the mesh itself works.
        accelerator.state.device_mesh = init_device_mesh(
            "cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes.keys())
        )
        try:
            loader = rankless_sampler.accelerate.prepare(accelerator, loader_of(23, 2))
            walk = []
            for step, batch in enumerate(loader, start=1):
                walk.append(batch.tolist())
                if step == 2:
                    accelerator.save_state(str(Path(folder, f"mesh{number}")))
            accelerator.wait_for_everyone()
            accelerator.load_state(str(Path(folder, f"mesh{number}")))
            rest = [batch.tolist() for batch in loader]
            results.append({"walk": walk, "rest": rest, "total_batch_size": loader.total_batch_size})
        finally:
            accelerator.state.device_mesh = None
    return results


def ranks_on_a_mesh(sizes: dict[str, int]) -> list[list[int]]:
    """Of each process of a large mesh, the data-parallel number of replicas and rank that our batches get."""
    import torch.distributed as dist
    from accelerate.data_loader import prepare_data_loader
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from rankless_sampler.accelerate import _batches

    accelerator_of({})
    if dist.is_initialized():
        dist.destroy_process_group()
    processes = 1
    for size in sizes.values():
        processes *= size
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes.keys()))
        found = []
        for process in range(processes):
            loader = loader_of(100, 2)
            shard = prepare_data_loader(loader, num_processes=processes, process_index=process, torch_device_mesh=mesh)
            batches = _batches(loader.batch_sampler, loader.sampler, shard)
            found.append([batches.num_replicas, batches.rank])
        return found
    finally:
        dist.destroy_process_group()
