"""Lightning: a callback that lets a resumed Trainer begin where it should, and a DataLoader that it can resume.

Measured against lightning 2.6: its Trainer keeps a SeededDistributedSampler and tells it the right epoch, but makes the
first iterator before, with workers that prefetch from epoch 0; at an epoch's end it does not restore loaders at all, or
goes on with one that has nothing left; and it fast-forwards only loaders that have a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from rankless_sampler.batching import SeededDistributedSampler, ShardedBatchSampler
from rankless_sampler.delivery import Pass, Passes
from rankless_sampler.samplers import SeededEpochSampler, State

__all__ = ["ResumableDataLoader", "SeededOrderCallback"]

T_co = TypeVar("T_co", covariant=True)

View = SeededDistributedSampler | ShardedBatchSampler | SeededEpochSampler


class SeededOrderCallback(Callback):  # type: ignore[misc]  # mypy may run without lightning
    """Lets ``trainer.fit(..., ckpt_path=...)`` begin with the right epoch, and says so where it cannot go on exactly.

    >>> trainer = Trainer(callbacks=[SeededOrderCallback()])  # doctest: +SKIP

    From an epoch's end, with any loader; within an epoch, with torchdata's StatefulDataLoader or a
    `ResumableDataLoader`, on as many ranks and with the same batch size, as Lightning counts batches.

    Raises (when training begins):
        ValueError: within an epoch, over one of our samplers: the loader has no state, or a step has another size.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []  # samples in a step over all ranks, by loader
        self._steps_before: list[int] | None = None

    def state_dict(self) -> dict[str, Any]:
        """What goes into each checkpoint."""
        return {"samples_per_step": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by Lightning before there are loaders."""
        self._steps_before = state_dict["samples_per_step"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called by Lightning when the first iterator has been made, and nothing been taken from it."""
        loop = trainer.fit_loop
        assert loop._combined_loader is not None
        loaders = [(loader, view) for loader in loop._combined_loader.flattened if (view := _find(loader)) is not None]
        self._steps = [_step(loader, view) for loader, view in loaders]
        before, self._steps_before = self._steps_before, None
        if not loaders or trainer.ckpt_path is None:
            return
        if not loop.resumed_on_epoch_end:
            if before is not None and before != self._steps:
                raise ValueError(
                    f"the checkpoint was made with {before} samples in a step over all ranks, but this run has "
                    f"{self._steps}, and Lightning counts batches. Keep ranks * batch_size, or resume from a "
                    "checkpoint of an epoch's end (ModelCheckpoint(save_on_train_epoch_end=True))"
                )
            if 0 < loop.epoch_loop.batch_progress.current.ready < trainer.num_training_batches:
                for loader, _ in loaders:
                    _refuse_without_state(loader)
                return
        for loader, view in loaders:
            if isinstance(loader, ResumableDataLoader):
                loader._resume = None
            view.set_epoch(trainer.current_epoch)
        assert loop._data_fetcher is not None
        iter(loop._data_fetcher)


class ResumableDataLoader(DataLoader[T_co]):
    """torch's DataLoader over a sampler of this package, with a state: epoch and position of what it *delivered*.

    >>> loader = ResumableDataLoader(range(10), batch_size=4, sampler=SeededEpochSampler(10, seed=7))
    >>> batches = iter(loader)
    >>> next(batches), loader.state_dict()["position"]
    (tensor([6, 2, 3, 5]), 4)

    Samples that workers have prefetched do not count, so that a resumed run may have another ``num_workers``. The state
    is a position over all ranks, the same on each of them. ``set_epoch`` of the epoch that a resume is pending for, as
    Lightning calls it, keeps the resume; any other drops it.

    Args:
        arguments: those of torch's DataLoader, with ``sampler=`` SeededDistributedSampler or SeededEpochSampler, or
            ``batch_sampler=`` ShardedBatchSampler.
    Raises:
        ValueError: there is no such sampler.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        view = _find(self)
        if view is None:
            raise ValueError(
                f"ResumableDataLoader needs a sampler whose place is known, got {type(self.sampler).__name__}: give it "
                "sampler=SeededDistributedSampler(dataset, seed=...)"
            )
        self._view: View = view
        self._resume: State | None = None  # loaded, and waiting for the next pass
        self._generation = -1  # the sampler's, when that was
        self._passes = Passes()

    def __iter__(self) -> Any:
        # A generator: nothing is drawn before the first `next`, when the caller has said which epoch it is.
        inner, resume, self._resume = _inner(self._view), self._pending(), None
        if resume is not None:
            inner.load_state_dict(resume)
        own = Pass(inner._next_place().state(), generation=inner._generation)
        self._passes.open(own)
        try:
            for batch in super().__iter__():
                self._passes.deliver(own)
                yield batch
                self._passes.refuse_taken_workers(own, persistent=self.persistent_workers)
        except BaseException:  # left early
            self._passes.leave(own)
            raise
        own.live = False

    def state_dict(self) -> State:
        """Epoch and position after the last delivered batch: plain ints and strs, the same on every rank."""
        inner, resume = _inner(self._view), self._pending()
        if resume is not None:
            return dict(resume)
        current = next((own for own in reversed(self._passes.known) if _is_due(own, inner)), None)
        if current is None:
            return inner._next_place().state()
        begun, length = current.begun, int(current.begun["num_samples"])
        position = min(int(begun["position"]) + current.delivered * _step(self, self._view), length)
        return {**begun, "position": position if self._batches_from(position, length) else length}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on exactly there; the end of an epoch is the start of the next.

        Raises:
            ValueError: the state is not one of this sampler; nothing is changed.
        """
        inner = _inner(self._view)
        inner._read(state_dict)
        self._resume, self._generation = dict(state_dict), inner._generation
        self._passes.known.clear()

    def _pending(self) -> State | None:
        """The state that was loaded, unless the sampler was told another epoch since."""
        inner, resume = _inner(self._view), self._resume
        if resume is not None and (self._generation == inner._generation or inner.epoch == _due(resume)):
            return resume
        return None

    def _batches_from(self, position: int, length: int) -> int:
        """Batches that the rest of an epoch still gives, to the rank that gets most: none of what is dropped."""
        view = self._view
        if isinstance(view, ShardedBatchSampler):
            return view._count(position, length, 0)
        samples = view._count(position, length) if isinstance(view, SeededDistributedSampler) else length - position
        size = self.batch_size or 1
        return samples // size if self.drop_last else -(-samples // size)


def _refuse_without_state(loader: Any) -> None:
    if not hasattr(loader, "state_dict"):
        raise ValueError(
            f"the checkpoint lies within an epoch, and Lightning cannot fast-forward a {type(loader).__name__}: "
            "samples would come twice. Use rankless_sampler.lightning.ResumableDataLoader in its place (or torchdata's "
            "StatefulDataLoader), or resume from the end of an epoch"
        )


def _find(loader: Any) -> View | None:
    """What has the state of a loader's order, if that is one of ours.

    Raises:
        ValueError: Lightning has put another order over ours.
    """
    covered = getattr(getattr(getattr(loader, "sampler", None), "dataset", None), "_sampler", None)
    if type(getattr(loader, "sampler", None)).__name__ == "DistributedSamplerWrapper" and isinstance(covered, View):
        raise ValueError(
            f"Lightning shuffles the order of {covered!r} once more, and deals that out: no state of ours fits it. Use "
            "SeededDistributedSampler(dataset, seed=...), or Trainer(use_distributed_sampler=False) with a rank view"
        )
    batches = getattr(loader, "batch_sampler", None)
    for candidate in (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None)):
        if isinstance(candidate, View):
            return candidate
    return None


def _step(loader: Any, view: View) -> int:
    """Samples that a step takes over all ranks."""
    return (getattr(loader.batch_sampler, "batch_size", None) or 1) * getattr(view, "num_replicas", 1)


def _inner(view: View) -> SeededEpochSampler:
    if isinstance(view, SeededEpochSampler):
        return view
    return view.sampler if isinstance(view, ShardedBatchSampler) else view._sampler


def _is_due(own: Pass, inner: SeededEpochSampler) -> bool:
    """Whether the sampler was told nothing since the pass began, or, while that goes on, its own epoch again."""
    untold = own.generation == inner._generation
    return untold or (own.live and own.epoch == inner.epoch and inner._resume is None and inner._latest is not None)


def _due(state: State) -> int:
    """The epoch that a state leads to: its end is the start of the next."""
    return int(state["epoch"]) + (0 < int(state["num_samples"]) == int(state["position"]))
