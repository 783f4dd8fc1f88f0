"""The README's compatibility table, as data: `python tests/frameworks/table.py` prints it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    framework: str
    package: str  # its distribution, for the version
    version: str  # tested with
    write: str
    resumes: str
    limits: str
    tests: str  # the file, in this folder, that keeps what the row promises


_DISTRIBUTED = "`sampler=SeededDistributedSampler(data, seed=7)`"
_OWN_STATE = "within an epoch, with `sampler.state_dict(position=...)` in your checkpoint"

ROWS = [
    Row(
        "transformers Trainer",
        "transformers",
        "5.25.0",
        "`callbacks=[rankless_sampler.transformers.SeededOrderCallback()]`",
        "within an epoch, to the same weights; `ignore_data_skip` begins the epoch anew",
        "processes, batch size and accumulation may change while their product does not; no `dispatch_batches`; "
        '`train_sampling_strategy="random"`',
        "test_transformers.py",
    ),
    Row(
        "Lightning Trainer",
        "lightning",
        "2.6.6",
        f"{_DISTRIBUTED}, `callbacks=[rankless_sampler.lightning.SeededOrderCallback()]`, and torchdata's "
        "`StatefulDataLoader` or `rankless_sampler.lightning.ResumableDataLoader`",
        "within an epoch, to the same weights; a plain `DataLoader` from an epoch's end only",
        "same ranks * batch size within an epoch; a `ShardedBatchSampler` needs `use_distributed_sampler=False`",
        "test_lightning.py",
    ),
    Row(
        "Lightning Fabric",
        "lightning",
        "2.6.6",
        f"{_DISTRIBUTED}, `set_epoch`, `fabric.to_device(batch)`; no `setup_dataloaders`",
        "within an epoch, with the loader's `state_dict()` in your checkpoint",
        "a loader that was set up counts epochs from 0 in each process, and overrides you",
        "test_lightning.py",
    ),
    Row(
        "ignite",
        "pytorch-ignite",
        "0.5.5",
        f"{_DISTRIBUTED}, and on `Events.EPOCH_STARTED`: `sampler.set_epoch(engine.state.epoch - 1)`",
        "within an epoch with `StatefulDataLoader`; else from an epoch's end",
        "`auto_dataloader` makes plain loaders",
        "test_others.py",
    ),
    Row(
        "DDP, FSDP2 with torchdata (torchtitan)",
        "torchdata",
        "0.11.0",
        f"`StatefulDataLoader(..., {_DISTRIBUTED[1:-1]})`, `set_epoch`",
        "within an epoch, with `torch.distributed.checkpoint`",
        "same `num_workers`, or `sampler_state`; torchtitan itself is not run here",
        "test_others.py",
    ),
    Row(
        "Ray Train",
        "ray",
        "2.60.0",
        f"{_DISTRIBUTED}, `set_epoch`, `prepare_data_loader`",
        _OWN_STATE,
        "another sampler is replaced; tested by hand, not in CI",
        "test_ray_and_deepspeed.py",
    ),
    Row(
        "DeepSpeed",
        "deepspeed",
        "0.19.8",
        "`engine.deepspeed_io(data, data_sampler=SeededDistributedSampler(data, seed=7))`, `set_epoch`",
        f"{_OWN_STATE} (`client_state`)",
        "tested by hand, not in CI: it compiles on first use",
        "test_ray_and_deepspeed.py",
    ),
    Row(
        "Composer",
        "mosaicml",
        "not run",
        _DISTRIBUTED,
        "its Trainer draws and drops the batches that are done",
        "0.32 needs torch 2.7: only its contract is tested",
        "test_ray_and_deepspeed.py",
    ),
    Row(
        "datasets",
        "datasets",
        "5.2.0",
        "nothing: any sampler of this package over a map-style `Dataset`, all formats but `arrow`",
        "as the loader does",
        '`with_format("arrow")` cannot serve a `DataLoader` at all; an `IterableDataset` has its own order',
        "test_others.py",
    ),
    Row(
        "grain",
        "grain",
        "0.2.18",
        "the adapter below",
        "within an epoch, with its own `get_state()`",
        "grain leaves out the last `num_records * num_epochs % shard_count` records; same `worker_count`",
        "test_others.py",
    ),
    Row(
        "JAX, numpy",
        "numpy",
        "2.4.6",
        "`i = (step * hosts + host) * size`, `EpochOrder(n, seed=7, epoch=e)[i : i + size]`",
        "from any step: there is no state",
        "-",
        "test_others.py",
    ),
]


def markdown() -> str:
    lines = ["| framework | tested | what to write | resumes | limits |", "|---|---|---|---|---|"]
    for row in ROWS:
        lines.append(f"| {row.framework} | {row.version} | {row.write} | {row.resumes} | {row.limits} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
