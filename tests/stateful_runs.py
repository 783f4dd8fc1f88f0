"""What the StatefulDataLoader tests do in new processes: begin runs and save, or resume, finish and save again.

``python stateful_runs.py begin|resume IN OUT``: IN is a list of what to do, OUT the list of what came of it, each
written by torch.save and read with ``weights_only=True``. One process does many loaders: starting it costs seconds.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from rankless_sampler import SeededEpochSampler

SAMPLES, BATCH_SIZE, SEED = 22, 4, 7


class Samples(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Run:
    """A loader over a new sampler, and an epoch loop that may call set_epoch."""

    def __init__(self, options: dict[str, Any], state: dict[str, Any] | None = None) -> None:
        self.options, options = options, dict(options)
        self.caller_counts = options.pop("caller_counts")
        self.sampler = SeededEpochSampler(Samples(), SEED)
        self.loader = StatefulDataLoader(
            self.sampler.data_source,
            batch_size=BATCH_SIZE,
            sampler=self.sampler,
            collate_fn=list,
            multiprocessing_context="fork" if options["num_workers"] else None,
            **options,
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def walk(self, epoch: int) -> Any:
        if self.caller_counts:
            self.sampler.set_epoch(epoch)
        return iter(self.loader)


def place(run: Run, epoch: int, batches: int, *, save_again: bool = True) -> dict[str, Any]:
    """The loader's state, with what it should mean."""
    state = run.loader.state_dict()
    return {"options": run.options, "epoch": epoch, "batches": batches, "save_again": save_again, "state": state}


def begin(options: dict[str, Any]) -> list[dict[str, Any]]:
    """A state from before the first epoch, and from each possible moment of the second one."""
    run = Run(options)
    saved = [place(run, 0, 0)]
    for _ in run.walk(0):
        pass
    batches = run.walk(1)
    saved.append(place(run, 1, 0))
    for done, _ in enumerate(batches, 1):
        saved.append(place(run, 1, done))
    saved.append(place(run, 2, 0))
    return saved


def resume(saved: dict[str, Any]) -> dict[str, Any]:
    """The rest of the epoch and the next one; from a second resume, states after one more batch and at the end."""
    options, epoch, state = saved["options"], saved["epoch"], saved["state"]
    run = Run(options, state)
    delivered = [list(run.walk(epoch)), list(run.walk(epoch + 1))]
    again: list[dict[str, Any]] = []
    if saved["save_again"]:
        run = Run(options, state)
        batches = run.walk(epoch)
        if next(batches, None) is not None:
            again.append(place(run, epoch, saved["batches"] + 1, save_again=False))
        if saved["batches"] == 3:
            for _ in batches:
                pass
            again.append(place(run, epoch + 1, 0, save_again=False))
    return {"saved": saved, "delivered": delivered, "again": again}


def step_by_step(options: dict[str, Any]) -> list[list[int]]:
    """An epoch, with a new loader that resumes from the one before for each batch, and the next one in one go."""
    delivered: list[list[int]] = []
    run = Run(options)
    while (batch := next(batches := run.walk(0), None)) is not None:
        delivered.append(batch)
        run = Run(options, run.loader.state_dict())
    del batches
    return delivered + list(run.walk(1))


if __name__ == "__main__":
    todo = torch.load(sys.argv[2], weights_only=True)
    torch.save([globals()[sys.argv[1]](item) for item in todo], sys.argv[3])
