"""SeededEpochSampler: an order with an epoch, a position and a state; the drop-in for ``shuffle=True``.

Knows torch's Sampler and order.py, but no ranks, loaders or frameworks. Everything that moves is in two small
objects: the sampler (which epoch is due, is a resume pending) and, for each iterator, a _Cursor (where it stands).
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sized
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain
from operator import length_hint
from typing import Any, NamedTuple, SupportsIndex, TypeVar, cast

from torch.utils.data import Sampler

from rankless_sampler.order import (
    ALGORITHM,
    MAX_LENGTH,
    EpochDraws,
    EpochOrder,
    EpochRepeats,
    IndexSequence,
    _decimal,
    check_int,
    pieces,
)

__all__ = ["EpochIterator", "SeededEpochSampler"]

T = TypeVar("T")

State = dict[str, "int | str"]
Plan = Callable[[IndexSequence, int, int], "tuple[int, Iterator[list[T]]]"]
"""(sequence, start, length) -> how many items a pass from `start` gives, and these items in lists."""


class _Place(NamedTuple):
    """Where a pass starts, or stands: what a state says, and what must fit for it to be gone on with."""

    seed: int
    epoch: int
    position: int
    length: int
    data_length: int
    algorithm: str

    def state(self) -> State:
        state: State = {
            "algorithm": self.algorithm,
            "num_samples": self.length,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
        }
        if self.length != self.data_length:
            state["data_length"] = self.data_length
        return state


class _Cursor:
    """Where one iterator stands. The sampler keeps the latest, so that none may know its sampler: no cycles."""

    def __init__(self, stride: int) -> None:
        self.stride = stride  # positions of the epoch, over all ranks, that one item stands for
        self.start: _Place | None = None  # None until bound
        self.restored = False
        self.generation = -1  # the sampler's, when this was bound
        self.exhausted = False
        self.walking: tuple[Iterator[Any], int] = iter(()), 0  # the items being handed out, and the position behind

    def bind(self, start: _Place, *, restored: bool, generation: int) -> None:
        deque(self.walking[0], maxlen=0)  # the chain still holds them
        self.start, self.restored, self.generation = start, restored, generation
        self.walking = iter(()), start.position

    def hand_out(self, items: list[T]) -> Iterator[T]:
        iterator = iter(items)
        self.walking = iterator, self.walking[1] + len(items) * self.stride  # at once: a signal handler may look
        return iterator

    @property
    def place(self) -> _Place:
        """Where the next item comes from. Of a bound one."""
        assert self.start is not None
        items, behind = self.walking
        position = min(behind - length_hint(items) * self.stride, self.start.length)
        return self.start._replace(position=self.start.length if self.exhausted else position)


def _walk(sampler: SeededEpochSampler, cursor: _Cursor, plan: Plan[T]) -> Generator[Iterator[T], None, None]:
    """What an EpochIterator chains. Takes a step for each list, and one when the last item is being taken."""
    if cursor.start is None:
        sampler._bind(cursor)
    start = None
    while cursor.start is not start:  # load_state_dict on a walking iterator: begin anew from there
        start = cursor.start
        assert start is not None
        left, lists = plan(sampler._sequence(start), start.position, start.length)
        for items in _last_apart(left, lists):
            left -= len(items)
            if left == 0:
                sampler._settle(cursor)
            yield cursor.hand_out(items)
            if cursor.start is not start:
                break
    cursor.exhausted = True
    sampler._settle(cursor)


def _last_apart(count: int, lists: Iterator[list[T]]) -> Iterator[list[T]]:
    """`lists`, but the last one of all `count` items in a list of its own."""
    for items in lists:
        count -= len(items)
        yield from (items,) if count else (items[:-1], items[-1:])


class EpochIterator(chain[T]):
    """One walk through (the rest of) an epoch: C speed, exact position, and torchdata's Stateful protocol.

    It binds to an epoch and a start when its first item is taken, or by its own `load_state_dict`.
    """

    _sampler: SeededEpochSampler
    _cursor: _Cursor
    _lists: Generator[Iterator[T], None, None]

    @classmethod
    def over(cls, sampler: SeededEpochSampler, plan: Plan[T], *, stride: int = 1) -> EpochIterator[T]:
        """An unbound iterator over the items that `plan` makes, each of which stands for `stride` positions."""
        cursor = _Cursor(stride)
        lists = _walk(sampler, cursor, plan)
        iterator = cast("EpochIterator[T]", cls.from_iterable(lists))
        iterator._sampler, iterator._cursor, iterator._lists = sampler, cursor, lists
        return iterator

    def state_dict(self) -> State:
        """Where this iterator stands, or, before its first item, would start: see `SeededEpochSampler.state_dict`.

        A rank view's says too, as "stride", how many positions one of its items stands for.
        """
        cursor = self._cursor
        state = (self._sampler._next_place() if cursor.start is None else cursor.place).state()
        if cursor.stride != 1:
            state["stride"] = cursor.stride
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on exactly there, whatever the sampler's own epoch and position are.

        Raises:
            ValueError: the state is not one of this sampler; nothing is changed.
            RuntimeError: this iterator has ended: it has raised StopIteration, or an error.
        """
        if getgeneratorstate(self._lists) == GEN_CLOSED:
            raise RuntimeError("this iterator has ended and cannot go on: call iter() and load into the new one")
        self._sampler._restore(self._sampler._read(state_dict), self._cursor)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("an iterator cannot be copied or pickled: take its state_dict(), and load that into a new one")


