"""The rank views: the layouts of accelerate and of torch, bit for bit; one state for all ranks; a rank's own cost."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import time
import tracemalloc
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from rankless_sampler import EpochOrder, SeededDistributedSampler, SeededEpochSampler, ShardedBatchSampler

SEED = 7
FLAGS = (False, True)
State = dict[str, Any]


def view(n: int, batch_size: int, world_size: int, rank: int, **kinds: Any) -> ShardedBatchSampler:
    """A rank's view over a sampler of its own, as each rank has it."""
    sampler = SeededEpochSampler(n, SEED)
    return ShardedBatchSampler(sampler, batch_size, num_replicas=world_size, rank=rank, **kinds)


def views(n: int, batch_size: int, world_size: int, **kinds: Any) -> list[ShardedBatchSampler]:
    return [view(n, batch_size, world_size, rank, **kinds) for rank in range(world_size)]


def shuffled(n: int, epoch: int = 0) -> list[int]:
    return EpochOrder(n, seed=SEED, epoch=epoch)[:].tolist()


def laid_out(
    order: list[int], start: int, batch_size: int, world_size: int, *, drop_last: bool, even_batches: bool
) -> list[list[list[int]]]:
    """By rank, the batches of a pass from `start` on: batch number t * world_size + r is rank r's of step t."""
    rest, step = order[start:], world_size * batch_size
    if drop_last:
        rest = rest[: len(rest) - len(rest) % step]
    elif even_batches and len(rest) % step:
        rest = rest + [order[i % len(order)] for i in range(-len(rest) % step)]
    batches = [rest[i : i + batch_size] for i in range(0, len(rest), batch_size)]
    return [batches[rank::world_size] for rank in range(world_size)]


# ---- the layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", FLAGS)
@pytest.mark.parametrize("even_batches", FLAGS)
def test_batches_and_lengths_are_those_of_accelerates_BatchSamplerShard(drop_last, even_batches):  # noqa: N802
    for n, batch_size, world_size in itertools.product(range(41), range(1, 6), range(1, 6)):
        order = shuffled(n)
        for rank in range(world_size):
            own = view(n, batch_size, world_size, rank, drop_last=drop_last, even_batches=even_batches)
            length, batches = len(own), list(own)
            theirs = BatchSamplerShard(
                BatchSampler(order, batch_size, drop_last), world_size, rank, even_batches=even_batches
            )
            split = BatchSamplerShard(
                BatchSampler(order, batch_size * world_size, drop_last), world_size, rank, True, even_batches
            )
            case = n, batch_size, world_size, rank
            assert batches == list(theirs), case
            assert batches == list(split), case
            assert length == len(batches) == len(theirs), case  # with split_batches, accelerate's len is no rank's own


@pytest.mark.parametrize("drop_last", FLAGS)
@pytest.mark.parametrize("shuffle", FLAGS)
def test_samples_and_lengths_are_those_of_torchs_DistributedSampler(drop_last, shuffle):  # noqa: N802
    for n, world_size in itertools.product(range(41), range(1, 6)):
        for rank in range(world_size):
            own = SeededDistributedSampler(range(n), world_size, rank, shuffle, SEED, drop_last)
            theirs = DistributedSampler(range(n), world_size, rank, shuffle=False, drop_last=drop_last)
            for epoch in (0, 1):
                own.set_epoch(epoch)
                order = shuffled(n, epoch) if shuffle else range(n)
                assert list(own) == [order[position] for position in theirs], (n, world_size, rank)
            lengths = [(s.num_samples, s.total_size, len(s), s.num_replicas, s.rank) for s in (own, theirs)]
            assert lengths[0] == lengths[1], (n, world_size, rank)


