"""accelerate: `prepare`, after which ``save_state`` and ``load_state`` are exact, on any number of processes.

accelerate shards and places the batches as ever; what is added is a loader that knows its epoch and how much of it
was delivered, and draws nothing before it is asked to. Measured against accelerate 1.13 to 1.16.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.state import GradientState
from torch.utils.data import BatchSampler, DataLoader

from rankless_sampler.batching import SeededDistributedSampler, ShardedBatchSampler, check_ranks
from rankless_sampler.delivery import Pass, Passes
from rankless_sampler.order import check_int
from rankless_sampler.samplers import EpochIterator, SeededEpochSampler, State

__all__ = ["CHECKPOINT_FILE", "ElasticDataLoader", "prepare"]

CHECKPOINT_FILE = "rankless_sampler.json"
"""What is added to accelerate's checkpoint folder: one state for each loader, in the order of preparation."""

_END = object()


def prepare(accelerator: Accelerator, *objects: Any, device_placement: list[bool] | None = None) -> Any:
    """``accelerator.prepare(*objects)``, whose loaders over our samplers resume exactly.

    After it, ``accelerator.save_state(dir)`` after any step and ``accelerator.load_state(dir)`` in a new run, with any
    number of processes, workers and samples in a batch, give the rest of the epoch, each sample once, then the next
    epoch. All else (models, optimizers, schedulers, other loaders) goes through ``accelerator.prepare`` as it is.

    >>> loader = prepare(accelerator, DataLoader(data, 32, sampler=SeededEpochSampler(data, 7)))  # doctest: +SKIP

    Args:
        accelerator: the Accelerator.
        objects: what ``accelerator.prepare`` takes; returned in the same order. A collective call: on all ranks.
        device_placement: as for ``accelerator.prepare``.
    Returns:
        The prepared objects: a tuple, or the object if it was one.
    Raises:
        ValueError: the ranks' samplers differ (see `check_ranks`), or a loader cannot be exact; says why.
        RuntimeError: the process was launched as one of several, but the Accelerator knows nothing of it.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if accelerator.num_processes == 1 and world not in ("", "1"):
        raise RuntimeError(
            f"this process is one of WORLD_SIZE={world}, but the Accelerator runs as one alone, so that each would "
            "train on every sample. Without a GPU, build it with Accelerator(cpu=True), or set ACCELERATE_USE_CPU=true"
        )
    placements = [None] * len(objects) if device_placement is None else device_placement
    if len(placements) != len(objects):
        raise ValueError(f"device_placement must have one entry for each of {len(objects)} objects, got {placements}")
    ready: list[Any] = []
    for obj, placement in zip(objects, placements, strict=True):
        ready.append(_elastic(accelerator, obj, placement, [*accelerator._dataloaders, *ready]))
    for loader in ready:
        if isinstance(loader, ElasticDataLoader):
            check_ranks(loader.batches)
    if not isinstance(getattr(accelerator.save_state, "__self__", None), _Checkpoints):
        _Checkpoints(accelerator)
    return accelerator.prepare(*ready, device_placement=device_placement)


class ElasticDataLoader(DataLoaderShard):  # type: ignore[misc]  # accelerate is not typed
    """accelerate's loader, with a state: epoch and position, over all ranks, of what was *delivered*.

    ``set_epoch(e)`` of the epoch that a resume is pending for keeps its position (epoch loops begin with that call);
    any other epoch starts at its start. A pass that is under way goes on undisturbed, by ``set_epoch`` or by another
    iterator beside it (a peek); of several in the epoch that is due, the state is that of the one that delivered last.
    One that is left then counts no more, unless it came further than those that go on.

    Made by `prepare`, with the attributes of accelerate's loader. Of these, ``iteration`` is the epoch that is due and
    ``remainder`` the samples in the last step of the pass, where that is uneven. ``batches`` is this rank's
    `ShardedBatchSampler`.
    """

    batches: _Batches
    iteration: int
    remainder: int

    def __init__(self, shard: Any, batches: _Batches, *, whole_lists: bool = False) -> None:
        arguments = _loader_arguments(shard)
        if whole_lists:  # batch_size=None: the dataset gets whole lists of indices
            arguments |= {"sampler": batches, "batch_size": None}
        else:
            arguments["batch_sampler"] = batches
        super().__init__(
            shard.dataset,
            device=shard.device,
            rng_types=shard.rng_types,
            synchronized_generator=shard.synchronized_generator,
            _drop_last=batches.drop_last,
            _non_blocking=shard._non_blocking,
            **arguments,
        )
        self.batches = batches
        self._opening = False
        self._passes = Passes()
        self._warned = False
        self._resume: State | None = None
        self._generation = -1
        self._adopt()

    def __iter__(self) -> Iterator[Any]:
        self._adopt()
        self._passes.opened = own = None
        due = self.iteration
        delivered = super().__iter__()
        try:
            batch = next(delivered, _END)  # accelerate synchronises the RNGs, sets the epoch and starts the workers
            own = self._passes.opened
            assert own is not None
            while batch is not _END:
                self._passes.deliver(own)
                self.remainder, own.at_end = own.remainder, self.end_of_dataloader
                yield batch
                self._passes.refuse_taken_workers(own, persistent=self.persistent_workers)
                self._adopt()
                due = self.iteration
                batch = next(delivered, _END)
        except BaseException:  # left early
            self._adopt()
            left = own or self._passes.opened
            if left is not None:
                self._passes.leave(left)
                if left.restored and not left.delivered and left in self._passes.known:  # failed: still to be resumed
                    self._passes.forget(left)
                    self._expect(left.begun)
            self._hand_back()
            raise
        # Not accelerate's count: that leaves out a pass without a batch, as a short rest may be, and adds 1 to an epoch
        # that was told (set_epoch, load_state) while the pass went on, or that another pass has moved on to.
        self.iteration = due + (own in self._passes.known and own.epoch == due)
        self._passes.forget(own)
        self._hand_back()

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self.batches._count(0, len(self.batches.sampler), self.batches.rank)

    @property
    def total_batch_size(self) -> int:
        """Samples in a step, over all ranks."""
        return self.batches.batch_size * self.batches.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass; see the class for what becomes of a pending resume."""
        opening, self._opening = self._opening, False
        epoch = check_int("epoch", epoch, 0)
        self._adopt()
        resume = self._resume if self._resume is not None and self._resume["epoch"] == epoch else None
        if resume is not None:
            self.batches.sampler._read(resume)  # the dataset may have changed since
        if opening and resume is None:
            self._warn_after_early_stop(epoch)
        super().set_epoch(epoch)
        self.batches.set_epoch(epoch)
        if resume is not None:
            self.batches.load_state_dict(resume)
        self._generation = self.batches.sampler._generation
        self._passes.keep_live()
        self._expect(resume)
        if opening:
            restored = resume is not None
            self._passes.open(Pass(resume or self._state(0), restored=restored, remainder=self.remainder))
            self._expect(None)

    def begin(self) -> None:
        """Called by accelerate at the start of a pass, right before set_epoch."""
        super().begin()
        if self.remainder >= 0:  # of a resumed pass, the rest counts
            place = self.batches.sampler._next_place()
            self.remainder = (place.length - place.position) % self.total_batch_size
        self._opening = True

    def state_dict(self) -> State:
        """Epoch and position after the last delivered batch: plain ints and strs, the same on every rank."""
        self._adopt()
        if self._resume is not None:
            return dict(self._resume)
        current = next((own for own in reversed(self._passes.known) if own.epoch == self.iteration), None)
        if current is None:
            return self._state(0)
        length = int(current.begun["num_samples"])
        left = max(0, length - int(current.begun["position"]) - current.delivered * self.total_batch_size)
        if self.batches.drop_last and left < self.total_batch_size:
            left = 0
        return {**current.begun, "position": length - left}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on exactly there: the next pass is the rest of that epoch.

        Raises:
            ValueError: the state is not one of this sampler; nothing is changed.
        """
        self.batches.load_state_dict(state_dict)
        self._adopt()

    def __reduce__(self) -> tuple[Any, ...]:
        self._adopt()
        # Without the process's gradient state: each has its own, and weak references to loaders in it.
        return (_rebuild, ({key: value for key, value in self.__dict__.items() if key != "gradient_state"},))

    def _adopt(self) -> None:
        """Take over what the sampler was told directly (set_epoch, load_state_dict) since this loader last told it."""
        sampler = self.batches.sampler
        if self._generation != sampler._generation:
            self._generation = sampler._generation
            place = sampler._next_place()
            self.iteration = place.epoch
            if sampler._resume is not None or sampler._latest is None:  # a state was loaded
                self._passes.known.clear()
            self._passes.keep_live()
            self._expect(place.state() if place.position else None)

    def _hand_back(self) -> None:
        """Let accelerate's marks be those of the pass that goes on, if one does."""
        for own in reversed(self._passes.known):
            if own.live:
                self.remainder, self.end_of_dataloader = own.remainder, own.at_end
                return

    def _state(self, position: int) -> State:
        return self.batches.sampler._next_place()._replace(epoch=self.iteration, position=position).state()

    def _expect(self, resume: State | None) -> None:
        self._resume = resume
        self.batches.resuming = resume

    def _warn_after_early_stop(self, epoch: int) -> None:
        last = next((own for own in self._passes.known if not own.live and own.epoch == epoch), None)
        if last is None:
            return
        if last.restored and last.begun["position"]:
            message = (
                f"the resumed pass through epoch {epoch} stopped early, and this one starts the same epoch from 0: the "
                f"{last.begun['position']} samples before the checkpoint come again. Call set_epoch({epoch + 1}) to go "
                "on with the next epoch, or load_state again to repeat the resumed pass"
            )
        elif not self._warned:
            self._warned = True
            message = (
                f"a pass through epoch {epoch} stopped early, and this one starts the same epoch again from 0: its "
                "samples come in the same order. Call the loader's set_epoch(e) before each epoch to say which is due"
            )
        else:
            return
        warnings.warn(message, UserWarning, stacklevel=5)


