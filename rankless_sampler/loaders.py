"""replace_sampler: somebody else's shuffling DataLoader, rebuilt over one of our samplers.

Knows what torch's DataLoader, and torchdata's, make of their arguments; imports torch only.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from rankless_sampler.batching import SeededDistributedSampler, ShardedBatchSampler
from rankless_sampler.order import check_int
from rankless_sampler.samplers import SeededEpochSampler, _warn

__all__ = ["replace_sampler"]

T = TypeVar("T")

_SAY_WHICH_SAMPLES = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_BY_HAND = "Build the loader with sampler=SeededEpochSampler(dataset, seed=...) instead"


def replace_sampler(dataloader: DataLoader[T], seed: int = 0) -> DataLoader[T]:
    """A new loader like `dataloader`, in which the order comes from `seed` and the epoch in place of a global RNG.

    For a loader that was made elsewhere with ``shuffle=True`` (or over a DistributedSampler, which becomes a
    SeededDistributedSampler). Every other argument is kept, of torchdata's StatefulDataLoader too. Call it before the
    first iteration, and before ``accelerator.prepare`` and its like.

    >>> loader = replace_sampler(DataLoader(range(10), batch_size=4, shuffle=True), seed=7)
    >>> [batch.tolist() for batch in loader]
    [[6, 2, 3, 5], [1, 4, 0, 8], [7, 9]]

    A batch sampler of another class is copied, over the new sampler: what it draws at random besides stays its own, and
    so do batches that it has planned in its constructor. A ``generator`` no longer gives the order, only, as before,
    the workers' base seeds: a warning says so.

    Args:
        dataloader: untouched; best thrown away.
        seed: any int; the same on every rank.
    Returns:
        A loader of the same class. It begins with epoch 0 (over a DistributedSampler: with the epoch that one had).
    Raises:
        TypeError: no DataLoader, or one over an IterableDataset.
        ValueError: it does not shuffle, or its order or class means something that would be lost; says what to do.
    """
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"dataloader must be a torch.utils.data.DataLoader, got {type(dataloader).__name__}")
    seed = check_int("seed", seed)
    if isinstance(dataloader.dataset, IterableDataset):
        raise TypeError(
            f"dataloader reads {type(dataloader.dataset).__name__}, an IterableDataset: that decides the order itself, "
            "and no sampler can. Shuffle inside the dataset, or make it map-style (__getitem__ and __len__)"
        )
    _refuse_begun(dataloader)
    arguments = _other_arguments(dataloader)
    arguments |= _order_arguments(dataloader, seed)
    return type(dataloader)(dataloader.dataset, **arguments)


def _refuse_begun(loader: Any) -> None:
    if getattr(loader, "_is_accelerate_prepared", False):
        raise ValueError("dataloader is prepared by accelerate already: call replace_sampler before prepare")
    if getattr(loader, "next_iter_state", None) is not None:  # of a StatefulDataLoader
        raise ValueError(
            "dataloader waits to go on from a loaded state, which belongs to the order that it had: call "
            "replace_sampler before load_state_dict"
        )
    if loader._iterator is not None:
        raise ValueError(
            "dataloader is in use: its workers run (persistent_workers=True), or it keeps its place (StatefulDataLoader"
            "), and neither can be handed over. Call replace_sampler before the first iteration"
        )


def _other_arguments(loader: Any) -> dict[str, Any]:
    """What `loader` was made with, but for the arguments that say which samples come, and in which batch."""
    arguments = {}
    for name, parameter in inspect.signature(type(loader).__init__).parameters.items():
        if name in ("self", "dataset", *_SAY_WHICH_SAMPLES):
            continue
        # torch itself keeps every argument under its own name. A subclass with arguments of its own need not.
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or not hasattr(loader, name):
            raise ValueError(
                f"dataloader is a {type(loader).__name__}, whose argument {name!r} cannot be read back from it. "
                + _BY_HAND
            )
        arguments[name] = getattr(loader, name)
    return arguments


def _order_arguments(loader: Any, seed: int) -> dict[str, Any]:
    batches = loader.batch_sampler
    if batches is None and not isinstance(loader.sampler, BatchSampler):  # batch_size=None: no batches at all
        return {"batch_size": None, "sampler": _replacement(loader, loader.sampler, seed)}
    if batches is None:  # batch_size=None over a batch sampler: the dataset gets whole lists
        return {"batch_size": None, "sampler": _rebatched(loader, loader.sampler, seed)}
    if _is_plain(batches) and not isinstance(batches.sampler, BatchSampler):
        # Also for batch_sampler=BatchSampler(...), which is the same: a StatefulDataLoader then keeps our state.
        sampler = _replacement(loader, batches.sampler, seed)
        return {"batch_size": batches.batch_size, "drop_last": batches.drop_last, "sampler": sampler}
    return {"batch_sampler": _rebatched(loader, batches, seed)}


def _is_plain(batches: Any) -> bool:
    return type(batches) is BatchSampler or (
        type(batches).__name__ == "BatchSampler" and type(batches).__module__ == "torchdata.stateful_dataloader.sampler"
    )


def _rebatched(loader: Any, batches: Any, seed: int) -> Any:
    """A batch sampler like `batches`, over the new sampler."""
    name = type(batches).__name__
    if isinstance(batches, ShardedBatchSampler):
        raise ValueError(f"dataloader walks {batches!r} already: give that its seed where it is made")
    inner = getattr(batches, "sampler", None)
    if not isinstance(inner, Sampler):
        raise ValueError(
            f"batch_sampler is a {name} without a `sampler` that could be replaced: it decides the order itself. Give "
            "it one from SeededEpochSampler(dataset, seed=...).order(epoch), or build the loader with batch_size="
        )
    others = [key for key, value in vars(batches).items() if key != "sampler" and _gives_order(value, inner)]
    if others:
        raise ValueError(
            f"batch_sampler is a {name} that draws from {others} too, not from its `sampler` alone, and would go on "
            "with these. Build it over SeededEpochSampler(dataset, seed=...) instead"
        )
    sampler = _replacement(loader, inner, seed)
    if _is_plain(batches):
        if hasattr(loader, "snapshot_every_n_steps") and isinstance(sampler, SeededEpochSampler):
            # The same batches, with a state that a StatefulDataLoader can keep.
            return ShardedBatchSampler(
                sampler, batches.batch_size, num_replicas=1, rank=0, drop_last=batches.drop_last, even_batches=False
            )
        return type(batches)(sampler, batches.batch_size, batches.drop_last)
    copied = copy.copy(batches)
    copied.sampler = sampler
    return copied


def _gives_order(value: Any, inner: Sampler[Any]) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(isinstance(one, Sampler | torch.Generator | Iterator) for one in value)
    return value is inner or isinstance(value, Sampler | torch.Generator | Iterator)


def _replacement(loader: Any, sampler: Any, seed: int) -> Any:
    """Our sampler in place of `sampler`, if that means what ours does."""
    kind, module = type(sampler).__name__, type(sampler).__module__
    torchdatas = module == "torchdata.stateful_dataloader.sampler"
    if type(sampler) is RandomSampler or (torchdatas and kind == "RandomSampler"):
        # torchdata's makes a generator of its own where none is given.
        if sampler.generator is not None and (not torchdatas or sampler.generator is loader.generator):
            _warn(
                f"the order came from a `generator`, and comes from seed={seed} now; a loader's `generator` goes on to "
                "give its workers' base seeds. Make the loader without one if the order was all it was for"
            )
        return SeededEpochSampler(
            sampler.data_source, seed, replacement=bool(sampler.replacement), num_samples=sampler._num_samples
        )
    if type(sampler) is DistributedSampler or (torchdatas and kind == "StatefulDistributedSampler"):
        if sampler.shuffle:
            ranks = {"num_replicas": sampler.num_replicas, "rank": sampler.rank}
            view = SeededDistributedSampler(sampler.dataset, seed=seed, drop_last=sampler.drop_last, **ranks)
            view.set_epoch(sampler.epoch)
            return view
        kind += "(shuffle=False)"
    elif isinstance(sampler, SeededEpochSampler | SeededDistributedSampler):
        raise ValueError(f"dataloader walks {sampler!r} already: give that its seed where it is made")
    elif not isinstance(sampler, SequentialSampler):
        raise ValueError(
            f"dataloader walks a {kind}, whose meaning would be lost: only RandomSampler (shuffle=True) and "
            "DistributedSampler can be replaced. For a subset, give torch.utils.data.Subset(dataset, indices) to a "
            "loader with shuffle=True; else build your sampler on SeededEpochSampler(dataset, seed=...).order(epoch)"
        )
    raise ValueError(
        f"dataloader does not shuffle ({kind}), so that there is no order to replace. "
        "Make it with shuffle=True if it should"
    )