def test_SeededDistributedSampler_is_one_for_frameworks_and_takes_its_arguments():  # noqa: N802
    theirs = DistributedSampler([1, 2, 3], num_replicas=2, rank=1, shuffle=True, seed=5, drop_last=True)
    own = SeededDistributedSampler([1, 2, 3], num_replicas=2, rank=1, shuffle=True, seed=5, drop_last=True)
    assert isinstance(own, DistributedSampler)
    for name in ("dataset", "num_replicas", "rank", "epoch", "shuffle", "seed", "drop_last"):
        assert getattr(own, name) == getattr(theirs, name), name


def test_a_pass_from_any_position_has_the_layout_from_there_padded_from_the_head_of_the_epoch():
    for n, batch_size, world_size, drop_last, even_batches in itertools.product(
        (1, 7, 20), (1, 2, 3, 11), (1, 2, 3), FLAGS, FLAGS
    ):
        kinds = {"drop_last": drop_last, "even_batches": even_batches}
        for start in range(n):
            expected = laid_out(shuffled(n, 3), start, batch_size, world_size, **kinds)
            for rank, own in enumerate(views(n, batch_size, world_size, **kinds)):
                own.load_state_dict({**own.state_dict(), "epoch": 3, "position": start})
                assert len(own) == len(expected[rank])
                assert list(own) == expected[rank], (n, batch_size, world_size, kinds, start, rank)
                assert own.epoch == 4


def test_longer_passes_have_the_layout_too():  # several lists of batches, of several sizes
    n = 30_011
    order = shuffled(n)
    for batch_size, world_size in [(1, 3), (7, 2), (512, 2), (5_000, 2), (40_000, 3)]:
        expected = laid_out(order, 0, batch_size, world_size, drop_last=False, even_batches=True)
        assert [list(own) for own in views(n, batch_size, world_size)] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"replacement": True},
        {"replacement": True, "num_samples": 61},
        {"num_samples": 19},
        {"num_samples": 29},
        {"num_samples": 100},
    ],
    ids=str,
)
def test_draws_and_shorter_and_longer_passes_are_dealt_out_as_one_rank_walks_them(options):
    def sampler() -> SeededEpochSampler:
        return SeededEpochSampler(29, SEED, **options)

    walk = list(sampler())
    for batch_size, world_size, drop_last, even_batches in itertools.product((1, 3, 8), (1, 2, 5), FLAGS, FLAGS):
        kinds = {"drop_last": drop_last, "even_batches": even_batches}
        for start in (0, 1, 17):
            expected = laid_out(walk, start, batch_size, world_size, **kinds)
            for rank in range(world_size):
                own = ShardedBatchSampler(sampler(), batch_size, num_replicas=world_size, rank=rank, **kinds)
                own.load_state_dict({**own.state_dict(), "position": start})
                assert list(own) == expected[rank], (batch_size, world_size, kinds, start, rank)


def test_batches_are_fresh_lists_of_plain_ints_and_changing_one_changes_nothing_else():
    own = view(40, 3, 2, 0)
    untouched = list(view(40, 3, 2, 0))
    iterator = iter(own)
    for expected in untouched:
        batch = next(iterator)
        assert batch == expected
        assert {type(index) for index in batch} == {int}
        state = own.state_dict()
        batch += [99, 99]
        batch[0] = -1
        assert own.state_dict() == state
    assert next(iterator, None) is None
    own.set_epoch(0)
    assert list(own) == untouched


# ---- one state for all ranks -------------------------------------------------------------------------


def walk_in_step(members: list[Any], *, full_steps: int) -> tuple[list[list[Any]], list[list[State]]]:
    """By step what each rank got, and the states of sampler and iterator that they all have after it."""
    iterators = [iter(member) for member in members]
    steps, states = [], []
    while True:
        got = [next(iterator, None) for iterator in iterators]
        both = [(m.state_dict(), i.state_dict()) for m, i in zip(members, iterators, strict=True)]
        assert both == [both[0]] * len(both), f"the states of the ranks differ after {len(steps) + 1} steps"
        if all(item is None for item in got):
            assert len(steps) >= full_steps
            return steps, states
        steps.append(got)
        states.append(both[0])


