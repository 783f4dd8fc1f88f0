"""The order: what holds for any length, seed and epoch, to 2^63 - 1."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import reference

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from rankless_sampler.order import MAX_LENGTH, EpochDraws, EpochOrder, EpochRepeats, pieces

pytestmark = pytest.mark.filterwarnings("error")

near_powers_of_two = st.builds(lambda e, d: min(max(1, 2**e + d), MAX_LENGTH), st.integers(0, 63), st.integers(-3, 3))
lengths = st.one_of(st.integers(1, 200), near_powers_of_two, st.integers(1, MAX_LENGTH))
seeds = st.one_of(st.integers(-3, 3), st.integers(-(2**200), 2**200))
epochs = st.one_of(st.integers(0, 3), st.integers(0, 2**100))
orders = st.builds(lambda n, seed, epoch: EpochOrder(n, seed=seed, epoch=epoch), lengths, seeds, epochs)


@st.composite
def order_and_numbers(draw: st.DrawFn) -> tuple[EpochOrder, list[int]]:
    order = draw(orders)
    near_the_end = st.builds(lambda d: max(0, order.n - 1 - d), st.integers(0, 99))
    return order, draw(st.lists(st.integers(0, order.n - 1) | near_the_end, max_size=30))


@st.composite
def order_and_short_slice(draw: st.DrawFn) -> tuple[EpochOrder, slice]:
    order = draw(orders)
    n = order.n
    step = draw(st.sampled_from([1, 2, 7]) | st.integers(1, n // 20 + 1)) * draw(st.sampled_from([1, -1]))
    first, count = draw(st.integers(0, n - 1)), draw(st.integers(0, 100))
    stop = first + count * step
    if draw(st.booleans()):
        first -= n  # the same position, counted from the end
    return order, slice(first, stop if stop >= 0 else None, step)


@settings(deadline=None, max_examples=200)
@given(order_and_numbers())
def test_the_order_maps_into_its_range_and_back(case: tuple[EpochOrder, list[int]]) -> None:
    order, numbers = case
    indices = order[numbers]
    assert all(0 <= x < order.n for x in indices.tolist())
    assert order.positions(indices).tolist() == numbers
    assert order[order.positions(numbers)].tolist() == numbers
    assert len(set(indices.tolist())) == len(set(numbers))
    for number in numbers[:3]:
        assert order[order.index(number)] == number
        assert order.index(order[number]) == number


@settings(deadline=None, max_examples=200)
@given(order_and_numbers())
def test_the_order_follows_the_specification(case: tuple[EpochOrder, list[int]]) -> None:
    order, numbers = case
    index_at, position_of = reference.order(order.n, order.seed, order.epoch)
    assert order[numbers].tolist() == [index_at(p) for p in numbers]
    assert [order[p] for p in numbers] == [index_at(p) for p in numbers]
    assert order.positions(numbers).tolist() == [position_of(x) for x in numbers]
    assert order[[p - order.n for p in numbers]].tolist() == order[numbers].tolist()


@settings(deadline=None, max_examples=200)
@given(order_and_short_slice())
def test_slices_are_their_items(case: tuple[EpochOrder, slice]) -> None:
    order, key = case
    positions = range(order.n)[key]
    assert len(positions) <= 100
    assert order[key].tolist() == [order[p] for p in positions]
    if positions.step > 0:
        assert list(chain.from_iterable(pieces(order, positions.start, positions.stop, positions.step))) == [
            order[p] for p in positions
        ]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20_000), seeds, epochs)
def test_the_order_holds_each_index_once(n: int, seed: int, epoch: int) -> None:
    order = EpochOrder(n, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order[:]), np.arange(n))


@settings(deadline=None, max_examples=100)
@given(lengths, st.integers(0, MAX_LENGTH - 30), st.integers(1, 9), seeds, epochs)
def test_draws_and_repeats_follow_the_specification(n: int, start: int, step: int, seed: int, epoch: int) -> None:
    for kind, function in ((EpochDraws, reference.draws), (EpochRepeats, reference.repeats)):
        at, sequence = function(n, seed, epoch), kind(n, MAX_LENGTH, seed=seed, epoch=epoch)
        indices = sequence[start : start + 30 : step].tolist()
        assert indices == [at(p) for p in range(start, start + 30, step)]
        assert all(0 <= x < n for x in indices)
