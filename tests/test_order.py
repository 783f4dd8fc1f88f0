"""The order: golden values, the reference, and what an immutable sequence promises. Needs numpy and pytest only."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import reference

import rankless_sampler.order as order_module
from rankless_sampler.order import MAX_LENGTH, EpochDraws, EpochOrder, EpochRepeats, check_int, pieces

pytestmark = pytest.mark.filterwarnings("error")  # numpy warns where it overflows, and where it will change

TESTS = Path(__file__).parent
GOLDEN = json.loads((TESTS / "order-v1-golden.json").read_text())

EXPONENTS = (13, 16, 17, 24, 25, 26, 31, 32, 33, 40, 48, 61, 62)
BORDERS = sorted(
    {n for e in EXPONENTS for n in (2**e - 1, 2**e, 2**e + 1)} | {4097, 4098, 10**6, 10**12, 3 * 2**61, MAX_LENGTH}
)
SEEDS = (0, 1, -1, 2**31, 2**64 + 5, -(2**127), 10**3000)


def spread(n: int, count: int = 40) -> list[int]:
    """Some numbers in range(n): the ends, both sides of the unit borders, and some from all over."""
    ends = [*range(8), *range(n - 8, n), *(32_768 * i + j for i in (1, 2) for j in (-1, 0)), 2**32 - 1, 2**32]
    draw = random.Random(n)
    return [x for x in ends if 0 <= x < n] + [draw.randrange(n) for _ in range(count)]


def sha256_of_ends(order: EpochOrder) -> str:
    ends = np.concatenate([order[:1000], order[max(0, order.n - 1000) :]])
    return hashlib.sha256(ends.astype("<i8").tobytes()).hexdigest()


# ---- the frozen algorithm ----------------------------------------------------------------------------


def assert_golden(golden: dict[str, Any]) -> None:
    n, head, tail = golden["n"], golden["head"], golden["tail"]
    order = EpochOrder(n, seed=golden["seed"], epoch=golden["epoch"])
    tail_positions = list(range(max(0, n - 2), n))
    assert order[:6].tolist() == head
    assert order[tail_positions].tolist() == [order[p] for p in tail_positions] == tail
    assert sha256_of_ends(order) == golden["sha256"]
    assert order.positions(head + tail).tolist() == [*range(len(head)), *tail_positions]
    assert [order.index(x) for x in head + tail] == [*range(len(head)), *tail_positions]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"n={g['n']}-seed={g['seed']}-epoch={g['epoch']}")
def test_order_v1_never_changes(golden: dict[str, Any]) -> None:
    assert_golden(golden)


def test_golden_vectors_are_all_there() -> None:
    assert len({(g["n"], g["seed"], g["epoch"]) for g in GOLDEN}) == 88
    assert {g["n"] for g in GOLDEN} >= {1, 4096, 4097, 2**32 - 1, 2**32, 2**32 + 1, MAX_LENGTH}


def test_the_specification_in_code_gives_the_golden_vectors() -> None:
    for golden in GOLDEN:
        index_at, position_of = reference.order(golden["n"], golden["seed"], golden["epoch"])
        assert [index_at(p) for p in range(len(golden["head"]))] == golden["head"]
        assert [position_of(x) for x in golden["head"]] == list(range(len(golden["head"])))


@pytest.mark.parametrize("n", [*range(1, 71), 1000, 4095, 4096])
def test_tables_follow_the_specification(n: int) -> None:
    for seed, epoch in ((0, 0), (-n, 3), (2**70 + n, 10**9)):
        index_at, position_of = reference.order(n, seed, epoch)
        order = EpochOrder(n, seed=seed, epoch=epoch)
        assert order[:].tolist() == [index_at(p) for p in range(n)]
        assert order.positions(range(n)).tolist() == [position_of(x) for x in range(n)]


@pytest.mark.parametrize("n", BORDERS)
def test_networks_follow_the_specification(n: int) -> None:
    for seed, epoch in ((0, 0), (-n, 3), (2**70 + n, 10**9)):
        index_at, position_of = reference.order(n, seed, epoch)
        order, numbers = EpochOrder(n, seed=seed, epoch=epoch), spread(n)
        indices, positions = [index_at(p) for p in numbers], [position_of(x) for x in numbers]
        assert order[numbers].tolist() == indices
        assert [order[p] for p in numbers[:20]] == indices[:20]
        assert order.positions(numbers).tolist() == positions
        assert [order.index(x) for x in numbers[:20]] == positions[:20]
        start = numbers[-1] // 2
        assert order[start : start + 20].tolist() == [index_at(p) for p in range(start, start + 20)]


@pytest.mark.parametrize("n", [1000, 5000, 2**40 + 1])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-of-{seed.bit_length()}-bits")
def test_any_seed_and_epoch_follow_the_specification(n: int, seed: int) -> None:
    for epoch in (0, 1, 2**64, 10**1000):
        index_at, _ = reference.order(n, seed, epoch)
        assert EpochOrder(n, seed=seed, epoch=epoch)[:20].tolist() == [index_at(p) for p in range(20)]


@pytest.mark.parametrize("sign", [1, -1])
def test_seeds_longer_than_str_allows_follow_the_specification(sign: int) -> None:
    seed = sign * (10**5000 + 7)  # str() refuses more than 4,300 digits
    digits = ("-" if sign < 0 else "") + "1" + "0" * 4999 + "7"
    assert repr(EpochOrder(5, seed=seed)) == f"EpochOrder(5, seed={digits}, epoch=0)"
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this Python writes ints of any length")
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        index_at, _ = reference.order(5000, seed, 0)
    finally:
        sys.set_int_max_str_digits(limit)
    assert EpochOrder(5000, seed=seed)[:20].tolist() == [index_at(p) for p in range(20)]


# b * 2^k values go through the network. Those outside range(n) are walked: by a table if they are few, else singly.
@pytest.mark.parametrize(
    ("n", "outside"),
    [
        (4097, 63),
        (2**14 + 1, 127),
        (2**24 + 1, 4095),
        (2**25 + 1, 8191),
        (2**26 - 2**12 + 1, 4095),
        (2**26 + 1, 8191),
        (2**32 + 1, 65535),
        (2**40 - 5, 5),
        (2**40 - 2**20 + 1, 2**20 - 1),
        (2**62 + 1, 2**32 - 1),
        (MAX_LENGTH, 1),
    ],
)
def test_values_outside_the_range_are_walked_back_into_it(n: int, outside: int) -> None:
    encrypt, size = reference.network(n, 5, 2)
    assert size - n == outside
    index_at, position_of = reference.order(n, 5, 2)
    order = EpochOrder(n, seed=5, epoch=2)
    some = [*range(n, min(n + 60, size)), *range(max(n, size - 60), size)]
    positions = [p for p in (encrypt(y, -1) for y in some) if p < n]  # their first image lies outside
    indices = [x for x in (encrypt(y, 1) for y in some) if x < n]
    assert positions
    assert indices
    assert order[positions].tolist() == [order[p] for p in positions] == [index_at(p) for p in positions]
    assert [order[p : p + 1].tolist() for p in positions] == [[index_at(p)] for p in positions]
    assert [order[p : None if p == 0 else p - 1 : -1].tolist() for p in positions] == [[index_at(p)] for p in positions]
    assert order.positions(indices).tolist() == [position_of(x) for x in indices]
    assert [order.index(x) for x in indices] == [position_of(x) for x in indices]


# ---- a bijection -------------------------------------------------------------------------------------


def assert_bijection(order: EpochOrder) -> None:
    indices = order[:]
    assert indices.dtype == np.int64
    assert indices.min() >= 0
    assert np.array_equal(np.bincount(indices, minlength=order.n), np.ones(order.n, dtype=np.int64))
    assert np.array_equal(order.positions(indices), np.arange(order.n))


def test_every_length_up_to_2000_gives_each_index_once() -> None:
    for n in range(1, 2001):
        assert_bijection(EpochOrder(n, seed=n % 7, epoch=n % 5))


def test_every_length_around_the_largest_table_gives_each_index_once() -> None:
    for n in range(4000, 4300):
        assert_bijection(EpochOrder(n, seed=n % 7, epoch=n % 5))


@pytest.mark.parametrize("exponent", range(11, 21))
def test_lengths_around_powers_of_two_give_each_index_once(exponent: int) -> None:
    for n in (2**exponent + d for d in (-1, 0, 1)):
        assert_bijection(EpochOrder(n, seed=-3, epoch=exponent))


def test_many_keys_give_each_index_once_where_most_values_are_walked() -> None:
    for seed in range(300):
        assert_bijection(EpochOrder(4097, seed=seed))


@pytest.mark.parametrize("n", [2**16 + 1, 2**18 + 1, 2**25 + 1])  # the last walks its 8,191 values outside one by one
def test_lengths_at_which_other_index_shufflers_lose_samples_give_each_index_once(n: int) -> None:
    order, seen = EpochOrder(n, seed=1), np.zeros(n, dtype=bool)
    for start in range(0, n, 2**20):
        seen[order[start : start + 2**20]] = True
    assert seen.all()


def test_seeds_and_epochs_all_give_different_orders() -> None:
    for n in (1000, 10**6):
        orders = {EpochOrder(n, seed=s, epoch=e)[:20].tobytes() for s in range(100) for e in range(100)}
        assert len(orders) == 10_000


@pytest.mark.parametrize("n", [1000, 100_000])
def test_the_next_epoch_has_nothing_in_common_with_the_next_seed(n: int) -> None:
    agreeing = np.count_nonzero(EpochOrder(n, seed=7, epoch=1)[:] == EpochOrder(n, seed=8, epoch=0)[:])
    assert agreeing <= 8  # one is expected of two independent orders


def test_another_length_gives_another_order() -> None:
    assert len({EpochOrder(n, seed=7)[:8].tobytes() for n in range(5000, 5100)}) == 100


# ---- a sequence of ints ------------------------------------------------------------------------------

LENGTHS = (1, 7, 4096, 4097, 70_000)


def test_it_is_a_sequence() -> None:
    order = EpochOrder(5)
    assert isinstance(order, Sequence)
    assert (order.n, order.seed, order.epoch, len(order)) == (5, 0, 0, 5)
    assert len(EpochOrder(MAX_LENGTH)) == MAX_LENGTH
    assert bool(EpochOrder(1))
    assert not bool(EpochOrder(0))


@pytest.mark.parametrize("n", LENGTHS)
def test_items_iteration_and_slices_agree(n: int) -> None:
    order = EpochOrder(n, seed=11)
    whole = order[:].tolist()
    assert list(order) == whole
    assert list(reversed(order)) == whole[::-1]
    assert set(map(type, itertools.chain(order, reversed(order)))) == {int}
    for p in spread(n):
        assert order[p] == order[p - n] == whole[p]
        assert type(order[p]) is int


def test_every_slice_of_a_short_order_is_that_of_a_list() -> None:
    order = EpochOrder(6, seed=3)
    items = [order[p] for p in range(6)]
    bounds = [None, *range(-8, 9)]
    for start, stop, step in itertools.product(bounds, bounds, [None, -7, -3, -2, -1, 1, 2, 3, 7]):
        assert order[start:stop:step].tolist() == items[start:stop:step]


@pytest.mark.parametrize("n", [4097, 100_003])
def test_every_kind_of_slice_of_a_long_order_is_that_of_a_list(n: int) -> None:
    order = EpochOrder(n, seed=3)
    items = np.array([order[p] for p in range(n)]) if n < 5000 else order[np.arange(n)]
    bounds = [None, 0, 5, -5, 4096, 32_767, 32_768, 32_769, 65_536, n - 1, n, n + 9, -n, -n - 9]
    for start, stop, step in itertools.product(bounds, bounds, [1, 2, 7, 40_000, n, -1, -3, -40_000, -n]):
        part = order[start:stop:step]
        assert part.dtype == np.int64
        assert np.array_equal(part, items[start:stop:step]), (start, stop, step)


@pytest.mark.parametrize("n", [2**32 + 1, 10**12, MAX_LENGTH])
def test_slices_of_huge_orders_are_their_items(n: int) -> None:
    order = EpochOrder(n, seed=3)
    for key in (
        slice(n - 5, None),
        slice(-5, 2**90),
        slice(n // 2, n // 2 + 7),
        slice(None, None, n // 3),
        slice(None, None, -(n // 3)),
        slice(n - 2, None, -n),
        slice(5, None, 2**90),
        slice(-3, -(2**90), -(2**90)),
        slice(None, -n + 9, 2),
        slice(9, 3),
        slice(2**70, 2**71),
        slice(n, -n - 2**70, -(n // 2)),
    ):
        assert order[key].tolist() == [order[p] for p in range(n)[key]]
    assert next(iter(order)) == order[0]
    assert next(reversed(order)) == order[-1] == order[n - 1]


@pytest.mark.parametrize("n", [0, 1, 5000])
def test_a_slice_of_nothing_is_empty(n: int) -> None:
    for key in (slice(0, 0), slice(3, 2), slice(2, 3, -1), slice(n, None)):
        part = EpochOrder(n)[key]
        assert (part.shape, part.dtype) == ((0,), np.dtype(np.int64))


def test_an_empty_order_is_empty() -> None:
    order = EpochOrder(0)
    assert list(order) == list(reversed(order)) == order[:].tolist() == np.asarray(order).tolist() == []
    assert order[[]].shape == order.positions([]).shape == (0,)
    assert 0 not in order
    with pytest.raises(IndexError, match="position 0 is outside this order of 0 samples"):
        order[0]
    with pytest.raises(ValueError, match="value 0 is not"):
        order.index(0)


@pytest.mark.parametrize("n", [100, 5000, 2**31 + 1, MAX_LENGTH])
@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2", ">i4", ">i8", ">u4", ">u8", "<i8"]
)
def test_arrays_of_positions_and_of_indices_of_any_integer_type_are_understood(n: int, dtype: str) -> None:
    order = EpochOrder(n, seed=9)
    largest = min(n - 1, int(np.iinfo(dtype).max))
    numbers = np.array([0, 1, largest, largest // 2, 1, 99], dtype=dtype)
    indices = order[numbers]
    assert indices.dtype == np.int64
    assert indices.dtype.isnative
    assert indices.tolist() == [order[int(p)] for p in numbers]
    assert order.positions(numbers).tolist() == [order.index(int(x)) for x in numbers]
    if numbers.dtype.kind == "i":
        smallest = max(-n, int(np.iinfo(dtype).min))
        negative = np.array([-1, smallest, -100], dtype=dtype)
        assert order[negative].tolist() == [order[int(p)] for p in negative] == [order[int(p) + n] for p in negative]


@pytest.mark.parametrize("n", [100, 5000, 2**33])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (2, 3), (2, 1, 5)])
def test_arrays_keep_their_shape(n: int, shape: tuple[int, ...]) -> None:
    order = EpochOrder(n, seed=9)
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    for images, image in ((order[numbers], order.__getitem__), (order.positions(numbers), order.index)):
        assert isinstance(images, np.ndarray)
        assert (images.shape, images.dtype) == (shape, np.dtype(np.int64))
        assert images.reshape(-1).tolist() == [image(int(x)) for x in numbers.reshape(-1)]


@pytest.mark.parametrize("n", [100, 5000])
def test_array_likes_of_any_layout_are_understood(n: int) -> None:
    order = EpochOrder(n, seed=9)
    plain = [[order[0], order[1]], [order[2], order[3]]]
    numbers = np.arange(4).reshape(2, 2)
    read_only = numbers.copy()
    read_only.flags.writeable = False
    for key in ([[0, 1], [2, 3]], ((0, 1), (2, 3)), [np.arange(2), np.arange(2, 4)], np.asfortranarray(numbers)):
        assert order[key].tolist() == plain
    assert order[read_only].tolist() == plain
    assert order[numbers.T].tolist() == np.array(plain).T.tolist()
    assert order[np.arange(8)[::-2]].tolist() == [order[p] for p in (7, 5, 3, 1)]
    assert order[np.broadcast_to(np.int32(3), (2, 2))].tolist() == [[order[3]] * 2] * 2
    assert order[range(3)].tolist() == order[(0, 1, 2)].tolist() == order[:3].tolist()
    assert order[[]].tolist() == order[np.empty((0,))].tolist() == order.positions([]).tolist() == []
    # numpy makes float64 of a list that holds both: no position may pass through a float
    assert order[[np.int64(-1), np.uint64(3)]].tolist() == [order[-1], order[3]]
    assert EpochOrder(MAX_LENGTH)[[np.int64(-1), np.uint64(2**62 + 1)]].tolist() == [
        EpochOrder(MAX_LENGTH)[-1],
        EpochOrder(MAX_LENGTH)[2**62 + 1],
    ]


class TensorLike:
    """What torch's tensors look like from here: `__array__`, `ndim`, `dtype`, and an `__index__` at any size."""

    def __init__(self, values: Any) -> None:
        self._array = np.array(values)
        self.ndim, self.dtype = self._array.ndim, f"torch.{self._array.dtype}"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array

    def __index__(self) -> int:
        if self._array.size != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self._array.reshape(-1)[0])