@pytest.mark.parametrize("drop_last", FLAGS)
@pytest.mark.parametrize("even_batches", FLAGS)
@pytest.mark.parametrize("caller_counts", FLAGS)
def test_the_state_is_the_same_on_every_rank_after_each_step(drop_last, even_batches, caller_counts):
    for n, batch_size, world_size in itertools.product(range(17), (1, 2, 3), (1, 2, 3, 4)):
        members = views(n, batch_size, world_size, drop_last=drop_last, even_batches=even_batches)
        if caller_counts:
            for member in members:
                member.set_epoch(5)
        full_steps = n // (batch_size * world_size)
        _, states = walk_in_step(members, full_steps=full_steps)
        epoch = 5 if caller_counts else 0
        for step, (_, iterator) in enumerate(states, start=1):
            assert (iterator["epoch"], iterator["position"]) == (epoch, min(n, step * batch_size * world_size))


def test_a_rank_without_a_batch_in_the_last_step_says_what_the_others_say():
    first, second = members = views(13, 2, 2, even_batches=False)  # 3 full steps, then one sample for rank 0
    iterators = [iter(first), iter(second)]
    for _ in range(3):
        assert [len(next(iterator)) for iterator in iterators] == [2, 2]
    assert [member.state_dict()["position"] for member in members] == [12, 12]
    assert [len(next(iterator, [])) for iterator in iterators] == [1, 0]
    assert [(member.epoch, member.state_dict()["position"]) for member in members] == [(1, 0), (1, 0)]


@pytest.mark.parametrize("drop_last", FLAGS)
def test_the_state_of_SeededDistributedSampler_is_the_same_on_every_rank_after_each_step(drop_last):  # noqa: N802
    for n, world_size in itertools.product(range(14), (1, 2, 3, 4)):
        members = [SeededDistributedSampler(range(n), world_size, r, drop_last=drop_last) for r in range(world_size)]
        _, states = walk_in_step(members, full_steps=n // world_size)
        for step, (_, iterator) in enumerate(states, start=1):
            assert iterator["position"] == min(n, step * world_size)


def test_states_are_plain_and_load_with_weights_only(tmp_path):
    for member in (view(20, 3, 2, 1), SeededDistributedSampler(range(20), 2, 1)):
        next(iter(member))
        state = member.state_dict()
        assert {type(value) for value in state.values()} == {int, str}
        assert json.loads(json.dumps(state)) == state
        torch.save(state, tmp_path / "state")
        assert torch.load(tmp_path / "state", weights_only=True) == state


# ---- any sequence of worlds and batch sizes within an epoch ------------------------------------------


stages = st.lists(
    st.tuples(
        st.integers(1, 6),  # world size
        st.integers(1, 7),  # batch size
        st.integers(0, 6),  # steps until the next checkpoint
        st.booleans(),  # even_batches
        st.sampled_from(["batches", "batches", "samples"]),  # ShardedBatchSampler, or SeededDistributedSampler
    ),
    max_size=8,
)


@settings(max_examples=2_000, deadline=None, derandomize=True, database=None)
@given(n=st.integers(0, 150), stages=stages, last=st.tuples(st.integers(1, 6), st.integers(1, 7), st.booleans()))
def test_no_history_of_world_and_batch_sizes_loses_or_repeats_a_sample(n, stages, last):
    to_the_end = (*last[:2], n + 1, last[2], "batches")
    state: State = SeededEpochSampler(n, SEED).state_dict()
    got: list[int] = []
    for world_size, batch_size, steps, even, kind in [*stages, to_the_end]:
        ranks = range(world_size)
        step = world_size * (batch_size if kind == "batches" else 1)
        if kind == "samples":
            members: list[Any] = [SeededDistributedSampler(range(n), world_size, rank, seed=SEED) for rank in ranks]
        else:
            members = views(n, batch_size, world_size, even_batches=even)
        for member in members:
            member.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(member) for member in members]
        arrived = [
            index
            for _ in range(steps)
            for item in [next(iterator, None) for iterator in iterators]
            if item is not None
            for index in (item if isinstance(item, list) else [item])
        ]
        states = [member.state_dict() for member in members]
        assert states == [states[0]] * world_size
        before, state = state, json.loads(json.dumps(states[0]))
        fresh = (state["position"] if state["epoch"] == 0 else n) - before["position"]
        got += arrived[:fresh]
        padding = len(arrived) - fresh
        assert 0 <= padding < (step if state["epoch"] == 1 and (even or kind == "samples") else 1)
        if state["epoch"] == 1:
            break
    assert got == shuffled(n)  # nothing lost, nothing twice, and in the order of the epoch
    assert state == {**state, "epoch": 1, "position": 0}
    following = views(n, 4, 3, even_batches=False)
    for member in following:
        member.load_state_dict(state)
    assert [index for step in itertools.zip_longest(*following, fillvalue=[]) for batch in step for index in batch] == (
        shuffled(n, 1)
    )


