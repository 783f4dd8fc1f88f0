"""The rank views: each rank's part of an order, computed alone, with a position that no rank owns.

Knows samplers.py and torch.distributed, but no frameworks. The part of a rank is arithmetic on positions, so that a
rank pays for its own samples only, and a state from 8 ranks goes on with 6.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler

from rankless_sampler.order import LIST, MAX_LENGTH, UNIT, EpochOrder, IndexSequence, check_int, first_unit, pieces
from rankless_sampler.samplers import EpochIterator, SeededEpochSampler, State

__all__ = ["SeededDistributedSampler", "ShardedBatchSampler", "check_ranks", "shared_seed"]

_LIST_BATCHES = 512  # so many small lists at a time do not yet set the garbage collector off


class ShardedBatchSampler(BatchSampler):
    """One rank's batches of a `SeededEpochSampler`'s epoch: accelerate's layout, at 1/num_replicas of the cost.

    Step t of a pass that starts at position p covers ``[p + t*B*W, p + (t+1)*B*W)`` (B: batch_size, W: num_replicas);
    rank r takes the B positions from ``p + t*B*W + r*B``. Its state is the sampler's: a position over all ranks, the
    same on each of them, from which any other number of ranks and any other batch size goes on.

    >>> sampler = SeededEpochSampler(10, seed=7)
    >>> list(ShardedBatchSampler(sampler, 3, num_replicas=2, rank=1, even_batches=False))
    [[5, 1, 4], [9]]

    Args:
        sampler: whose order and epoch; also one with `replacement` or `num_samples`.
        batch_size: samples in a batch of one rank, >= 1.
        num_replicas, rank: default those of torch.distributed where it runs, else 1 and 0.
        drop_last: leave out a last step that has not ``B * W`` samples.
        even_batches: without `drop_last`, fill the last step up with samples from the head of the epoch, so that all
            ranks get full batches, equally many. False: nothing twice, and ranks may end one batch apart.
    Raises:
        TypeError, ValueError: an argument is of the wrong type or outside its range.
        RuntimeError: the process was launched as one of several, but its rank cannot be known yet.

    Do not hand its loader to accelerate's own ``prepare``, which would shard it a second time: hand it to
    `rankless_sampler.accelerate.prepare`.
    Source: the layout of accelerate's BatchSamplerShard, bit for bit, tails included.
    """

    def __init__(
        self,
        sampler: SeededEpochSampler,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        even_batches: bool = True,
    ) -> None:
        # Not super().__init__(): it would only set the same three attributes, after weaker checks.
        if not isinstance(sampler, SeededEpochSampler):
            raise TypeError(f"sampler must be a SeededEpochSampler, got {type(sampler).__name__}")
        self.sampler: SeededEpochSampler = sampler
        self.batch_size = check_int("batch_size", batch_size, 1, MAX_LENGTH)
        self.num_replicas, self.rank = _replicas(num_replicas, rank)
        self.drop_last = _check_bool("drop_last", drop_last)
        self.even_batches = _check_bool("even_batches", even_batches)

    def __iter__(self) -> EpochIterator[list[int]]:
        return EpochIterator.over(self.sampler, self._batches, stride=self.batch_size * self.num_replicas)

    def __len__(self) -> int:
        """Batches of this rank in the pass that the next iterator walks: the rest of it while a resume is pending."""
        place = self.sampler._next_place()
        return self._count(place.position, place.length, self.rank)

    @property
    def epoch(self) -> int:
        """The epoch that the next pass would walk."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """See `SeededEpochSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)

    def state_dict(self, *, position: int | None = None) -> State:
        """See `SeededEpochSampler.state_dict`: the same on every rank."""
        return self.sampler.state_dict(position=position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `SeededEpochSampler.load_state_dict`; the state may come from any number of ranks and any batch size."""
        self.sampler.load_state_dict(state_dict)

    def fingerprint(self) -> State:
        """What the ranks must agree on: the sampler's fingerprint, and how it is cut into batches."""
        return {
            **self.sampler.fingerprint(),
            "batch_size": self.batch_size,
            "num_replicas": self.num_replicas,
            "drop_last": int(self.drop_last),
            "even_batches": int(self.even_batches),
        }

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.sampler!r}, {self.batch_size}, num_replicas={self.num_replicas}, "
            f"rank={self.rank}, drop_last={self.drop_last}, even_batches={self.even_batches})"
        )

    def _count(self, start: int, length: int, rank: int) -> int:
        full, tail = divmod(length - start, self.batch_size * self.num_replicas)
        if self.drop_last or not tail:
            return full
        return full + (self.even_batches or tail > rank * self.batch_size)

    def _batches(self, sequence: IndexSequence, start: int, length: int) -> tuple[int, Iterator[list[list[int]]]]:
        # Rank 0's count: a rank without a batch in an uneven last step is done when the others are, not before.
        return self._count(start, length, 0), self._walk(sequence, start, length)

    def _walk(self, sequence: IndexSequence, start: int, length: int) -> Iterator[list[list[int]]]:
        size, step = self.batch_size, self.batch_size * self.num_replicas
        full = (length - start) // step
        done, unit = 0, first_unit(full * size)
        batches = max(1, min(LIST // size, _LIST_BATCHES))
        while done < full:
            steps = range(done, min(done + max(1, unit // size), full))
            firsts = range(start + steps.start * step + self.rank * size, start + steps.stop * step, step)
            rows = _rows(sequence, firsts, size)
            for i in range(0, len(rows), batches):
                yield rows[i : i + batches].tolist()
            done, unit = steps.stop, UNIT
        if self._count(start, length, self.rank) > full:
            first = start + full * step + self.rank * size
            batch = sequence[first : min(first + size, length)].tolist()
            if self.even_batches:  # fill up from the head; a short epoch goes round several times
                at = max(first, length)
                while len(batch) < size:
                    batch += sequence[at % length : min(at % length + size - len(batch), length)].tolist()
                    at = first + len(batch)
            yield [batch]


class SeededDistributedSampler(DistributedSampler[int]):
    """torch's DistributedSampler, its constructor, lengths and stride layout, over an order that is a value.

    A one-line replacement for it and for torchdata's StatefulDistributedSampler. The caller counts the epochs, as users
    of that class expect: call `set_epoch` before each. (A restored pass that reaches its end moves on by itself.) Its
    state is a position over all ranks, from which any number of ranks goes on; a rank computes its own part only.

    >>> sampler = SeededDistributedSampler(range(10), num_replicas=3, rank=2, seed=7)
    >>> list(sampler), len(sampler)
    ([3, 4, 7, 2], 4)

    Args:
        dataset: anything with ``len()``.
        num_replicas, rank: default those of torch.distributed where it runs, else 1 and 0.
        shuffle: False walks ``0, 1, 2, ...``.
        seed: any int, the same on every rank.
        drop_last: leave the last, uneven samples out. False: pad with samples from the head of the epoch.
    Raises:
        TypeError, ValueError: an argument is of the wrong type or outside its range.
        RuntimeError: the process was launched as one of several, but its rank cannot be known yet.
    """

    # Not super().__init__(): it sets as attributes what are properties here.
    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._sampler = (SeededEpochSampler if _check_bool("shuffle", shuffle) else _Sequential)(dataset, seed)
        self._sampler._caller_counts = True
        self.dataset = dataset  # type: ignore[assignment]  # anything with len() will do
        self.num_replicas, self.rank = _replicas(num_replicas, rank)
        self.drop_last = _check_bool("drop_last", drop_last)

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        """Whether it was made to shuffle."""
        return not isinstance(self._sampler, _Sequential)

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed; that of a loaded state wins over the constructor's."""
        return self._sampler.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the next pass would walk."""
        return self._sampler.epoch

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of this rank in a whole epoch."""
        return self._count(0, len(self._sampler))

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of all ranks in a whole epoch, padding included."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> EpochIterator[int]:
        return EpochIterator.over(self._sampler, self._samples, stride=self.num_replicas)

    def set_epoch(self, epoch: int) -> None:
        """See `SeededEpochSampler.set_epoch`."""
        self._sampler.set_epoch(epoch)

    def order(self, epoch: int | None = None) -> EpochOrder:
        """The order of one epoch over all ranks, by default the one that the next pass would walk."""
        return self._sampler.order(epoch)

    def state_dict(self, *, position: int | None = None) -> State:
        """See `SeededEpochSampler.state_dict`: the same on every rank."""
        return self._sampler.state_dict(position=position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `SeededEpochSampler.load_state_dict`; the state may come from any number of ranks."""
        self._sampler.load_state_dict(state_dict)

    def fingerprint(self) -> State:
        """What the ranks must agree on: the sampler's fingerprint, and how it is dealt out."""
        return {
            **self._sampler.fingerprint(),
            "num_replicas": self.num_replicas,
            "drop_last": int(self.drop_last),
        }

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._sampler)}, num_replicas={self.num_replicas}, rank={self.rank}, "
            f"shuffle={self.shuffle}, seed={self.seed}, drop_last={self.drop_last})"
        )

    def _count(self, start: int, length: int) -> int:
        left = length - start
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def _samples(self, sequence: IndexSequence, start: int, length: int) -> tuple[int, Iterator[list[int]]]:
        return self._count(start, length), self._walk(sequence, start, length)

    def _walk(self, sequence: IndexSequence, start: int, length: int) -> Iterator[list[int]]:
        stop = start + self._count(start, length) * self.num_replicas
        yield from pieces(sequence, start + self.rank, min(stop, length), self.num_replicas)
        last = stop - self.num_replicas + self.rank
        if last >= max(length, start):  # only the last step pads
            i = (last - length) % length
            yield sequence[i : i + 1].tolist()


class _Sequential(SeededEpochSampler):
    """What ``shuffle=False`` walks: 0, 1, 2, ..., with the same epochs and states."""

    @property
    def _algorithm(self) -> str:
        return "sequential"

    def _sequence(self, place: Any) -> IndexSequence:
        return _Ascending(place.length)

    def order(self, epoch: int | None = None) -> EpochOrder:
        raise ValueError("order() needs shuffle=True: there is no permutation")


class _Ascending:
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: slice) -> NDArray[np.int64]:
        positions = range(*key.indices(self._length))
        indices: NDArray[np.int64] = np.arange(len(positions), dtype=np.int64) * positions.step + positions.start
        return indices


def _rows(sequence: IndexSequence, firsts: range, size: int) -> NDArray[np.int64]:
    """The indices at `size` positions from each of `firsts` on: int64, (len(firsts), size)."""
    if firsts.step == size:
        run = sequence[firsts.start : firsts.start + len(firsts) * size]
        return run.reshape(len(firsts), size)
    if isinstance(sequence, EpochOrder):
        starts: NDArray[np.int64] = np.arange(len(firsts), dtype=np.int64) * firsts.step + firsts.start
        rows: NDArray[np.int64] = sequence[starts.reshape(-1, 1) + np.arange(size, dtype=np.int64)]
    else:
        rows = np.stack([sequence[first : first + size] for first in firsts])
    return rows


def _check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} ({type(value).__name__})")
    return value


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _replicas(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Number of replicas and rank, checked; torch.distributed's where they are not given."""
    if num_replicas is None or rank is None:
        _refuse_unknown_rank("num_replicas and rank")
        num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if _running() else 1
        rank = rank if rank is not None else dist.get_rank() if _running() else 0
    num_replicas = check_int("num_replicas", num_replicas, 1, MAX_LENGTH)
    return num_replicas, check_int("rank", rank, 0, num_replicas - 1)


def _refuse_unknown_rank(what: str) -> None:
    # As "0 of 1" each rank would silently train on everything.
    world = os.environ.get("WORLD_SIZE", "1")
    if not _running() and world not in ("", "1"):
        raise RuntimeError(
            f"{what} cannot be known yet: this process is one of WORLD_SIZE={world}, but torch.distributed does not "
            "run. Call torch.distributed.init_process_group (or build the Accelerator) first, or give them"
        )


# ---- ranks agree -------------------------------------------------------------------------------------


def check_ranks(sampler: Any, group: dist.ProcessGroup | None = None) -> None:
    """Compare `sampler.fingerprint()` over the ranks; a collective call, without effect on a single process.

    Args:
        sampler: any sampler of this package.
        group: the process group to compare over; default all ranks.
    Raises:
        TypeError: `sampler` is none of this package's.
        ValueError: the ranks differ; names in what, and which rank has which value.
    """
    if not hasattr(sampler, "fingerprint"):
        raise TypeError(
            f"sampler must be a sampler of rankless_sampler, got {type(sampler).__name__}; of a loader, pass "
            "its sampler or batch_sampler"
        )
    own = sampler.fingerprint()
    if not _running() or dist.get_world_size(group) == 1:
        return
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (own, getattr(sampler, "rank", None)), group=group)
    differing = []
    for key in sorted({key for fingerprint, _ in gathered for key in fingerprint}):
        holders: dict[Any, list[int]] = {}
        for member, (fingerprint, _) in enumerate(gathered):
            holders.setdefault(fingerprint.get(key), []).append(
                member if group is None else dist.get_global_rank(group, member)
            )
        if len(holders) > 1:
            differing.append(f"{key} is " + ", ".join(f"{value!r} on {_ranks(r)}" for value, r in holders.items()))
    if differing:
        raise ValueError(
            f"the ranks' samplers differ: {'; '.join(differing)}. Build each with the same arguments "
            "(seed=shared_seed() gives all ranks one fresh seed), and load the same state into each"
        )
    if group is None and own.get("num_replicas", 1) != 1:
        views = [rank for _, rank in gathered]
        counts = {rank: views.count(rank) for rank in range(own["num_replicas"])}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"num_replicas={own['num_replicas']}, but the ranks' views are rank={views}: each must occur equally "
                "often, or some samples come twice and others never. Leave `rank` out, or pass the data-parallel rank"
            )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def shared_seed(group: dist.ProcessGroup | None = None) -> int:
    """A fresh seed in ``range(2**63)`` from the operating system's entropy, the same on every rank.

    For who wants another order each run. A collective call where torch.distributed runs; moves no global RNG. Write the
    seed down: it is in every state, and a resumed run takes it from there.

    Raises:
        RuntimeError: the process was launched as one of several, but torch.distributed does not run yet.
    """
    seed = [secrets.randbits(63)]
    _refuse_unknown_rank("a seed shared by all ranks")
    if _running():
        dist.broadcast_object_list(seed, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
    return seed[0]
