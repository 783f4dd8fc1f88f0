"""The order: a permutation of range(n) as a pure function of (n, seed, epoch).

Knows nothing of torch, ranks, loaders or state: numpy in, numpy and plain ints out. The algorithm is
specified in the README ("Order v1, for reimplementers") and frozen: its results never change. How it is
computed may.
"""

from __future__ import annotations

import hashlib
import operator
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["ALGORITHM", "MAX_LENGTH", "EpochOrder"]

ALGORITHM = "v1"
"""The name of the frozen algorithm, as it stands in every state."""

MAX_LENGTH = 2**63 - 1
"""The largest dataset, pass or position: what an int64 holds."""

_TABLE_MAX = 4096  # up to here a sorted table: exactly uniform, and cheaper than the network
_ROUNDS = 8
_GOLDEN = 0x9E3779B1
_MASK32 = 0xFFFFFFFF

UNIT = 32_768  # positions per run of numpy calls: 128 KiB a scratch array, so that four stay in L2
_FIRST_UNIT = 1_024  # the first unit of a walk: a first index must not wait for 32,768
_ONE_UNIT = 16_384  # but so few are computed at once
LIST = 8_192  # indices per Python list: larger lists fall out of L2
_IMAGES_MAX = 4_096  # so many values outside range(n) are worth a table; where there are more, few are met


def _u32(value: int) -> NDArray[np.uint32]:
    """A 0-d array: numpy 1.x and 2.x promote scalars differently, and warn where they overflow."""
    return np.array(value, dtype=np.uint32)


_GOLDEN_ARRAY = _u32(_GOLDEN)
_FIFTEEN = _u32(15)


# ---- checks, shared with the samplers ----------------------------------------------------------------