@pytest.mark.parametrize("kind", ["batches", "samples"])
def test_1003_samples_on_8_then_6_then_3_then_5_ranks_come_once_each(kind):
    state: State = SeededEpochSampler(1_003, SEED).state_dict()
    got: list[int] = []
    for world_size, batch_size, steps in ((8, 7, 5), (6, 11, 4), (3, 2, 9), (5, 13, None)):
        if kind == "batches":
            members: list[Any] = views(1_003, batch_size, world_size, even_batches=False)
        else:
            members = [
                SeededDistributedSampler(range(1_003), world_size, rank, seed=SEED) for rank in range(world_size)
            ]
        for member in members:
            member.load_state_dict(state)
        for step in itertools.islice(itertools.zip_longest(*members), steps):
            for item in step:
                got += item if isinstance(item, list) else [] if item is None else [item]
        state = members[-1].state_dict()
        assert all(member.state_dict() == state for member in members)
    padding = len(got) - 1_003  # DistributedSampler's layout fills the last step up from the head of the epoch
    assert padding == (0 if kind == "batches" else -(1_003 - 8 * 5 - 6 * 4 - 3 * 9) % 5)
    assert got == shuffled(1_003) + shuffled(1_003)[:padding]
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_rest_that_drop_last_leaves_nothing_of_is_a_pass_without_a_batch_and_the_epoch_moves_on():
    for member in views(20, 4, 2, drop_last=True):
        member.load_state_dict({**member.state_dict(), "epoch": 2, "position": 15})
        assert len(member) == 0
        assert list(member) == []
        assert member.epoch == 3
        assert len(list(member)) == 2
        assert member.epoch == 4


# ---- lengths -----------------------------------------------------------------------------------------


def test_len_counts_the_next_pass_right_after_a_resume_too():
    member = view(100, 4, 2, 0)
    loader = DataLoader(range(100), batch_sampler=member)
    assert (len(member), len(loader)) == (13, 13)
    member.load_state_dict({**member.state_dict(), "position": 40})
    assert (len(member), len(loader)) == (8, 8)  # the rest
    assert len(list(loader)) == 8
    assert (len(member), len(loader)) == (13, 13)  # the next epoch
    assert len(list(loader)) == 13
    distributed = SeededDistributedSampler(range(100), 2, 0)
    distributed.load_state_dict({**distributed.state_dict(), "position": 40})
    assert len(distributed) == 50  # a whole epoch, as frameworks expect of a DistributedSampler
    assert len(list(distributed)) == 30


# ---- epochs ------------------------------------------------------------------------------------------


def test_a_view_counts_epochs_until_set_epoch_is_called():
    member = view(12, 2, 3, 1)
    assert [list(member) for _ in range(3)] == [
        laid_out(shuffled(12, epoch), 0, 2, 3, drop_last=False, even_batches=True)[1] for epoch in range(3)
    ]
    member.set_epoch(9)
    assert list(member) == list(member) == laid_out(shuffled(12, 9), 0, 2, 3, drop_last=False, even_batches=True)[1]
    assert member.epoch == member.sampler.epoch == 9