@pytest.mark.parametrize("n", [100, 5000])
def test_tensors_serve_as_arrays_and_single_ones_as_ints(n: int) -> None:
    order = EpochOrder(n, seed=9)
    assert order[TensorLike([3, -4])].tolist() == [order[3], order[-4]]
    assert order[TensorLike([[3]])].tolist() == [[order[3]]]
    assert order.positions(TensorLike([3, 4])).tolist() == [order.index(3), order.index(4)]
    assert order[TensorLike(3)] == order[3]
    assert order.index(TensorLike(3)) == order.index(3)
    for bad in (TensorLike(True), TensorLike([True, False]), TensorLike([1.0])):
        with pytest.raises(TypeError, match="must be"):
            order[bad]


class Three:
    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("n", [100, 5000])
@pytest.mark.parametrize("three", [np.int8(3), np.int64(3), np.uint8(3), np.uint64(3), Three()])
def test_ints_of_other_types_are_ints(n: int, three: Any) -> None:
    order = EpochOrder(n, seed=9)
    assert order[three] == order[3]
    assert type(order[three]) is int
    assert order.index(three) == order.index(3)
    assert type(order.index(three)) is int
    assert order[three : np.int64(9) : three].tolist() == order[3:9:3].tolist()
    assert three in order
    assert order.count(three) == 1
    same = EpochOrder(np.int64(n), seed=three, epoch=three)
    assert same == EpochOrder(n, seed=3, epoch=3)
    assert repr(same) == f"EpochOrder({n}, seed=3, epoch=3)"
    assert [type(x) for x in (same.n, same.seed, same.epoch)] == [int, int, int]