def _rebuild(attributes: dict[str, Any]) -> ElasticDataLoader:
    loader = ElasticDataLoader.__new__(ElasticDataLoader)
    loader.__dict__.update(attributes, gradient_state=GradientState())
    return loader


class _Batches(ShardedBatchSampler):
    """The batches of one ElasticDataLoader: while that waits to resume, nobody else may walk them unnoticed."""

    resuming: State | None = None

    def __iter__(self) -> EpochIterator[list[int]]:
        if self.resuming is not None:
            self.load_state_dict(self.resuming)  # accelerate has just told the sampler to start that epoch from 0
            raise RuntimeError(
                "this loader already goes on where load_state left off: skip_first_batches would skip a second time. "
                "Iterate over the prepared loader itself"
            )
        return super().__iter__()


class _Checkpoints:
    """What save_state and load_state do beside their own work, for the loaders that the accelerator then knows."""

    def __init__(self, accelerator: Accelerator) -> None:
        # Weak: in a cycle, old loaders and their workers would stay until the garbage collector comes.
        self._accelerator = weakref.ref(accelerator)
        accelerator.save_state = self.save_state
        accelerator.register_load_state_pre_hook(self.load)

    @property
    def accelerator(self) -> Any:
        return self._accelerator()

    def loaders(self) -> list[ElasticDataLoader]:
        return [loader for loader in self.accelerator._dataloaders if isinstance(loader, ElasticDataLoader)]

    def save_state(self, output_dir: str | None = None, *arguments: Any, **named: Any) -> Any:
        """accelerate's save_state, and our file: taken away first and written last, so that it vouches for the rest.

        (accelerate's own hook comes too early for that: a process may be killed between any two files.)
        """
        loaders = self.loaders()
        self._refuse_skipping(loaders)
        content = {
            "format": 1,
            "step": self.accelerator.step,
            "dataloaders": [loader.state_dict() for loader in loaders],
        }
        project = self.accelerator.project_configuration
        main = self.accelerator.is_local_main_process if project.save_on_each_node else self.accelerator.is_main_process
        if main and output_dir is not None and not project.automatic_checkpoint_naming:
            Path(output_dir, CHECKPOINT_FILE).unlink(missing_ok=True)
        folder = type(self.accelerator).save_state(self.accelerator, output_dir, *arguments, **named)
        if main and loaders:
            _write(Path(folder, CHECKPOINT_FILE), content)
        return folder

    def load(self, models: Any, input_dir: str) -> None:
        loaders = self.loaders()
        if not loaders:
            return
        path = Path(input_dir) / CHECKPOINT_FILE
        states, step = _read(path)
        if len(states) != len(loaders):
            raise ValueError(
                f"{path} holds the states of {len(states)} loaders, but {len(loaders)} are prepared: prepare the same "
                "loaders in the same order as when it was saved"
            )
        for loader, state in zip(loaders, states, strict=True):  # all are checked before the first is changed
            loader.batches.sampler._read(state)
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)
        # accelerate takes it from a file of each rank's own: ranks that were not there before would accumulate
        # gradients out of step with the others.
        self.accelerator.step = step

    def _refuse_skipping(self, loaders: list[ElasticDataLoader]) -> None:
        for active in self.accelerator.gradient_state.dataloader_references:
            walked = getattr(getattr(active, "batch_sampler", None), "batch_sampler", None)
            if walked is not None and any(walked is loader.batches for loader in loaders):
                raise RuntimeError(
                    "save_state inside a loop over skip_first_batches(...): how far that is cannot be seen from "
                    "outside. Iterate over the prepared loader itself: after load_state it goes on where it was"
                )