class SeededEpochSampler(Sampler[int]):
    """The drop-in for ``shuffle=True`` whose order is a value: a pure function of (seed, epoch).

    The same on every rank, whenever it is asked for; it never reads or moves a global RNG.

    >>> sampler = SeededEpochSampler(range(10), seed=7)
    >>> list(sampler), sampler.epoch
    ([6, 2, 3, 5, 1, 4, 0, 8, 7, 9], 1)
    >>> iterator = iter(sampler)
    >>> next(iterator), next(iterator)
    (2, 1)
    >>> sampler.state_dict()
    {'algorithm': 'v1', 'num_samples': 10, 'seed': 7, 'epoch': 1, 'position': 2}

    Until somebody calls `set_epoch`, the sampler counts: a pass that reaches the end of the epoch moves it on, one that
    stops early does not. From then on the caller counts.

    Args:
        data_source: anything with ``len()``, or the number of samples. The length is read again for each new pass.
        seed: any int; the same on every rank (`shared_seed` makes one).
        replacement: draw each index independently, uniformly and with replacement.
        num_samples: indices in a pass, >= 1; default ``len(data_source)``. More than that without replacement: one
            permutation after another, each of its own.
    Raises:
        TypeError, ValueError: an argument is of the wrong type or outside its range; the error names it.
    """

    def __init__(
        self,
        data_source: Sized | SupportsIndex,
        seed: int = 0,
        *,
        replacement: bool = False,
        num_samples: int | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be a bool, got {replacement!r}")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = None if num_samples is None else check_int("num_samples", num_samples, 1, MAX_LENGTH)
        self._seed = check_int("seed", seed)
        self._epoch = 0
        self._caller_counts = False
        self._resume: _Place | None = None  # where the next iterator to bind goes on, once
        self._latest: _Cursor | None = None  # the latest to be bound since the last load_state_dict
        self._generation = 0  # grows with each set_epoch and load: what was bound before moves nothing any more
        self._warned = False
        self._lengths()

    @property
    def seed(self) -> int:
        """The seed; that of a loaded state wins over the constructor's."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch that the next pass would walk."""
        return self._epoch

    @property
    def num_samples(self) -> int:
        """Indices in a pass."""
        return self._lengths()[1]

    def __len__(self) -> int:
        return self._lengths()[1]

    def __iter__(self) -> EpochIterator[int]:
        return EpochIterator.over(self, _samples)

    def set_epoch(self, epoch: int) -> None:
        """From now on the caller counts: each iterator not yet bound walks `epoch`, from its start.

        Absolute and idempotent; drops a pending resume; never disturbs an iterator that is already bound.

        Raises:
            TypeError, ValueError: `epoch` is no int >= 0.
        """
        self._epoch = check_int("epoch", epoch, 0)
        self._caller_counts = True
        self._resume = None
        self._generation += 1

    def order(self, epoch: int | None = None) -> EpochOrder:
        """The permutation of one epoch, by default the one that the next pass would walk.

        A pass of fewer than n samples takes its first ones, a pass of more goes on with other permutations.

        Raises:
            ValueError: with ``replacement=True`` there is no permutation; or `epoch` < 0.
        """
        if self.replacement:
            raise ValueError("order() needs replacement=False: draws with replacement are no permutation")
        epoch = self.epoch if epoch is None else check_int("epoch", epoch, 0)
        return EpochOrder(self._lengths()[0], seed=self._seed, epoch=epoch)

    def state_dict(self, *, position: int | None = None) -> State:
        """The place in the run as a fresh dict of plain ints and strs, the same on every rank.

        Args:
            position: how many samples of the epoch that was begun last, over all ranks, have been *trained on*. By
                default what has been handed out: ahead of that, behind a loader that prefetches and has no state.
        Returns:
            "algorithm", "num_samples" (in a pass), "seed", "epoch", "position" (over all ranks), and "data_length"
            where the pass is shorter or longer than the dataset.
        Raises:
            TypeError, ValueError: `position` is no int in ``0..num_samples``.
        """
        latest = self._latest
        if position is not None:
            # A loader may have drained the pass that the caller still trains on: that one is meant, not the next.
            begun = latest.start if latest is not None and latest.generation == self._generation else None
            place = begun or self._next_place()
            return place._replace(position=check_int("position", position, 0, place.length)).state()
        if latest is not None and latest.place.epoch == self._epoch:
            return latest.place.state()
        return self._next_place().state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on exactly there; the one after it is the next epoch.

        The end of epoch e is the start of e + 1. The state's seed wins, with a warning where it is another.

        Raises:
            ValueError: the state is not one of this sampler (another length or algorithm, a missing or extra key, a
                wrong type, a value out of range); names the key and the way out. The sampler is left as it was.
        """
        self._restore(self._read(state_dict))

    def fingerprint(self) -> State:
        """What the ranks must agree on: kind, lengths, seed, and where the next pass starts. See `check_ranks`."""
        place = self._next_place()
        return {"kind": type(self).__name__, **place.state(), "data_length": place.data_length}

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no iterators: its next pass is the one that this sampler's next pass would be.
        return {**self.__dict__, "_latest": None}

    def __repr__(self) -> str:
        extra = ", replacement=True" if self.replacement else ""
        if self._num_samples is not None:
            extra += f", num_samples={self._num_samples}"
        return f"{type(self).__name__}({self._lengths()[0]}, seed={_decimal(self._seed)}{extra})"

    # ---- for the iterators and the rank views ----

    @property
    def _algorithm(self) -> str:
        return f"{ALGORITHM}-replacement" if self.replacement else ALGORITHM

    def _lengths(self) -> tuple[int, int]:
        """Samples in the dataset and in a pass, read now."""
        if isinstance(self.data_source, Sized) and getattr(self.data_source, "ndim", None) != 0:  # 0-d arrays have none
            # Not len(): what that refuses (negative, > 2^63 - 1), it refuses without a name.
            n = check_int("len(data_source)", self.data_source.__len__(), 0, MAX_LENGTH)
        else:
            try:
                n = check_int("data_source", self.data_source, 0, MAX_LENGTH)
            except TypeError:
                raise TypeError(
                    f"data_source must have a len(), or be the number of samples, got {self.data_source!r:.100}; "
                    "an IterableDataset has no order that a sampler could give"
                ) from None
        if n == 0 and self._num_samples is not None:
            raise ValueError(f"num_samples={self._num_samples} cannot be drawn from an empty data_source")
        return n, n if self._num_samples is None else self._num_samples

    def _sequence(self, place: _Place) -> IndexSequence:
        n, length, seed, epoch = place.data_length, place.length, place.seed, place.epoch
        if self.replacement:
            return EpochDraws(n, length, seed=seed, epoch=epoch)
        if length > n:
            return EpochRepeats(n, length, seed=seed, epoch=epoch)
        return EpochOrder(n, seed=seed, epoch=epoch)

    def _next_place(self) -> _Place:
        """Where the next iterator to be bound starts."""
        if self._resume is not None:
            return self._resume
        n, length = self._lengths()
        return _Place(self._seed, self._epoch, 0, length, n, self._algorithm)

    def _bind(self, cursor: _Cursor) -> None:
        place = self._next_place()
        if self._resume is not None:
            self._check_lengths(place)  # the dataset may have changed since load_state_dict
        elif not self._caller_counts:
            self._warn_after_early_stop(place)
        cursor.bind(place, restored=self._resume is not None, generation=self._generation)
        self._resume = None
        self._latest = cursor

    def _settle(self, cursor: _Cursor) -> None:
        """`cursor` has handed out everything: move on to the next epoch, if that is its business."""
        assert cursor.start is not None
        if (
            cursor.start.epoch == self._epoch
            and cursor.generation == self._generation
            and (cursor.restored or not self._caller_counts)
        ):
            self._epoch += 1

    def _restore(self, place: _Place, cursor: _Cursor | None = None) -> None:
        """Let `cursor`, or else the next one to be bound, go on at `place`."""
        if place.seed != self._seed:
            _warn(
                f"the state's seed={_decimal(place.seed)} replaces this sampler's seed={_decimal(self._seed)}: a "
                "resumed run keeps the order it began with. Pass the same seed to the constructor, or call set_epoch "
                "instead of loading."
            )
        at_end = 0 < place.length == place.position
        self._seed = place.seed
        self._epoch = place.epoch + at_end
        self._generation += 1
        self._latest = cursor
        self._resume = None
        if cursor is not None:
            cursor.bind(place, restored=True, generation=self._generation)
        else:
            self._resume = place._replace(epoch=self._epoch, position=0) if at_end else place

    def _warn_after_early_stop(self, place: _Place) -> None:
        before = None if self._latest is None else self._latest.place
        if before is None or self._warned or before.epoch != place.epoch or before.position == 0:
            return
        self._warned = True
        _warn(
            f"a pass through epoch {place.epoch} stopped early, at position {before.position} of {before.length}, and "
            "this one starts the same epoch again from 0: its samples come in the same order. Call set_epoch(e) before "
            "each epoch to say which one is due."
        )

    def _read(self, state: Mapping[str, Any]) -> _Place:
        """`state` as a place, checked against this sampler.

        Raises:
            ValueError: see `load_state_dict`.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"state must be a dict from state_dict(), got {type(state).__name__}")
        keys = ["algorithm", "num_samples", "seed", "epoch", "position"]
        missing = [key for key in keys if key not in state]
        extra = [key for key in state if key not in (*keys, "data_length", "stride")]
        if missing or extra:
            raise ValueError(
                f"state must have the keys {keys}: missing {missing}, unknown {extra}; is it the state of a "
                "SeededEpochSampler? (sampler_state() takes it out of a loader's)"
            )
        if not isinstance(state["algorithm"], str) or state["algorithm"] != self._algorithm:
            raise ValueError(
                f"state['algorithm'] is {state['algorithm']!r}, but this sampler's is {self._algorithm!r}: its order "
                "is another. Build the sampler as it was (replacement, shuffle), or update rankless_sampler"
            )
        try:
            check_int("state['stride']", state.get("stride", 1), 1)
            length = check_int("state['num_samples']", state["num_samples"], 0, MAX_LENGTH)
            place = _Place(
                seed=check_int("state['seed']", state["seed"]),
                epoch=check_int("state['epoch']", state["epoch"], 0),
                position=check_int("state['position']", state["position"], 0, length),
                length=length,
                data_length=check_int("state['data_length']", state.get("data_length", length), 0, MAX_LENGTH),
                algorithm=self._algorithm,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}: the state is damaged. Load an earlier one") from None
        self._check_lengths(place)
        return place

    def _check_lengths(self, place: _Place) -> None:
        n, length = self._lengths()
        way_out = (
            "a pass cannot go on over another length. "
            f"Call set_epoch({_decimal(place.epoch + 1)}) to start the next epoch on the new dataset."
        )
        if place.data_length != n:
            name = "num_samples" if place.data_length == place.length else "data_length"
            raise ValueError(f"state is for {name}={place.data_length}, but this dataset has {n}: {way_out}")
        if place.length != length:
            raise ValueError(
                f"state is for num_samples={place.length}, but this sampler's pass has {length}: {way_out}"
            )


def _warn(message: str) -> None:
    """A UserWarning at the line outside this package from which all this was called."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "rankless_sampler":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _samples(sequence: IndexSequence, start: int, length: int) -> tuple[int, Iterator[list[int]]]:
    return length - start, pieces(sequence, start, length)