def test_of_SeededDistributedSampler_the_caller_counts_but_a_restored_pass_moves_on():  # noqa: N802
    member = SeededDistributedSampler(range(12), 3, 1, seed=SEED)
    assert list(member) == list(member) == shuffled(12, 0)[1::3]
    assert member.epoch == 0
    assert member.order(4) == EpochOrder(12, seed=SEED, epoch=4)
    member.set_epoch(4)
    iterator = iter(member)
    assert [next(iterator), next(iterator)] == shuffled(12, 4)[1::3][:2]
    state = member.state_dict()
    assert (state["epoch"], state["position"]) == (4, 6)
    other = SeededDistributedSampler(range(12), 2, 0, seed=SEED)
    other.load_state_dict(state)
    assert list(other) == shuffled(12, 4)[6::2]
    assert other.epoch == 5
    assert list(other) == shuffled(12, 5)[::2]


def test_shuffle_false_resumes_too_and_refuses_the_state_of_a_shuffled_run():
    member = SeededDistributedSampler(range(20), 2, 1, shuffle=False)
    member.load_state_dict({**member.state_dict(), "position": 7})
    assert list(member) == [8, 10, 12, 14, 16, 18, 7 + 13 - 20]
    with pytest.raises(ValueError, match="algorithm"):
        member.load_state_dict(SeededDistributedSampler(range(20), 2, 1).state_dict())
    with pytest.raises(ValueError, match="shuffle=True"):
        member.order()
    with pytest.raises(AttributeError):  # it could not change the order any more
        member.shuffle = True
    assert not member.shuffle
    assert SeededDistributedSampler(range(20), 2, 1).shuffle


def test_copies_go_on_where_the_original_would():
    for member in (view(20, 3, 2, 1, drop_last=True), SeededDistributedSampler(range(20), 2, 1, seed=SEED)):
        member.load_state_dict({**member.state_dict(), "epoch": 2, "position": 6})
        copies = [pickle.loads(pickle.dumps(member)), copy.deepcopy(member)]
        walked = [list(member), list(member)]
        for other in copies:
            assert repr(other) == repr(member)
            assert other.fingerprint() | {"epoch": 0, "position": 0} == member.fingerprint() | {
                "epoch": 0,
                "position": 0,
            }
            assert [list(other), list(other)] == walked


def test_repr_tells_all_arguments():
    assert repr(view(20, 3, 2, 1, drop_last=True)) == (
        "ShardedBatchSampler(SeededEpochSampler(20, seed=7), 3, num_replicas=2, rank=1, drop_last=True, "
        "even_batches=True)"
    )
    assert repr(SeededDistributedSampler(range(20), 2, 1, False, 5, True)) == (
        "SeededDistributedSampler(20, num_replicas=2, rank=1, shuffle=False, seed=5, drop_last=True)"
    )


# ---- a rank pays for its own part --------------------------------------------------------------------


class CountingOrder(EpochOrder):
    """Counts the positions that it computes indices for."""

    __slots__ = ("computed",)

    def _slice(self, positions: range) -> Any:
        self.computed = getattr(self, "computed", 0) + len(positions)
        return super()._slice(positions)

    def _map(self, values: Any, *, inverse: bool = False) -> Any:
        self.computed = getattr(self, "computed", 0) + values.size
        return super()._map(values, inverse=inverse)


class CountingSampler(SeededEpochSampler):
    def _sequence(self, place: Any) -> CountingOrder:
        self.walked = CountingOrder(place.data_length, seed=place.seed, epoch=place.epoch)
        return self.walked