def _write(path: Path, content: dict[str, Any]) -> None:
    # Whole or not at all: a process may be killed here.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read(path: Path) -> tuple[list[Any], int]:
    if not path.exists():
        raise ValueError(
            f"{path} is missing: the checkpoint was saved without rankless_sampler.accelerate.prepare, or never "
            "finished. To take over its weights only, call load_state before the loader is prepared, then "
            "loader.set_epoch(e)"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        states, step = content["dataloaders"], check_int("step", content["step"], 0)
        if content["format"] != 1 or not isinstance(states, list):
            raise ValueError(f"format {content['format']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it is damaged, or from a newer "
            "rankless_sampler. Load the checkpoint before it"
        ) from None
    return states, step


def _elastic(accelerator: Accelerator, loader: Any, device_placement: bool | None, others: list[Any]) -> Any:
    """`loader` as an ElasticDataLoader if it is one over our samplers and not yet prepared, else as it is."""
    if not isinstance(loader, DataLoader) or isinstance(loader, ElasticDataLoader):
        return loader
    if getattr(loader, "_is_accelerate_prepared", False):
        walked: Any = loader.batch_sampler or loader.sampler
        while hasattr(walked, "batch_sampler") or hasattr(walked, "sampler"):
            walked = walked.batch_sampler if hasattr(walked, "batch_sampler") else walked.sampler
        if isinstance(walked, SeededEpochSampler):
            raise ValueError(
                "the loader was prepared by accelerator.prepare already, and its checkpoints would not be exact: hand "
                "the DataLoader itself to this prepare, and not to accelerator.prepare"
            )
        return loader
    batched = loader.sampler if loader.batch_size is None and loader.batch_sampler is None else loader.batch_sampler
    sampler = getattr(batched, "sampler", batched)
    if isinstance(sampler, SeededDistributedSampler):
        raise ValueError(
            "a loader over SeededDistributedSampler has its rank's part already, and accelerate would divide that "
            "again: give it SeededEpochSampler(dataset, seed=...)"
        )
    if not isinstance(sampler, SeededEpochSampler):
        return loader
    if getattr(loader, "next_iter_state", None) is not None:  # of a StatefulDataLoader
        raise ValueError(
            "the loader waits to go on from a loaded state, which would be lost: load it into the sampler instead, "
            "sampler.load_state_dict(rankless_sampler.sampler_state(state))"
        )
    if batched is sampler:
        raise ValueError("a loader with batch_size=None over single samples cannot be sharded: give it a batch_size")
    if accelerator.dispatch_batches:
        raise ValueError(
            "dispatch_batches=True: only the main process reads, and accelerate saves no state of its place that "
            "another rank could go on from. Every rank can compute its own part here: set dispatch_batches=False"
        )
    if any(isinstance(other, ElasticDataLoader) and other.batches.sampler is sampler for other in others):
        raise ValueError("this sampler serves another prepared loader, and cannot be at two places: give each its own")
    # Asked with batch_sampler=: of one process, accelerate cannot take batch_size=None.
    asked = DataLoader(loader.dataset, batch_sampler=batched, **_loader_arguments(loader))
    shard = _sharded_by_accelerate(accelerator, asked, device_placement)
    elastic = ElasticDataLoader(shard, _batches(batched, sampler, shard), whole_lists=batched is loader.sampler)
    elastic._is_accelerate_prepared = True
    return elastic


def _sharded_by_accelerate(accelerator: Accelerator, loader: Any, device_placement: bool | None) -> Any:
    """accelerate's own prepared loader, to read from it what accelerate decides: ranks (meshes too), devices, RNGs."""
    known = list(accelerator._dataloaders)
    stateful = accelerator.dataloader_config.use_stateful_dataloader
    accelerator.dataloader_config.use_stateful_dataloader = False  # a stateful one would prefetch at once
    try:
        shard = accelerator.prepare_data_loader(loader, device_placement=device_placement)
    finally:
        accelerator.dataloader_config.use_stateful_dataloader = stateful
        accelerator._dataloaders = known
    if not isinstance(shard, DataLoaderShard):
        raise ValueError(f"accelerate made a {type(shard).__name__} of this loader, which cannot resume exactly")
    return shard


def _batches(batched: Any, sampler: SeededEpochSampler, shard: Any) -> _Batches:
    layout = shard.batch_sampler
    replicas, rank, even = 1, 0, False  # of one process accelerate leaves the last batch short
    size = batched.batch_size
    if isinstance(layout, BatchSamplerShard):
        replicas, rank, even = layout.num_processes, layout.process_index, layout.even_batches
        if layout.split_batches:
            size //= replicas
    if isinstance(batched, ShardedBatchSampler):
        if (batched.num_replicas, batched.rank) not in ((1, 0), (replicas, rank)):
            raise ValueError(
                f"the loader's ShardedBatchSampler is rank {batched.rank} of {batched.num_replicas}, but accelerate's "
                f"data-parallel rank is {rank} of {replicas}: pass num_replicas=1, rank=0 and let accelerate divide"
            )
        size, even = batched.batch_size, batched.even_batches
    elif type(batched) is not BatchSampler and not type(batched).__module__.startswith("torchdata."):
        raise ValueError(f"cannot tell how {type(batched).__name__} makes batches: use BatchSampler, or batch_size=")
    return _Batches(sampler, size, num_replicas=replicas, rank=rank, drop_last=batched.drop_last, even_batches=even)


def _loader_arguments(loader: Any) -> dict[str, Any]:
    """The DataLoader arguments of `loader` that do not say which samples go into which batch."""
    decided = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    names = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in decided]
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}