def check_int(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """`value` as a plain int.

    Raises:
        TypeError: `value` is no integer (a bool, also one of numpy or torch, is none either).
        ValueError: it lies outside ``low..high``.
    """
    try:
        if type(value) is not int and (isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # that is what is being asked
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r:.200} ({type(value).__name__})") from None
    if (low is not None and number < low) or (high is not None and number > high):
        allowed = f">= {low}" if high is None else f"in {low}..{high}" if low is not None else f"<= {high}"
        raise ValueError(f"{name} must be {allowed}, got {_shown(number)}")
    return number


def _shown(number: int) -> str:
    """`number` for a message: str() refuses ints of more than some thousand digits, and nobody reads them."""
    return str(number) if number.bit_length() <= 256 else f"an int of {number.bit_length()} bits"


def _new_array(count: int) -> NDArray[np.int64]:
    """An uninitialised int64 array of `count` elements; MemoryError where it cannot fit this machine."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no sysconf on this system: leave it to numpy
        memory = sys.maxsize
    if count * 8 > memory:
        raise MemoryError(
            f"{count} indices as an int64 array take {count * 8} bytes, more than this machine's {memory}: "
            "slice the order (order[i:j]) or iterate over it instead"
        )
    return np.empty(count, dtype=np.int64)


# ---- the network's working memory --------------------------------------------------------------------


class _Scratch:
    """Working memory for one unit: 0.6 MiB, reused from unit to unit."""

    __slots__ = ("left", "ramp", "right", "s", "t")

    def __init__(self) -> None:
        self.ramp = np.arange(UNIT, dtype=np.uint32)
        self.left, self.right, self.t, self.s = (np.empty(UNIT, dtype=np.uint32) for _ in range(4))


# Taken with pop and given back with append, both atomic: safe for threads, and for a signal handler or a
# finaliser that asks for an order while one is being computed (thread-local memory would be overwritten).
_pool: list[_Scratch] = []


def _take_scratch() -> _Scratch:
    try:
        return _pool.pop()
    except IndexError:  # asked for afterwards: between a look at the pool and its pop another thread may empty it
        return _Scratch()


class _Network:
    """The Feistel network of one (n, seed, epoch): its keys, and the walked permutation in both directions."""

    __slots__ = ("_arrays", "_images", "b", "k", "keys", "n", "narrow", "outside", "v")

    def __init__(self, n: int, digest: bytes) -> None:
        bits = (n - 1).bit_length()
        self.n = n
        self.k = 32 if bits == 63 else bits // 2
        self.b = -(-n >> self.k)
        self.v = min(31, (self.b - 1).bit_length() + 8)
        self.outside = (self.b << self.k) - n
        self.narrow = self.b << self.k <= 1 << 32  # every value fits uint32
        words = np.frombuffer(digest, dtype="<u4").tolist()
        self.keys = [(words[2 * j] | 1, words[2 * j + 1]) for j in range(_ROUNDS)]
        shifts = [32 - self.k if j & 1 else 32 - self.v for j in range(_ROUNDS)]
        self._arrays = [(_u32(m), _u32(c), _u32(shift)) for (m, c), shift in zip(self.keys, shifts, strict=True)]
        self._images: dict[bool, NDArray[np.int64]] = {}

    def one(self, value: int, *, inverse: bool = False) -> int:
        """The index at one position (inverse: the position of one index), in plain ints."""
        k, b, keys = self.k, self.b, self.keys
        left_shift, right_shift, low = 32 - self.v, 32 - k, (1 << k) - 1
        rounds = range(_ROUNDS - 1, -1, -1) if inverse else range(_ROUNDS)
        while True:
            left, right = value >> k, value & low
            for j in rounds:
                multiplier, offset = keys[j]
                t = ((left if j & 1 else right) * multiplier + offset) & _MASK32
                t = ((t ^ (t >> 15)) * _GOLDEN) & _MASK32
                if j & 1:
                    right ^= t >> right_shift
                elif inverse:
                    left = (left - (t >> left_shift)) % b
                else:
                    left = (left + (t >> left_shift)) % b
            value = (left << k) | right
            if value < self.n:
                return value

    def run(self, start: int, out: NDArray[np.int64]) -> None:
        """Write the indices at the positions ``start, start + 1, ...`` into `out`: at most one unit."""
        if not self.narrow:
            self.map(np.arange(start, start + len(out), dtype=np.int64), out)
            return
        scratch = _take_scratch()
        np.add(scratch.ramp[: len(out)], _u32(start), out=scratch.right[: len(out)])
        self._encrypt(scratch, out, inverse=False)
        self._walk(out, inverse=False)

    def map(self, values: NDArray[np.int64], out: NDArray[np.int64], *, inverse: bool = False) -> None:
        """Write the index at each position (inverse: the position of each index) into `out`: at most one unit."""
        self._encrypt_values(values, out, inverse=inverse)
        self._walk(out, inverse=inverse)

    def _encrypt_values(self, values: NDArray[np.int64], out: NDArray[np.int64], *, inverse: bool) -> None:
        scratch = _take_scratch()
        if self.narrow:
            np.copyto(scratch.right[: len(out)], values, casting="unsafe")
        else:
            np.copyto(scratch.left[: len(out)], values >> np.int64(self.k), casting="unsafe")
            np.copyto(scratch.right[: len(out)], values & np.int64((1 << self.k) - 1), casting="unsafe")
        self._encrypt(scratch, out, inverse=inverse)

    def _encrypt(self, scratch: _Scratch, out: NDArray[np.int64], *, inverse: bool) -> None:
        """The 8 rounds, without the walk, on the values that stand in `scratch`, which goes back to the pool."""
        left, right, t, s = (x[: len(out)] for x in (scratch.left, scratch.right, scratch.t, scratch.s))
        k, b = _u32(self.k), _u32(self.b)
        if self.narrow:  # the values stand whole in `right`
            np.right_shift(right, k, out=left)
            np.bitwise_and(right, _u32((1 << self.k) - 1), out=right)
        for j in range(_ROUNDS - 1, -1, -1) if inverse else range(_ROUNDS):
            multiplier, offset, shift = self._arrays[j]
            np.multiply(left if j & 1 else right, multiplier, out=t)
            np.add(t, offset, out=t)
            np.right_shift(t, _FIFTEEN, out=s)
            np.bitwise_xor(t, s, out=t)
            np.multiply(t, _GOLDEN_ARRAY, out=t)
            np.right_shift(t, shift, out=t)
            if j & 1:
                np.bitwise_xor(right, t, out=right)
                continue
            # mod b as t - (t // b) * b: np.remainder has no SIMD
            if inverse:
                np.floor_divide(t, b, out=s)
                np.multiply(s, b, out=s)
                np.subtract(t, s, out=t)
                np.subtract(b, t, out=t)  # left - t as left + (b - t), which is < 2 * b <= 2^32
            np.add(left, t, out=left)
            np.floor_divide(left, b, out=s)
            np.multiply(s, b, out=s)
            np.subtract(left, s, out=left)
        if self.narrow:
            np.left_shift(left, k, out=left)
            np.bitwise_or(left, right, out=left)
            out[...] = left
        else:
            out[...] = left
            np.left_shift(out, np.int64(self.k), out=out)
            np.bitwise_or(out, right, out=out)
        _pool.append(scratch)

    def _walk(self, out: NDArray[np.int64], *, inverse: bool) -> None:
        """Walk the values of `out` that lie outside ``range(n)`` on, until they lie inside."""
        if not self.outside:
            return
        where = np.flatnonzero(out >= np.int64(self.n))
        if not len(where):
            return
        if self.outside <= _IMAGES_MAX:
            out[where] = self._outside_images(inverse)[out[where] - np.int64(self.n)]
        else:
            out[where] = [self.one(value, inverse=inverse) for value in out[where].tolist()]

    def _outside_images(self, inverse: bool) -> NDArray[np.int64]:
        """What each of ``n, n + 1, ..., b * 2^k - 1`` is walked to: int64, `outside` elements."""
        images = self._images.get(inverse)
        if images is None:
            images = np.empty(self.outside, dtype=np.int64)
            self._encrypt_values(np.arange(self.n, self.n + self.outside, dtype=np.int64), images, inverse=inverse)
            # Each turn doubles the paths. A cycle that lies wholly outside stays there: nobody asks for it.
            for _ in range(self.outside.bit_length()):
                where = np.flatnonzero(images >= np.int64(self.n))
                images[where] = images[images[where] - np.int64(self.n)]
            self._images[inverse] = images
        return images


def _digest(message: str) -> bytes:
    return hashlib.sha512(message.encode("ascii")).digest()


_DIGITS_600 = 10**600


def _decimal(number: int) -> str:
    """`number` in decimal digits; str() refuses ints of more than some thousand digits."""
    digits = []
    rest = abs(number)
    while rest >= _DIGITS_600:
        rest, low = divmod(rest, _DIGITS_600)
        digits.append(f"{low:0600d}")
    return ("-" if number < 0 else "") + str(rest) + "".join(reversed(digits))


_generators: list[np.random.Philox] = []  # a pool as above: a new one asks the system for entropy that nobody needs
_NO_WORDS = np.zeros(4, dtype=np.uint64)


def _philox(key: int, count: int, *, block: int = 0) -> NDArray[np.uint64]:
    """`count` words of Philox4x64-10 from a block of four on: raw words are what numpy keeps stable."""
    try:
        generator = _generators.pop()
    except IndexError:
        generator = np.random.Philox(0)
    generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _words_of(block, 4), "key": _words_of(key, 2)},
        "buffer": _NO_WORDS,
        "buffer_pos": 4,  # nothing left in it
        "has_uint32": 0,
        "uinteger": 0,
    }
    words: NDArray[np.uint64] = generator.random_raw(count)
    _generators.append(generator)
    return words


def _words_of(number: int, count: int) -> NDArray[np.uint64]:
    """`number` as `count` words of 64 bits, the lowest first."""
    return np.array([number >> 64 * i & (1 << 64) - 1 for i in range(count)], dtype=np.uint64)


def _sorted_table(n: int, digest: bytes) -> NDArray[np.int64]:
    """Order v1 for n <= 4096: the ranks of n random words, exactly uniform. int64, n elements."""
    words = _philox(int.from_bytes(digest[:16], "little"), n)
    bits = max(1, (n - 1).bit_length())
    low = np.array((1 << bits) - 1, dtype=np.uint64)
    table: NDArray[np.int64] = (np.sort((words & ~low) | np.arange(n, dtype=np.uint64)) & low).astype(np.int64)
    return table


# ---- the order ---------------------------------------------------------------------------------------


class EpochOrder(Sequence[int]):
    """The permutation of ``range(n)`` for one ``(seed, epoch)``: immutable, random access, invertible, O(1) memory.

    It is computed where it is asked for and stored nowhere: ``n = 10**12`` costs what ``n = 10**5`` does.

    >>> order = EpochOrder(10, seed=7, epoch=0)
    >>> list(order)
    [6, 2, 3, 5, 1, 4, 0, 8, 7, 9]
    >>> order[0], order[-1], order.index(9)
    (6, 9, 9)
    >>> order[2:8:2]
    array([3, 1, 0])
    >>> order.positions([9, 0])
    array([9, 6])

    Args:
        n: number of samples, ``0 <= n <= 2**63 - 1``.
        seed: any int, of any size and sign.
        epoch: any int >= 0.
    Raises:
        TypeError: an argument is no int.
        ValueError: an argument lies outside its range.

    Two orders are equal if their (n, seed, epoch) are. Threads may share one.
    Source: order v1, specified in the README.
    """

    __slots__ = ("_epoch", "_inverse", "_n", "_network", "_seed", "_table")

    def __init__(self, n: int, *, seed: int = 0, epoch: int = 0) -> None:
        self._n = check_int("n", n, 0, MAX_LENGTH)
        self._seed = check_int("seed", seed)
        self._epoch = check_int("epoch", epoch, 0)
        digest = _digest(f"rankless/v1/n={self._n}/seed={_decimal(self._seed)}/epoch={_decimal(self._epoch)}")
        small = self._n <= _TABLE_MAX
        self._table = _sorted_table(self._n, digest) if small else None
        self._network = None if small else _Network(self._n, digest)
        self._inverse: NDArray[np.int64] | None = None  # of the table, made when first asked for

    @property
    def n(self) -> int:
        """Number of samples."""
        return self._n

    @property
    def seed(self) -> int:
        """The seed, as given."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch, counted from 0."""
        return self._epoch

    def __len__(self) -> int:
        return self._n

    @overload  # type: ignore[override]  # arrays are no Sequence, but serve as one
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike) -> NDArray[np.int64]: ...
    def __getitem__(self, key: Any) -> Any:
        """The index at one position (an int), or at a slice or an array of positions (int64, of its shape).

        Negative positions count from the end, as in a list.

        Raises:
            IndexError: a position lies outside the order; names the first such position.
            TypeError: `key` is no int, slice or array of ints.
        """
        if isinstance(key, slice):
            return self._slice(range(*key.indices(self._n)))
        # numpy's arrays and torch's tensors have __index__ too: they serve as arrays (of torch, a 0-d one as an int).
        if hasattr(type(key), "__index__") and not isinstance(key, np.ndarray) and not getattr(key, "ndim", 0):
            position = check_int("position", key)
            if not -self._n <= position < self._n:
                raise IndexError(f"position {_shown(position)} is outside this order of {self._n} samples")
            return self._one(position % self._n)
        positions = _int64_array("positions", "position", key, -self._n, self._n, f"this order of {self._n} samples")
        return self._map(np.where(positions < 0, positions + np.int64(self._n), positions))

    def __iter__(self) -> Iterator[int]:
        for piece in pieces(self, 0, self._n):
            yield from piece

    def __reversed__(self) -> Iterator[int]:
        for stop in range(self._n, 0, -LIST):
            yield from self._slice(range(stop - 1, max(stop - LIST, 0) - 1, -1)).tolist()

    def __contains__(self, value: object) -> bool:
        try:
            return 0 <= check_int("value", value) < self._n
        except TypeError:
            return False

    def count(self, value: object) -> int:
        """1 for an index of the dataset, else 0."""
        return int(value in self)

    def index(self, value: int, start: int = 0, stop: int | None = None) -> int:
        """The position of the index `value` in this epoch, in O(1).

        Raises:
            ValueError: `value` does not occur (in ``[start:stop]``).
            TypeError: `value` is no int.
        Source: the rounds of the network run backwards (order v1, "inverse").
        """
        sample = check_int("value", value)
        start, stop, _ = slice(start, stop).indices(self._n)
        if 0 <= sample < self._n:
            position = self._one(sample, inverse=True)
            if start <= position < stop:
                return position
        raise ValueError(
            f"value {_shown(sample)} is not at positions {start}:{stop} of this order of {self._n} samples"
        )

    def positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Where in the epoch each of `indices` stands: the inverse of ``order[...]``.

        Args:
            indices: integers in ``range(n)``, any shape.
        Returns:
            int64 positions, the shape of `indices`, counted over all ranks together.
        Raises:
            IndexError: an index lies outside ``range(n)``; names the first such index.
            TypeError: `indices` are no integers.
        Source: the rounds of the network run backwards (order v1, "inverse").
        """
        return self._map(_int64_array("indices", "index", indices, 0, self._n, f"range({self._n})"), inverse=True)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an order is computed, not stored: it has no array to share (copy=False)")
        return self._slice(range(self._n)).astype(np.int64 if dtype is None else dtype, copy=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochOrder):
            return NotImplemented
        return (self._n, self._seed, self._epoch) == (other._n, other._seed, other._epoch)

    def __hash__(self) -> int:
        return hash((ALGORITHM, self._n, self._seed, self._epoch))

    def __repr__(self) -> str:
        return f"EpochOrder({self._n}, seed={_decimal(self._seed)}, epoch={_decimal(self._epoch)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_order, (self._n, self._seed, self._epoch)

    # The three ways in: one value, a range of positions, an array of values. All checked by the callers.

    def _one(self, value: int, *, inverse: bool = False) -> int:
        if self._network is not None:
            return self._network.one(value, inverse=inverse)
        return int(self._table_of(inverse)[value])

    def _slice(self, positions: range) -> NDArray[np.int64]:
        if self._network is None:
            if not positions:  # range(-1, -1, -1): a start of -1 would mean the last to numpy
                return np.empty(0, dtype=np.int64)
            stop = positions.stop if positions.stop >= 0 else None
            return np.array(self._table_of(False)[positions.start : stop : positions.step])
        out = _new_array(len(positions))
        if positions.step == 1:
            for i in range(0, len(out), UNIT):
                self._network.run(positions.start + i, out[i : i + UNIT])
            return out
        step = positions.step if len(out) > 1 else 1  # of one position, the step may exceed an int64
        for i in range(0, len(out), UNIT):
            unit = out[i : i + UNIT]
            values = np.arange(len(unit), dtype=np.int64) * np.int64(step) + np.int64(positions[i])
            self._network.map(values, unit)
        return out

    def _map(self, values: NDArray[np.int64], *, inverse: bool = False) -> NDArray[np.int64]:
        if self._network is None:
            return np.asarray(self._table_of(inverse)[values])
        flat = values.reshape(-1)
        out = _new_array(len(flat))
        for i in range(0, len(flat), UNIT):
            self._network.map(flat[i : i + UNIT], out[i : i + UNIT], inverse=inverse)
        return out.reshape(values.shape)

    def _table_of(self, inverse: bool) -> NDArray[np.int64]:
        assert self._table is not None
        if not inverse:
            return self._table
        if self._inverse is None:
            self._inverse = np.argsort(self._table).astype(np.int64)
        return self._inverse


def _new_order(n: int, seed: int, epoch: int) -> EpochOrder:
    return EpochOrder(n, seed=seed, epoch=epoch)


def _int64_array(name: str, one: str, values: ArrayLike, low: int, high: int, where: str) -> NDArray[np.int64]:
    """`values` as int64, each of them in ``low <= value < high``; messages call them `name`, and a single one `one`."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise TypeError(f"{name} must be ints, got {values!r:.100}") from error
    if array.dtype.kind in "fO" and not hasattr(values, "dtype"):
        # Not an array yet: numpy makes floats of [] and of int64 beside uint64, objects of ints larger than both.
        array = np.array(values, dtype=object)
        numbers = [check_int(one, value) for value in array.reshape(-1).tolist()]
        array = np.array(numbers, dtype=object).reshape(array.shape)
    elif array.dtype.kind not in "iu" and (array.dtype.kind != "f" or array.size):
        raise TypeError(f"{name} must be ints, got an array of {array.dtype}: {values!r:.100}")
    # Compared as Python ints: int64 against uint64 would go through float64.
    if array.size and not (low <= int(array.min()) and int(array.max()) < high):
        first = next(value for value in array.reshape(-1).tolist() if not low <= value < high)
        raise IndexError(f"{one} {_shown(first)} is outside {where}")
    return array.astype(np.int64)


