"""Ray Train, DeepSpeed, Composer: they keep a DistributedSampler, and leave its epoch and state to the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frameworks.layouts import Batches, dealt_by_sample

import rankless_sampler

N, SEED, SIZE = 53, 7, 4
EPOCHS = 3
WORKERS = (0, 2)

# ---- on the ranks ------------------------------------------------------------------------------------


def train(
    loader: Any, sampler: Any, state: dict[str, Any] | None, save: Any, step: Any = lambda batch: None
) -> Batches:
    """What a user writes over a plain DataLoader: the state says what has been trained on, not what was prefetched."""
    if state is not None:
        sampler.load_state_dict(state)
    first, seen = sampler.epoch, []
    for epoch in range(first, EPOCHS):
        if epoch > first or state is None:  # a restored sampler knows its epoch
            sampler.set_epoch(epoch)
        for done, batch in enumerate(loader, start=1):
            seen.append(batch.tolist())
            step(batch)
            if state is None and (epoch, done) == (1, 3):
                save(sampler.state_dict(position=done * SIZE * sampler.num_replicas))
    return seen


def drive_ray(folder: str) -> None:
    """The driver's process: two runs in Ray's own new processes, the second goes on from the first's states."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def on_a_worker(config: dict[str, Any]) -> None:
        import ray.train.torch
        from torch.utils.data import DataLoader

        from rankless_sampler import SeededDistributedSampler

        rank = ray.train.get_context().get_world_rank()
        data: Any = range(N)
        for workers in WORKERS:
            sampler = SeededDistributedSampler(data, seed=SEED)
            loader = ray.train.torch.prepare_data_loader(
                DataLoader(data, batch_size=SIZE, sampler=sampler, num_workers=workers)
            )
            assert loader.sampler is sampler
            path = Path(folder, f"state-{workers}-{rank}")
            state = json.loads(path.read_text()) if config["resume"] else None
            seen = train(loader, sampler, state, lambda state, path=path: path.write_text(json.dumps(state)))
            Path(folder, f"seen-{workers}-{rank}-{config['resume']}").write_text(json.dumps(seen))

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1")
    for resume in (False, True):
        TorchTrainer(
            on_a_worker,
            train_loop_config={"resume": resume},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=str(Path(folder, "storage"))),
        ).fit()
    ray.shutdown()


def with_deepspeed(folder: str, resume: bool) -> list[Batches]:
    """By number of workers: the batches of this rank, trained on by DeepSpeed's engine, in its own loader."""
    import deepspeed
    import torch

    from rankless_sampler import SeededDistributedSampler

    deepspeed.init_distributed("gloo")
    results = []
    for workers in WORKERS:
        model = torch.nn.Linear(1, 1)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            config={"train_micro_batch_size_per_gpu": SIZE, "train_batch_size": 2 * SIZE},
        )
        data: Any = range(N)
        sampler = SeededDistributedSampler(data, seed=SEED)
        loader = engine.deepspeed_io(data, data_sampler=sampler, route="train", num_local_io_workers=workers)
        checkpoint = str(Path(folder, f"workers{workers}"))
        state = engine.load_checkpoint(checkpoint)[1]["sampler"] if resume else None

        def step(batch: Any, engine: Any = engine) -> None:
            engine.backward(engine(batch.float().unsqueeze(1)).mean())
            engine.step()

        def save(state: Any, engine: Any = engine, checkpoint: str = checkpoint) -> None:
            engine.save_checkpoint(checkpoint, client_state={"sampler": state})

        results.append(train(loader, sampler, state, save, step))
    return results


# ---- the tests ---------------------------------------------------------------------------------------


def epochs(rank: int) -> list[Batches]:
    return [dealt_by_sample(N, SEED, epoch, SIZE, 2, rank) for epoch in range(EPOCHS)]


def test_ray_train_keeps_the_sampler_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="ray[train] is not installed")
    packages = [str(Path(str(rankless_sampler.__file__)).parents[1]), str(Path(__file__).parents[1])]
    own = {
        "HOME": str(tmp_path),  # Ray leaves files there
        "PYTHONPATH": os.pathsep.join([*packages, os.environ.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    command = [sys.executable, "-c", f"from frameworks.{Path(__file__).stem} import *; drive_ray({str(tmp_path)!r})"]
    ended = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr[-5000:]
    for rank in range(2):
        first, second, third = epochs(rank)
        for workers in WORKERS:
            whole, rest = (
                json.loads((tmp_path / f"seen-{workers}-{rank}-{resume}").read_text()) for resume in (False, True)
            )
            assert whole == first + second + third
            assert rest == second[3:] + third


def test_deepspeed_keeps_the_sampler_and_resumes(run_ranks: Any, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    function = f"frameworks.{Path(__file__).stem}:with_deepspeed"
    whole, rest = (
        run_ranks(2, function, folder=str(tmp_path), resume=resume, env={"DS_ACCELERATOR": "cpu"}, timeout=300)
        for resume in (False, True)
    )
    for rank in range(2):
        first, second, third = epochs(rank)
        assert whole[rank] == [first + second + third] * 2
        assert rest[rank] == [second[3:] + third] * 2


def test_composers_contract_is_kept() -> None:
    # Composer 0.32 needs torch 2.7, and is not run here. What its Trainer does with a loader: it insists on a
    # DistributedSampler, tells that the epoch, and on resume draws and drops the batches that are done.
    import itertools

    from torch.utils.data import DataLoader, DistributedSampler

    data: Any = range(N)
    for rank in range(2):
        sampler = rankless_sampler.SeededDistributedSampler(data, num_replicas=2, rank=rank, seed=SEED)
        loader = DataLoader(data, batch_size=SIZE, sampler=sampler)
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(1)
        rest = itertools.islice(loader, 3, None)
        assert [batch.tolist() for batch in rest] == epochs(rank)[1][3:]