@pytest.mark.parametrize("n", [100, 5000, MAX_LENGTH])
def test_membership_is_that_of_a_range(n: int) -> None:
    order = EpochOrder(n)
    for value in (0, n - 1, np.int64(5)):
        assert value in order
        assert order.count(value) == 1
    for value in (-1, n, 2**70, -(2**70), 10**5000, 1.0, "1", None, True, np.True_, [1], slice(1)):
        assert value not in order
        assert order.count(value) == 0


@pytest.mark.parametrize("n", [50, 5000, 10**12])
def test_index_searches_between_its_bounds_as_a_list_does(n: int) -> None:
    order = EpochOrder(n, seed=2)
    value = order[20]
    for bounds in ((), (20,), (0, 21), (20, 21), (-n,), (20 - n, 21 - n), (20, 2**80), (-(2**80),), (0, None)):
        assert order.index(value, *bounds) == 20
    assert order.index(value, stop=21) == 20
    for bounds in ((21,), (0, 20), (20, 20), (21 - n,), (0, 20 - n), (2**80,), (30, 10)):
        with pytest.raises(ValueError, match=f"value {value} is not at positions"):
            order.index(value, *bounds)


# ---- a value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 10, 5000, MAX_LENGTH])
def test_equal_orders_are_equal_and_hash_alike(n: int) -> None:
    order = EpochOrder(n, seed=5, epoch=2)
    assert order == EpochOrder(n, seed=5, epoch=2)
    assert hash(order) == hash(EpochOrder(n, seed=5, epoch=2))
    others = [EpochOrder(n, seed=5, epoch=3), EpochOrder(n, seed=6, epoch=2), EpochOrder(n // 2 + 1, seed=5, epoch=2)]
    assert all(order != other for other in others)
    assert len({order, *others, EpochOrder(n, seed=5, epoch=2)}) == 4
    assert order != order[:5].tolist()
    assert order != 5


@pytest.mark.parametrize("order", [EpochOrder(10, seed=-3, epoch=4), EpochOrder(5000), EpochOrder(MAX_LENGTH, seed=9)])
def test_copies_and_pickles_are_equal_and_small(order: EpochOrder) -> None:
    order.positions([1, 2])  # whatever it keeps to itself must not travel
    copies = [copy.copy(order), copy.deepcopy(order), eval(repr(order))]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(order, protocol)
        assert len(pickled) < 200
        copies.append(pickle.loads(pickled))
    for other in copies:
        assert type(other) is EpochOrder
        assert other == order
        assert repr(other) == repr(order)
        assert other[:10].tolist() == order[:10].tolist()


def test_repr_is_the_call_that_makes_it() -> None:
    assert repr(EpochOrder(10, seed=-7, epoch=3)) == "EpochOrder(10, seed=-7, epoch=3)"
    huge = EpochOrder(MAX_LENGTH, seed=10**4000 + 3, epoch=10**1300)
    assert eval(repr(huge)) == huge


@pytest.mark.parametrize("n", [0, 7, 4096, 4097, 40_000])
def test_it_converts_to_an_array(n: int) -> None:
    order = EpochOrder(n, seed=5)
    items = list(order)
    for array in (np.asarray(order), np.array(order), np.array(order, copy=True)):
        assert array.dtype == np.int64
        assert array.tolist() == items
    for dtype in ("i4", ">i8", "u8", "f8", object):
        array = np.asarray(order, dtype=dtype)
        assert array.dtype == np.dtype(dtype)
        assert array.tolist() == items
    assert order.__array__().tolist() == order.__array__(np.int64, copy=True).tolist() == items
    assert np.intersect1d(order, range(3)).tolist() == list(range(min(3, n)))


def test_it_has_no_array_to_share() -> None:
    with pytest.raises(ValueError, match=r"computed, not stored.*copy=False"):
        EpochOrder(10).__array__(copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, copy=False meant "if you can"
        with pytest.raises(ValueError, match=r"computed, not stored.*copy=False"):
            np.array(EpochOrder(10), copy=False)


@pytest.mark.parametrize("materialise", [np.asarray, lambda o: o[:], lambda o: o[::-1], lambda o: o[1::2]])
def test_what_cannot_fit_is_refused_at_once(materialise: Callable[[EpochOrder], Any]) -> None:
    for n in (10**15, MAX_LENGTH):
        with pytest.raises(MemoryError, match=r"indices as an int64 array take \d+ bytes.*slice the order"):
            materialise(EpochOrder(n))


@pytest.mark.parametrize("n", [10, 4096, 5000, 2**33])
def test_whatever_one_does_to_a_result_changes_nothing(n: int) -> None:
    order, key = EpochOrder(n, seed=5), np.array([3, 1])
    calls: list[Callable[[], np.ndarray]] = [
        lambda: order[:10],
        lambda: order[9:2:-2],
        lambda: order[key],
        lambda: order[np.array(3)],
        lambda: order.positions(key),
        lambda: order.positions(range(10)),
    ]
    if n < 10_000:
        calls += [lambda: order[:], lambda: np.asarray(order), lambda: order.positions(range(n))]
    for call in calls:
        before = call().tolist()
        result = call()
        result[...] = -1
        assert call().tolist() == before
    assert key.tolist() == [3, 1]
    assert EpochOrder(n, seed=5)[:10].tolist() == order[:10].tolist()


def test_it_cannot_be_changed() -> None:
    order = EpochOrder(10)
    for name in ("n", "seed", "epoch", "anything"):
        with pytest.raises(AttributeError):
            setattr(order, name, 5)
    with pytest.raises(TypeError):
        order[0] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        del order[0]  # type: ignore[attr-defined]
    assert not hasattr(order, "__dict__")
    assert order == EpochOrder(10)


# ---- bad input ---------------------------------------------------------------------------------------

O10, O5000, OMAX = EpochOrder(10), EpochOrder(5000), EpochOrder(MAX_LENGTH)
RANGE_OF_N = "n must be in 0..9223372036854775807, got "

BAD_INPUT: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: EpochOrder(-1), ValueError, RANGE_OF_N + "-1"),
    (lambda: EpochOrder(2**63), ValueError, RANGE_OF_N + "9223372036854775808"),
    (lambda: EpochOrder(np.uint64(2**63)), ValueError, RANGE_OF_N + "9223372036854775808"),
    (lambda: EpochOrder(10**5000), ValueError, RANGE_OF_N + "an int of 16610 bits"),
    (lambda: EpochOrder(10.0), TypeError, "n must be an int, got 10.0 (float)"),
    (lambda: EpochOrder("10"), TypeError, "n must be an int, got '10' (str)"),
    (lambda: EpochOrder(None), TypeError, "n must be an int, got None (NoneType)"),
    (lambda: EpochOrder(True), TypeError, "n must be an int, got True (bool)"),
    (lambda: EpochOrder(np.True_), TypeError, "n must be an int, got"),
    (lambda: EpochOrder(TensorLike(True)), TypeError, "n must be an int, got"),
    (lambda: EpochOrder([10]), TypeError, "n must be an int, got [10] (list)"),
    (lambda: EpochOrder(np.array([10])), TypeError, "n must be an int, got array([10]) (ndarray)"),
    (lambda: EpochOrder(10, seed=1.5), TypeError, "seed must be an int, got 1.5 (float)"),
    (lambda: EpochOrder(10, seed=None), TypeError, "seed must be an int, got None (NoneType)"),
    (lambda: EpochOrder(10, seed=False), TypeError, "seed must be an int, got False (bool)"),
    (lambda: EpochOrder(10, epoch=-1), ValueError, "epoch must be >= 0, got -1"),
    (lambda: EpochOrder(10, epoch=-(10**5000)), ValueError, "epoch must be >= 0, got an int of 16610 bits"),
    (lambda: EpochOrder(10, epoch=np.float64(1)), TypeError, "epoch must be an int, got"),
    (lambda: EpochOrder(10, epoch="1"), TypeError, "epoch must be an int, got '1' (str)"),
    (lambda: EpochOrder(10, 3), TypeError, "positional argument"),
    (lambda: O10[10], IndexError, "position 10 is outside this order of 10 samples"),
    (lambda: O10[-11], IndexError, "position -11 is outside this order of 10 samples"),
    (lambda: O5000[5000], IndexError, "position 5000 is outside this order of 5000 samples"),
    (lambda: O10[np.uint64(2**64 - 1)], IndexError, "position 18446744073709551615 is outside"),
    (lambda: O10[10**5000], IndexError, "position an int of 16610 bits is outside this order of 10 samples"),
    (lambda: OMAX[MAX_LENGTH], IndexError, f"position {MAX_LENGTH} is outside this order of {MAX_LENGTH} samples"),
    (lambda: O10[[1, 12, 11, -30]], IndexError, "position 12 is outside this order of 10 samples"),
    (lambda: O10[[[1, 2], [-30, 11]]], IndexError, "position -30 is outside this order of 10 samples"),
    (lambda: O10[np.array([1, 2**64 - 1, 10], dtype="u8")], IndexError, "position 18446744073709551615 is outside"),
    (lambda: OMAX[np.array([5, 2**63 - 1], dtype="u8")], IndexError, f"position {MAX_LENGTH} is outside"),
    (lambda: OMAX[np.array([-(2**63)])], IndexError, "position -9223372036854775808 is outside"),
    (lambda: O10[np.array([2, 300], dtype=">i8")], IndexError, "position 300 is outside"),
    (lambda: O10[np.array(10)], IndexError, "position 10 is outside"),
    (lambda: O10[[1, 2**70, 11]], IndexError, "position 1180591620717411303424 is outside this order of 10 samples"),
    (lambda: O10[[-1, 2**63]], IndexError, "position 9223372036854775808 is outside this order of 10 samples"),
    (lambda: O10[[10**5000]], IndexError, "position an int of 16610 bits is outside"),
    (lambda: O10[True], TypeError, "position must be an int, got True (bool)"),
    (lambda: O10[np.True_], TypeError, "must be"),
    (lambda: O10[[True, False]], TypeError, "positions must be ints, got an array of bool: [True, False]"),
    (lambda: O10[np.array([], dtype=bool)], TypeError, "positions must be ints, got an array of bool"),
    (lambda: O10[1.0], TypeError, "position must be an int, got 1.0 (float)"),
    (lambda: O10[np.float64(1)], TypeError, "positions must be ints, got an array of float64"),
    (lambda: O10[np.array([1.0])], TypeError, "positions must be ints, got an array of float64: array([1.])"),
    (lambda: O10[[1, 2.5]], TypeError, "position must be an int, got 2.5 (float)"),
    (lambda: O10["1"], TypeError, "positions must be ints, got an array of <U1: '1'"),
    (lambda: O10[None], TypeError, "position must be an int, got None (NoneType)"),
    (lambda: O10[...], TypeError, "position must be an int, got Ellipsis (ellipsis)"),
    (lambda: O10[1:2, 0], TypeError, "position must be an int, got slice(1, 2, None) (slice)"),
    (lambda: O10[{1}], TypeError, "position must be an int, got {1} (set)"),
    (lambda: O10[np.array([1, 2], dtype=object)], TypeError, "positions must be ints, got an array of object"),
    (lambda: O10[np.array([1], dtype="m8[s]")], TypeError, "positions must be ints, got an array of timedelta64[s]"),
    (lambda: O10[1.0:2], TypeError, "slice indices must be integers"),
    (lambda: O10[::0], ValueError, "slice step cannot be zero"),
    (lambda: O10.positions([3, -1, 10]), IndexError, "index -1 is outside range(10)"),
    (lambda: O10.positions(10), IndexError, "index 10 is outside range(10)"),
    (lambda: O5000.positions([[0], [5000]]), IndexError, "index 5000 is outside range(5000)"),
    (lambda: O5000.positions([2**64]), IndexError, "index 18446744073709551616 is outside range(5000)"),
    (lambda: O10.positions([1.5]), TypeError, "index must be an int, got 1.5 (float)"),
    (lambda: O10.positions(np.float32([1])), TypeError, "indices must be ints, got an array of float32"),
    (lambda: O10.positions(slice(3)), TypeError, "index must be an int, got slice(None, 3, None) (slice)"),
    (lambda: O10.index(10), ValueError, "value 10 is not at positions 0:10 of this order of 10 samples"),
    (lambda: O10.index(-1), ValueError, "value -1 is not at positions 0:10 of this order of 10 samples"),
    (lambda: O10.index(10**5000), ValueError, "value an int of 16610 bits is not at positions 0:10"),
    (lambda: O10.index("a"), TypeError, "value must be an int, got 'a' (str)"),
    (lambda: O10.index(1.0), TypeError, "value must be an int, got 1.0 (float)"),
    (lambda: O10.index(True), TypeError, "value must be an int, got True (bool)"),
    (lambda: O10.index(1, "a"), TypeError, "slice indices must be integers"),
    (lambda: check_int("width", 11, None, 10), ValueError, "width must be <= 10, got 11"),
    (
        lambda: check_int("width", range(10**6)[::2]),
        TypeError,
        "width must be an int, got range(0, 1000000, 2) (range)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_INPUT, ids=[m for _, _, m in BAD_INPUT])
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        call()
    assert type(raised.value) is error


def test_rows_of_different_lengths_are_named() -> None:
    with pytest.raises(
        (TypeError, getattr(np, "VisibleDeprecationWarning", TypeError)), match=r"positions must be ints|ragged"
    ):
        O10[[[1, 2], [3]]]


def test_messages_stay_short_whatever_came() -> None:
    for call in (lambda: EpochOrder(list(range(10**6))), lambda: O10[["x"] * 10**6]):
        with pytest.raises(TypeError, match="must be") as raised:
            call()
        assert len(str(raised.value)) < 400


def test_an_error_leaves_the_order_as_it_was() -> None:
    for order in (O10, O5000):
        before = order[:].tolist()
        for call, _, _ in BAD_INPUT:
            with pytest.raises(Exception):  # noqa: B017, PT011  # which, the test above says
                call()
        assert order[:].tolist() == before


# ---- alone in the process, and not alone -------------------------------------------------------------


def run_python(code: str, **environment: str) -> str:
    import os

    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path} | environment,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_order_does_without_torch() -> None:
    code = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("torch", "torchdata", "accelerate"), f"{name} was asked for"

sys.meta_path.insert(0, NoTorch())
import rankless_sampler, rankless_sampler.order
print(rankless_sampler.EpochOrder(10, seed=7)[:].tolist())
try:
    import torch
except AssertionError:
    print("watched")
"""
    assert run_python(code).splitlines() == ["[6, 2, 3, 5, 1, 4, 0, 8, 7, 9]", "watched"]


def test_the_order_is_the_same_without_wide_vector_instructions() -> None:
    code = """
import importlib
import numpy as np

try:
    umath = importlib.import_module("numpy._core._multiarray_umath")
except ImportError:
    umath = importlib.import_module("numpy.core._multiarray_umath")
print(" ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)))
import test_order

for golden in test_order.GOLDEN:
    test_order.assert_golden(golden)
test_order.assert_bijection(test_order.EpochOrder(100_003, seed=4))
print("same")
"""
    enabled, same = run_python(code).splitlines()
    assert same == "same"
    if not enabled:
        pytest.skip("this numpy has nothing to choose from on this machine")
    still_enabled, same = run_python(code, NPY_DISABLE_CPU_FEATURES=enabled).splitlines()
    assert still_enabled == ""
    assert same == "same"


def test_no_global_generator_moves() -> None:
    legacy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    for n in (10, 5000):
        order = EpochOrder(n, seed=1)
        list(order), order.positions([1]), order.index(3), order[:5]
    EpochRepeats(10, 100, seed=1, epoch=0)[:], EpochDraws(10, 100, seed=1, epoch=0)[:]
    assert random.getstate() == python
    for before, after in zip(legacy, np.random.get_state(), strict=True):  # noqa: NPY002
        assert np.array_equal(before, after)


def test_no_global_generator_matters() -> None:
    results = set()
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        results.add((EpochOrder(10)[:].tobytes(), EpochOrder(5000)[:].tobytes()))
    assert len(results) == 1


@pytest.mark.parametrize(
    "first",
    [
        lambda o: o[0],
        lambda o: o[-1],
        lambda o: next(iter(o)),
        lambda o: next(reversed(o)),
        lambda o: o[5:9],
        lambda o: o[:: -(o.n // 2)],
        lambda o: o.index(7),
        lambda o: o.positions([7]),
        lambda o: next(pieces(o, o.n // 2, o.n)),
    ],
)
def test_a_first_index_of_a_trillion_takes_a_few_megabytes(first: Callable[[EpochOrder], object]) -> None:
    tracemalloc.start()
    try:
        assert first(EpochOrder(10**12, seed=1)) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


def test_threads_do_not_disturb_each_other() -> None:
    orders = [EpochOrder(n, seed=n) for n in (1000, 5000, 70_001, 2**25 + 1, 2**32 + 1, MAX_LENGTH)]

    def work(order: EpochOrder) -> list[bytes]:
        part = order[:40_000]
        return [part.tobytes(), order[40_000:10:-3].tobytes(), order.positions(part).tobytes(), bytes(order[7] % 256)]

    expected = [work(order) for order in orders]
    failures: list[object] = []

    def thread(start: int) -> None:
        try:
            for i in range(12):
                which = (start + i) % len(orders)
                if work(orders[which]) != expected[which]:
                    failures.append((which, "another result"))
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=thread, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_a_signal_handler_may_ask_for_an_order_while_one_is_computed() -> None:
    order, other = EpochOrder(100_003, seed=1), EpochOrder(50_021, seed=2)
    expected, expected_other = order[:].tobytes(), other[:2000].tobytes()
    results: list[bool] = []

    def handler(number: int, frame: FrameType | None) -> None:
        results.append(other[:2000].tobytes() == expected_other)

    before = signal.signal(signal.SIGVTALRM, handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
    try:
        for _ in range(1000):
            assert order[:].tobytes() == expected
            if len(results) >= 50:
                break
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert len(results) >= 50
    assert all(results)


def at_every_step_of(call: Callable[[], object], between: Callable[[], object]) -> tuple[object, int]:
    """Run `between` before every bytecode instruction of order.py that `call` runs; its result, and how many."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != order_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            between()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it only when tracing starts
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return result, steps


@pytest.mark.parametrize("n", [3000, 70_000, 2**32 + 1])
def test_an_interruption_at_any_instruction_changes_nothing(n: int) -> None:
    other = EpochOrder(5003, seed=2)
    head, expected = other[:30].tolist(), EpochOrder(n, seed=1)[:33_000].tolist()

    def forwards() -> None:
        assert other[:30].tolist() == head

    def backwards() -> None:
        assert other.positions(head).tolist() == list(range(30))

    order = EpochOrder(n, seed=1)
    result, steps = at_every_step_of(lambda: order[:33_000].tolist(), backwards)
    assert result == expected
    assert steps > (10 if n == 3000 else 500)
    result, _ = at_every_step_of(lambda: order.positions(expected).tolist(), forwards)
    assert result == list(range(len(expected)))


def test_another_thread_may_empty_the_pool_of_working_memory_at_any_instruction() -> None:
    order = EpochOrder(70_000, seed=1)
    expected = order[:100].tolist()
    _, instructions = at_every_step_of(lambda: order[:100], lambda: None)
    assert instructions > 100
    for theirs in range(instructions):
        assert order[:100].tolist() == expected
        assert order_module._pool  # what the next slice will want to take
        countdown = itertools.count(theirs, -1)
        result, _ = at_every_step_of(
            lambda: order[:100].tolist(), lambda left=countdown: next(left) or order_module._pool.clear()
        )
        assert result == expected


def test_one_order_serves_many_threads_from_its_first_use() -> None:
    for n in (3000, 4097):  # what is computed at first need: the inverse of a table, the images outside
        expected = EpochOrder(n, seed=6).positions(range(n)).tolist()
        order, results = EpochOrder(n, seed=6), []
        barrier = threading.Barrier(6)

        def first_use(order: EpochOrder = order, results: list[Any] = results, wait: Any = barrier.wait) -> None:
            wait()
            results.append(order.positions(range(order.n)).tolist())

        threads = [threading.Thread(target=first_use) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 6


# ---- pieces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 1000, 5000, 100_003])
@pytest.mark.parametrize("step", [1, 2, 8, 50_000])
def test_pieces_are_the_indices_of_a_range_of_positions(n: int, step: int) -> None:
    order = EpochOrder(n, seed=4)
    whole = order[:].tolist()
    for start, stop in ((0, n), (3, n - 2), (n // 2, n), (n, n), (5, 3)):
        lists = list(pieces(order, start, stop, step))
        assert list(itertools.chain.from_iterable(lists)) == whole[start : max(start, stop) : step]
        assert all(lists)
        assert {type(x) for part in lists for x in part} <= {int}
        assert all(len(part) <= 8192 for part in lists)
        if len(range(start, stop, step)) > 16_384:  # a first index does not wait for the whole
            assert len(lists[0]) <= 1024


def test_pieces_reach_the_last_position_there_can_be() -> None:
    order = EpochOrder(MAX_LENGTH, seed=4)
    start = MAX_LENGTH - 40_000
    assert list(itertools.chain.from_iterable(pieces(order, start, MAX_LENGTH))) == order[start:].tolist()
    assert list(pieces(order, MAX_LENGTH - 5, MAX_LENGTH, 3)) == [order[MAX_LENGTH - 5 :: 3].tolist()]


# ---- one permutation after another -------------------------------------------------------------------

SLICES = (
    slice(0, 30),
    slice(None, None, 7),
    slice(None, None, -1),
    slice(90, 3, -4),
    slice(-8, None),
    slice(50, 50),
    slice(2, None, 1000),
)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 100, 5000])
def test_repeats_follow_their_definition(n: int) -> None:
    for seed, epoch in ((0, 0), (-5, 3), (2**80, 1)):
        at = reference.repeats(n, seed, epoch)
        repeats = EpochRepeats(n, 103, seed=seed, epoch=epoch)
        items = [at(p) for p in range(103)]
        assert len(repeats) == 103
        for key in SLICES:
            part = repeats[key]
            assert part.dtype == np.int64
            assert part.tolist() == items[key], key


def test_repeats_begin_with_the_epochs_own_order_and_give_each_index_equally_often() -> None:
    n = 5000
    indices = EpochRepeats(n, 4 * n + 123, seed=9, epoch=2)[:]
    assert np.array_equal(indices[:n], EpochOrder(n, seed=9, epoch=2)[:])
    rounds = indices[: 4 * n].reshape(4, n)
    assert np.array_equal(np.sort(rounds, axis=1), np.broadcast_to(np.arange(n), (4, n)))
    assert len({r.tobytes() for r in rounds}) == 4
    assert len(set(indices[4 * n :].tolist())) == 123


@pytest.mark.parametrize("n", [1, 5, 4096, 5000, 2**32, 2**32 + 1, 3 * 2**61, MAX_LENGTH])
def test_repeats_are_computed_where_they_are_asked_for(n: int) -> None:
    at = reference.repeats(n, 3, 1)
    repeats = EpochRepeats(n, MAX_LENGTH, seed=3, epoch=1)
    for start in (10**12, 2**62, max(0, n * (10**12 // n) - 5), MAX_LENGTH - 12):
        positions = range(MAX_LENGTH)[start : start + 12]
        items = [at(p) for p in positions]
        assert repeats[start : start + 12].tolist() == items
        assert repeats[start : start + 12 : 5].tolist() == items[::5]
        backwards = slice(start + 11, start - 1 if start else None, -1)
        assert repeats[backwards].tolist() == [at(p) for p in range(MAX_LENGTH)[backwards]]
    wide = MAX_LENGTH // 3
    assert repeats[5::wide].tolist() == [at(p) for p in range(5, MAX_LENGTH, wide)]
    assert repeats[::-wide].tolist() == [at(p) for p in range(MAX_LENGTH)[::-wide]]


@pytest.mark.parametrize("kind", [EpochRepeats, EpochDraws])
@pytest.mark.parametrize("n", [7, 5000])
def test_what_cannot_fit_of_a_pass_is_refused_at_once(kind: type, n: int) -> None:
    with pytest.raises(MemoryError, match="more than this machine's"):
        kind(n, 10**15, seed=0, epoch=0)[:]


# ---- draws with replacement --------------------------------------------------------------------------

DRAW_LENGTHS = [1, 2, 5, 1000, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 3 * 2**61, MAX_LENGTH]


@pytest.mark.parametrize("n", DRAW_LENGTHS)
def test_draws_follow_their_definition(n: int) -> None:
    for seed, epoch in ((0, 0), (-5, 3), (2**80, 1)):
        at = reference.draws(n, seed, epoch)
        draws = EpochDraws(n, 103, seed=seed, epoch=epoch)
        items = [at(p) for p in range(103)]
        assert len(draws) == 103
        assert 0 <= min(items) <= max(items) < n
        for key in SLICES:
            part = draws[key]
            assert part.dtype == np.int64
            assert part.tolist() == items[key], key


@pytest.mark.parametrize("n", [1000, 2**32 + 1])
def test_long_slices_of_draws_are_their_items(n: int) -> None:
    draws = EpochDraws(n, 100_003, seed=4, epoch=0)
    whole, at = draws[:], reference.draws(n, 4, 0)
    assert whole[::1009].tolist() == [at(p) for p in range(0, 100_003, 1009)]
    for key in (
        slice(1, None),
        slice(32_767, 65_539),
        slice(None, None, 3),
        slice(None, None, -1),
        slice(7, None, 8191),
    ):
        assert np.array_equal(draws[key], whole[key]), key
    for key in (slice(99_999, 5, -40_000), slice(5, None, 32_768), slice(2, 90_000, 32_769)):
        assert np.array_equal(draws[key], whole[key]), key


@pytest.mark.parametrize("n", [1, 5, 2**32, 2**32 + 1, 3 * 2**61, MAX_LENGTH])
def test_draws_are_computed_where_they_are_asked_for(n: int) -> None:
    draws, at = EpochDraws(n, MAX_LENGTH, seed=3, epoch=1), reference.draws(n, 3, 1)
    tracemalloc.start()
    try:
        for start in (10**12, 10**12 + 1, 10**12 + 2, 10**12 + 3, 2**62 + 1, MAX_LENGTH - 9):
            positions = range(MAX_LENGTH)[start : start + 9]
            assert draws[start : start + 9].tolist() == [at(p) for p in positions]
            assert draws[start : start + 9 : 2].tolist() == [at(p) for p in positions[::2]]
        wide = MAX_LENGTH // 3
        assert draws[5::wide].tolist() == [at(p) for p in range(5, MAX_LENGTH, wide)]
        assert draws[::-wide].tolist() == [at(p) for p in range(MAX_LENGTH)[::-wide]]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


def test_the_wide_product_carries() -> None:
    words = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2**32, 2**64 - 2, 2**64 - 1]
    for n in (1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**61, 2**63 - 2**32, MAX_LENGTH):
        high = order_module._high_product(np.array(words, dtype=np.uint64), n)
        assert high.tolist() == [word * n >> 64 for word in words]


def test_draws_are_uniform_and_independent_of_the_order() -> None:
    n, length = 10, 100_000
    counts = np.bincount(EpochDraws(n, length, seed=1, epoch=0)[:], minlength=n)
    chi_square = float(((counts - length / n) ** 2 / (length / n)).sum())
    assert chi_square < 27.9  # 9 degrees of freedom: 1 in 1,000 is larger
    lopsided = np.bincount(np.minimum(EpochDraws(n + 1, length, seed=1, epoch=0)[:], n - 1), minlength=n)
    assert float(((lopsided - length / n) ** 2 / (length / n)).sum()) > 27.9
    different = {EpochDraws(1000, 20, seed=s, epoch=e)[:].tobytes() for s in range(30) for e in range(30)}
    assert len(different) == 900