# ---- other sequences of indices ----------------------------------------------------------------------


class IndexSequence(Protocol):
    """What a pass walks: indices by position. EpochOrder is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: slice, /) -> NDArray[np.int64]: ...


class EpochRepeats:
    """One permutation of ``range(n)`` after another, each of its own, cut after `length` positions.

    The first is ``EpochOrder(n, seed, epoch)``; the j-th, j >= 1, is the EpochOrder whose seed is the
    little-endian 128-bit integer of the first 16 bytes of SHA-512("rankless/v1/repeat=<j>/seed=<seed>").
    """

    __slots__ = ("_epoch", "_last", "_length", "_n", "_seed")

    def __init__(self, n: int, length: int, *, seed: int, epoch: int) -> None:
        self._n, self._length, self._seed, self._epoch = n, length, seed, epoch
        self._last: tuple[int, EpochOrder] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: slice) -> NDArray[np.int64]:
        positions = range(*key.indices(self._length))
        out = _new_array(len(positions))
        done = 0
        while done < len(out):
            repeat, start = divmod(positions[done], self._n)
            inside = range(start, -1 if positions.step < 0 else self._n, positions.step)
            part = out[done : done + len(inside)]
            stop = start + len(part) * positions.step
            part[...] = self._order(repeat)[start : stop if stop >= 0 else None : positions.step]
            done += len(part)
        return out

    def _order(self, repeat: int) -> EpochOrder:
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] != repeat:
            seed = self._seed
            if repeat:
                digest = _digest(f"rankless/v1/repeat={repeat}/seed={_decimal(seed)}")
                seed = int.from_bytes(digest[:16], "little")
            last = self._last = (repeat, EpochOrder(self._n, seed=seed, epoch=self._epoch))
        return last[1]


class EpochDraws:
    """`length` independent, uniform draws from ``range(n)``, with replacement: random access, O(1) memory.

    Draw p of n <= 2^32 is floor(r[p] * n / 2^64), of a larger n floor((r[2p] * 2^64 + r[2p+1]) * n / 2^128), where
    r[i] is the i-th word of Philox4x64-10 as in order v1, its key from SHA-512("rankless/v1/draws/n=<n>/seed=<seed>/
    epoch=<epoch>"). An index's probability is off by less than 2^-32 (2^-65) of itself.
    """

    __slots__ = ("_key", "_length", "_n")

    def __init__(self, n: int, length: int, *, seed: int, epoch: int) -> None:
        self._n, self._length = n, length
        digest = _digest(f"rankless/v1/draws/n={n}/seed={_decimal(seed)}/epoch={_decimal(epoch)}")
        self._key = int.from_bytes(digest[:16], "little")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: slice) -> NDArray[np.int64]:
        positions = range(*key.indices(self._length))
        out = _new_array(len(positions))
        if positions.step == 1:
            for i in range(0, len(out), UNIT):
                unit = out[i : i + UNIT]
                unit[...] = self._run(positions.start + i, len(unit))
            return out
        # Philox gives runs: of a slice with a step, compute the stretches that its positions lie in.
        for i in range(0, len(out), stride := max(1, UNIT // abs(positions.step))):
            part = positions[i : i + stride]
            low, high = min(part[0], part[-1]), max(part[0], part[-1])
            run = self._run(low, high - low + 1)
            out[i : i + stride] = (run if positions.step > 0 else run[::-1])[:: abs(positions.step)]
        return out

    def _run(self, start: int, count: int) -> NDArray[np.int64]:
        n = self._n
        if n <= 1 << 32:
            high, low = _halves(self._words(start, count))
            wide = np.array(n, dtype=np.uint64)
            return ((high * wide + ((low * wide) >> _U64_32)) >> _U64_32).astype(np.int64)
        words = self._words(2 * start, 2 * count)
        first, second = words[0::2], words[1::2]
        carried = _high_product(second, n)
        carry = first * np.array(n, dtype=np.uint64) + carried < carried  # mod 2^64
        return (_high_product(first, n) + carry).astype(np.int64)

    def _words(self, start: int, count: int) -> NDArray[np.uint64]:
        block, skip = divmod(start, 4)
        return _philox(self._key, skip + count, block=block)[skip:]


_U64_32 = np.array(32, dtype=np.uint64)
_U64_LOW = np.array(_MASK32, dtype=np.uint64)


def _halves(words: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return words >> _U64_32, words & _U64_LOW


def _high_product(words: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """floor(word * n / 2^64) of each word, for n < 2^64: the schoolbook way, in halves of 32 bits."""
    high, low = _halves(words)
    n_high, n_low = (np.array(x, dtype=np.uint64) for x in divmod(n, 1 << 32))
    middle = high * n_low + ((low * n_low) >> _U64_32)
    other = low * n_high + (middle & _U64_LOW)
    top: NDArray[np.uint64] = high * n_high + (middle >> _U64_32) + (other >> _U64_32)
    return top


# ---- walks: what iterators are made of ---------------------------------------------------------------


def first_unit(count: int) -> int:
    """How many of `count` indices to compute first, so that the first one does not wait long."""
    return _ONE_UNIT if count <= _ONE_UNIT else _FIRST_UNIT


def pieces(sequence: IndexSequence, start: int, stop: int, step: int = 1) -> Iterator[list[int]]:
    """The indices at the positions ``range(start, stop, step)``, as lists of plain ints: one Python-level step for
    thousands. Of many, the first list is short, so that a first index comes at once.
    """
    unit = first_unit(-(-(stop - start) // step))
    while start < stop:
        indices = sequence[start : min(start + unit * step, stop) : step]
        for i in range(0, len(indices), LIST):
            yield indices[i : i + LIST].tolist()
        start += unit * step
        unit = UNIT