def test_a_rank_computes_its_own_positions_and_no_others():
    n, world_size = 1_000_003, 64
    for batch_size, rank in itertools.product((1, 32, 5_000), (0, 63)):
        sampler = CountingSampler(n, SEED)
        own = sum(map(len, ShardedBatchSampler(sampler, batch_size, num_replicas=world_size, rank=rank)))
        assert sampler.walked.computed == own
        assert own <= n // world_size + batch_size
    distributed = SeededDistributedSampler(range(n), world_size, 63)
    distributed._sampler = CountingSampler(n, SEED)
    assert len(list(distributed)) == distributed._sampler.walked.computed == -(-n // world_size)


N_BILLION, RANKS = 10**9, 1_024  # 976,563 samples a rank


def seconds(walk: Any) -> float:
    start = time.perf_counter()
    walk()
    return time.perf_counter() - start


def own_walks() -> dict[str, Any]:
    batches = view(N_BILLION, 32, RANKS, 5)
    samples = SeededDistributedSampler(range(N_BILLION), RANKS, 5, seed=SEED)
    return {"ShardedBatchSampler": batches, "SeededDistributedSampler": samples}


def test_of_a_billion_samples_on_1024_ranks_a_rank_pays_under_a_500th(record_property):
    """The cost of the whole walk is extrapolated from that of its first 2,000,000 samples, measured in turns."""
    part = 2_000_000

    def whole() -> float:
        walk = iter(SeededEpochSampler(N_BILLION, SEED))
        return seconds(lambda: deque(itertools.islice(walk, part), 0)) / part * N_BILLION

    for name, member in own_walks().items():
        assert sum(len(item) if isinstance(item, list) else 1 for item in member) == pytest.approx(976_563, abs=32)
        ratio = max(whole() / seconds(lambda member=member: deque(member, 0)) for _ in range(7))
        record_property(name, ratio)
        assert ratio >= 500, f"{name}: a rank's own walk costs 1/{ratio:.0f} of the whole"


def test_of_a_billion_samples_a_rank_walks_its_part_within_8_MiB():  # noqa: N802
    for name, member in own_walks().items():
        tracemalloc.start()
        try:
            deque(member, 0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * 2**20, f"{name}: {peak} bytes"


def test_on_16384_ranks_the_inverse_says_which_step_rank_and_slot_saw_a_sample():
    n, world_size, batch_size, seed = 10**12, 16_384, 8, 11
    samples = np.random.default_rng(3).integers(0, n, 100_000)
    for epoch, samples_of_epoch in zip((0, 1, 5, 900), np.split(samples, 4), strict=True):
        positions = EpochOrder(n, seed=seed, epoch=epoch).positions(samples_of_epoch)
        member = ShardedBatchSampler(SeededEpochSampler(n, seed), batch_size, num_replicas=world_size, rank=0)
        state = {**member.state_dict(), "epoch": epoch}
        for sample, position in zip(samples_of_epoch.tolist(), positions.tolist(), strict=True):
            step, inside = divmod(position, batch_size * world_size)
            member.rank, slot = divmod(inside, batch_size)
            member.load_state_dict({**state, "position": step * batch_size * world_size})
            assert next(iter(member))[slot] == sample


# ---- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"sampler": range(9)}, TypeError, "sampler must be a SeededEpochSampler, got range"),
        ({"sampler": None}, TypeError, "sampler must be a SeededEpochSampler, got NoneType"),
        ({"batch_size": 0}, ValueError, r"batch_size must be in 1\.\.\d+, got 0"),
        ({"batch_size": -3}, ValueError, r"batch_size must be in 1\.\.\d+, got -3"),
        ({"batch_size": 2**63}, ValueError, r"batch_size must be in 1\.\.\d+, got 9223372036854775808"),
        ({"batch_size": 2.0}, TypeError, r"batch_size must be an int, got 2\.0 \(float\)"),
        ({"batch_size": True}, TypeError, r"batch_size must be an int, got True \(bool\)"),
        ({"batch_size": None}, TypeError, r"batch_size must be an int, got None"),
        ({"num_replicas": 0}, ValueError, r"num_replicas must be in 1\.\.\d+, got 0"),
        ({"num_replicas": "2"}, TypeError, "num_replicas must be an int, got '2'"),
        ({"rank": 2}, ValueError, r"rank must be in 0\.\.1, got 2"),
        ({"rank": -1}, ValueError, r"rank must be in 0\.\.1, got -1"),
        ({"rank": 0.5}, TypeError, r"rank must be an int, got 0\.5"),
        ({"drop_last": 1}, TypeError, r"drop_last must be a bool, got 1 \(int\)"),
        ({"even_batches": "yes"}, TypeError, "even_batches must be a bool, got 'yes'"),
    ],
    ids=str,
)
def test_ShardedBatchSampler_names_the_argument_and_what_is_allowed(arguments, kind, message):  # noqa: N802
    good: dict[str, Any] = {"sampler": SeededEpochSampler(9), "batch_size": 2, "num_replicas": 2, "rank": 0}
    ShardedBatchSampler(**good)
    with pytest.raises(kind, match=message):
        ShardedBatchSampler(**good | arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"dataset": -1}, ValueError, r"data_source must be in 0\.\.\d+, got -1"),
        ({"dataset": iter([1])}, TypeError, "data_source must have a len"),
        ({"num_replicas": 0}, ValueError, r"num_replicas must be in 1\.\.\d+, got 0"),
        ({"rank": 2}, ValueError, r"rank must be in 0\.\.1, got 2"),
        ({"shuffle": 1}, TypeError, "shuffle must be a bool, got 1"),
        ({"shuffle": None}, TypeError, "shuffle must be a bool, got None"),
        ({"seed": 1.5}, TypeError, r"seed must be an int, got 1\.5"),
        ({"drop_last": 0}, TypeError, "drop_last must be a bool, got 0"),
    ],
    ids=str,
)
def test_SeededDistributedSampler_names_the_argument_and_what_is_allowed(arguments, kind, message):  # noqa: N802
    good: dict[str, Any] = {"dataset": range(9), "num_replicas": 2, "rank": 0}
    SeededDistributedSampler(**good)
    with pytest.raises(kind, match=message):
        SeededDistributedSampler(**good | arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 21}, "num_samples=21, but this dataset has 20"),
        ({"position": 21}, r"position'\] must be in 0\.\.20, got 21"),
        ({"position": 2.0}, r"position'\] must be an int, got 2\.0"),
        ({"epoch": -1}, r"epoch'\] must be >= 0, got -1"),
        ({"algorithm": "v2"}, "'v2'"),
        ({"surplus": 1}, r"unknown \['surplus'\]"),
        ({"stride": 0}, r"stride'\] must be >= 1, got 0"),
    ],
    ids=str,
)
def test_a_bad_state_is_refused_and_changes_nothing(changes, message):
    for member in (view(20, 3, 2, 1), SeededDistributedSampler(range(20), 2, 1, seed=SEED)):
        member.load_state_dict({**member.state_dict(), "epoch": 2, "position": 5})
        rest = list(copy.deepcopy(member))
        bad = {**member.state_dict(), **changes}
        iterator = iter(member)
        for receiver in (member, iterator):
            with pytest.raises(ValueError, match=message):
                receiver.load_state_dict(bad)
        assert list(iterator) == rest


def test_a_process_launched_as_one_of_several_must_know_its_rank(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = SeededEpochSampler(9)
    for build in (
        lambda: ShardedBatchSampler(sampler, 2),
        lambda: ShardedBatchSampler(sampler, 2, num_replicas=2),
        lambda: ShardedBatchSampler(sampler, 2, rank=1),
        lambda: SeededDistributedSampler(range(9)),
    ):
        with pytest.raises(RuntimeError, match=r"WORLD_SIZE=2.*init_process_group"):
            build()
    assert ShardedBatchSampler(sampler, 2, num_replicas=2, rank=1).rank == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (ShardedBatchSampler(sampler, 2).num_replicas, SeededDistributedSampler(range(9)).num_replicas) == (1, 1)
