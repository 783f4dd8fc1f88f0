"""transformers: a callback that gives the Trainer our order, and a resumed epoch that is really the rest of it.

Measured against transformers 5.24 and 5.25: its Trainer tells the sampler the right epoch, but on several processes the
call does not reach the sampler of a loader that skips batches: a resumed epoch 1 silently goes on with epoch 0's order.
"""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, RandomSampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from rankless_sampler.samplers import SeededEpochSampler

__all__ = ["SeededOrderCallback"]


class SeededOrderCallback(TrainerCallback, ExportableState):  # type: ignore[misc]  # not all releases are typed
    """The Trainer's training order as a value: a pure function of ``data_seed`` (or ``seed``) and the epoch.

    >>> trainer = Trainer(model, arguments, train_dataset=data, callbacks=[SeededOrderCallback()])  # doctest: +SKIP
    >>> trainer.train(resume_from_checkpoint=True)  # doctest: +SKIP

    A `SeededEpochSampler` from a ``_get_train_sampler`` of your own is kept, with its own seed. What a checkpoint needs
    to go on exactly is kept in its trainer_state.json, and compared on resume: the samples in an optimizer step, over
    all processes, must be as many as before; how they are divided among processes, batches and accumulation may change.

    Raises (when training begins):
        ValueError: the Trainer shuffles in another sense (``train_sampling_strategy``), or the checkpoint was made over
            another dataset or step; says what to do. ``ignore_data_skip=True`` always begins the epoch anew.
    """

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        """What goes into each checkpoint's trainer_state.json."""
        return {"args": {}, "attributes": {"saved": self.saved}}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **others: Any,
    ) -> None:
        """Called by the Trainer when its loader is prepared, and nobody has drawn from it."""
        sampler = _sampler(args, train_dataloader)
        accumulation = args.gradient_accumulation_steps
        step = {
            "samples_per_step": train_dataloader.total_batch_size * accumulation,
            "steps_per_epoch": -(-len(train_dataloader) // accumulation),
        }
        if state.global_step:
            entry = (state.stateful_callbacks or {}).get(type(self).__name__, {})
            _go_on(sampler, step, state.global_step, entry, skip=not args.ignore_data_skip)
        # Its own attribute `sampler` makes accelerate's set_epoch reach it through a SkipBatchSampler too.
        train_dataloader.set_sampler(sampler)
        self.saved = {"sampler": sampler.state_dict(position=0), **step}


def _sampler(args: TrainingArguments, loader: Any) -> SeededEpochSampler:
    """The sampler for this loader: the one that it has, if it is ours, or one in place of ``shuffle=True``."""
    if not isinstance(loader, DataLoaderShard):
        raise ValueError(
            f"the training loader is a {type(loader).__name__}, where accelerate's DataLoaderShard was expected: no "
            "dispatch_batches=True, and a get_train_dataloader of your own must return accelerator.prepare(loader)"
        )
    batches = loader.batch_sampler
    if isinstance(batches, BatchSamplerShard):
        batches = batches.batch_sampler
    current = batches.sampler if type(batches) is BatchSampler else batches
    if isinstance(current, SeededEpochSampler):
        return current
    if type(current) not in (RandomSampler, SeedableRandomSampler):
        raise ValueError(
            f"the training loader walks a {type(current).__name__}, whose meaning would be lost "
            f"(train_sampling_strategy={getattr(args, 'train_sampling_strategy', None)!r}). Set "
            "train_sampling_strategy='random' for a map-style dataset, or leave SeededOrderCallback out"
        )
    return SeededEpochSampler(loader.dataset, args.seed if args.data_seed is None else args.data_seed)


def _go_on(sampler: SeededEpochSampler, step: dict[str, int], done: int, entry: Any, *, skip: bool) -> None:
    """Take over the checkpoint's seed, and make sure that skipping the steps it has done leads to where it was."""
    saved = (entry[0] if isinstance(entry, list) else entry).get("attributes", {}).get("saved")
    way_out = "Set ignore_data_skip=True to begin the epoch anew"
    if not saved:
        if skip and done % step["steps_per_epoch"]:
            raise ValueError(
                f"the checkpoint (step {done}) lies within an epoch, and was made without SeededOrderCallback: the rest"
                f" of that epoch is in another order. {way_out}, or resume from the end of an epoch"
            )
        return
    if not skip:
        sampler.load_state_dict({**sampler.state_dict(), "seed": saved["sampler"]["seed"]})
        return
    if saved["sampler"]["num_samples"] != len(sampler):
        raise ValueError(
            f"the checkpoint is of a dataset with {saved['sampler']['num_samples']} samples, but this one has "
            f"{len(sampler)}: its epoch cannot be gone on with. {way_out}"
        )
    changed = [f"{key}={step[key]}, was {saved[key]}" for key in step if step[key] != saved[key]]
    if changed:
        raise ValueError(
            f"the checkpoint's steps are not this run's ({'; '.join(changed)}), so that skipping as many would lead "
            "elsewhere. Keep processes * per_device_train_batch_size * gradient_accumulation_steps, and drop_last. "
            + way_out
        )
    sampler.load_state_dict(saved["sampler"])
