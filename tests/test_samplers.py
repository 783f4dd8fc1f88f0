"""SeededEpochSampler keeps what the design page promises: each test is named by its promise."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import json
import math
import multiprocessing
import os
import pickle
import random
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from rankless_sampler import EpochOrder, SeededEpochSampler
from rankless_sampler.order import EpochDraws, EpochRepeats

LONG = 100_000
BORDERS = sorted(
    {0, 1, 2}
    | {border + i for border in (1_024, 8_192, 9_216, 17_408, 32_768, 33_792, 66_560, 99_328) for i in (-1, 0, 1)}
    | {LONG - 2, LONG - 1, LONG}
)


def indices(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return EpochOrder(n, seed=seed, epoch=epoch)[:].tolist()


def take(iterator: Any, count: int) -> list[int]:
    return list(itertools.islice(iterator, count))


class Indices(Dataset[int]):
    """Gives back the index that it was asked for, but complains of anything that is no plain int."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        assert type(index) is int
        return index


def fresh_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code), *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# ---- the drop-in for shuffle=True --------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(4, False), (4, True), (None, False)])
def test_a_dataloader_delivers_the_order_of_one_epoch_after_another(workers, batch_size, drop_last):
    sampler = SeededEpochSampler(Indices(22), 5)
    loader = DataLoader(
        sampler.data_source,
        batch_size=batch_size,
        sampler=sampler,
        drop_last=drop_last,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for epoch in range(3):
        assert sampler.epoch == epoch
        delivered = [int(index) for batch in loader for index in torch.as_tensor(batch).reshape(-1)]
        assert delivered == indices(22, 5, epoch)[: 20 if drop_last else 22]


def test_it_yields_plain_ints_each_index_once():
    for n in (1, 2, 97, 5_000, LONG):
        sampler = SeededEpochSampler(n, 3)
        delivered = list(sampler)
        assert {type(index) for index in delivered} == {int}
        assert delivered == indices(n, 3)
        assert sorted(delivered) == list(range(n))
        assert len(sampler) == sampler.num_samples == n


def test_it_is_a_sampler_and_none_that_frameworks_replace_or_reseed():
    sampler = SeededEpochSampler(10)
    assert isinstance(sampler, Sampler)
    assert not isinstance(sampler, (RandomSampler, SequentialSampler, DistributedSampler))
    assert not hasattr(sampler, "generator")
    assert not hasattr(iter(sampler), "generator")


def test_sampler_and_iterator_are_stateful_for_torchdata():
    from torchdata.stateful_dataloader import Stateful

    sampler = SeededEpochSampler(10)
    assert isinstance(sampler, Stateful)
    assert isinstance(iter(sampler), Stateful)


@pytest.mark.parametrize(
    "data_source", [9, np.int64(9), np.uint8(9), list(range(9)), "ninechars", range(9), Indices(9), torch.zeros(9, 2)]
)
def test_data_source_is_anything_with_a_length_or_the_length(data_source):
    assert list(SeededEpochSampler(data_source, 4)) == indices(9, 4)
    assert repr(SeededEpochSampler(data_source, 4)) == "SeededEpochSampler(9, seed=4)"


def test_the_length_is_read_again_for_each_pass_and_fixed_for_a_pass_that_goes_on():
    data = list(range(10))
    sampler = SeededEpochSampler(data, 1)
    first = iter(sampler)
    begun = take(first, 4)
    data += [10, 11]
    assert len(sampler) == sampler.num_samples == 12
    assert len(sampler.order()) == 12
    assert begun + list(first) == indices(10, 1, 0)
    assert list(sampler) == indices(12, 1, 1)
    del data[3:]
    assert list(sampler) == indices(3, 1, 2)


def test_there_is_one_python_step_for_a_chunk_not_for_each_index():
    steps = itertools.count()
    iterator = iter(SeededEpochSampler(200_000))
    sys.setprofile(lambda frame, event, argument: next(steps) if event == "call" else None)
    try:
        total = sum(1 for _ in iterator)
    finally:
        sys.setprofile(None)
    assert total == 200_000
    assert next(steps) - total < 2_000  # the generator expression above takes `total` of them


def test_order_is_the_epoch_order_of_any_epoch_by_default_the_next():
    sampler = SeededEpochSampler(50, 6)
    assert sampler.order() == EpochOrder(50, seed=6, epoch=0)
    list(sampler)
    assert sampler.order() == EpochOrder(50, seed=6, epoch=1)
    assert sampler.order(7) == sampler.order(np.int64(7)) == EpochOrder(50, seed=6, epoch=7)
    sampler.set_epoch(3)
    assert sampler.order() == EpochOrder(50, seed=6, epoch=3)
    with pytest.raises(ValueError, match="epoch"):
        sampler.order(-1)
    with pytest.raises(TypeError, match="epoch"):
        sampler.order(1.0)
    with pytest.raises(ValueError, match="replacement"):
        SeededEpochSampler(50, replacement=True).order()


def test_100_seeds_by_100_epochs_are_10_000_orders():
    orders = set()
    for seed in range(100):
        sampler = SeededEpochSampler(30, seed)
        orders |= {tuple(sampler) for _ in range(100)}
    assert len(orders) == 10_000


@pytest.mark.parametrize("seed", [0, -5, 2**64 + 1, np.int32(7), 10**5_000], ids=lambda seed: type(seed).__name__)
def test_any_int_is_a_seed(seed):
    sampler = SeededEpochSampler(20, seed)
    assert type(sampler.seed) is int
    assert sampler.seed == seed
    assert repr(sampler).startswith("SeededEpochSampler(20, seed=")
    assert list(sampler) == indices(20, int(seed))


def test_repr_is_the_call_and_the_same_in_each_process_and_epoch():
    sampler = SeededEpochSampler(Indices(20), 7, replacement=True, num_samples=30)
    text = "SeededEpochSampler(20, seed=7, replacement=True, num_samples=30)"
    assert repr(sampler) == text
    list(sampler)
    assert repr(sampler) == text == repr(eval(text)) == repr(pickle.loads(pickle.dumps(sampler)))


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        (((10,), {"seed": 1.5}), TypeError, "seed"),
        (((10,), {"seed": "1"}), TypeError, "seed"),
        (((10,), {"seed": None}), TypeError, "seed"),
        (((10,), {"seed": True}), TypeError, "seed"),
        (((-1,), {}), ValueError, "data_source"),
        (((2**63,), {}), ValueError, "data_source"),
        (((1.0,), {}), TypeError, "data_source"),
        (((None,), {}), TypeError, "data_source"),
        (((True,), {}), TypeError, "data_source"),
        (((iter([1]),), {}), TypeError, "data_source"),
        (((10,), {"replacement": 1}), TypeError, "replacement"),
        (((10,), {"replacement": None}), TypeError, "replacement"),
        (((10,), {"num_samples": 0}), ValueError, "num_samples"),
        (((10,), {"num_samples": -1}), ValueError, "num_samples"),
        (((10,), {"num_samples": 2**63}), ValueError, "num_samples"),
        (((10,), {"num_samples": 2.0}), TypeError, "num_samples"),
        (((10,), {"num_samples": True}), TypeError, "num_samples"),
        (((0,), {"num_samples": 3}), ValueError, "num_samples"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error, name):
    args, kwargs = arguments
    with pytest.raises(error, match=name):
        SeededEpochSampler(*args, **kwargs)


def test_arrays_without_dimensions_are_the_number_of_samples():
    for five in (np.array(5), np.int64(5), torch.tensor(5)):
        assert list(SeededEpochSampler(five, 7)) == list(EpochOrder(5, seed=7))
    for bad in (np.array(5.0), torch.tensor(5.0), torch.tensor(True)):
        with pytest.raises(TypeError, match=r"data_source must have a len\(\), or be the number of samples"):
            SeededEpochSampler(bad)


def test_an_iterable_dataset_is_refused_with_the_reason():
    class Stream(IterableDataset[int]):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(TypeError, match=r"data_source must have a len\(\).*IterableDataset"):
        SeededEpochSampler(Stream())


@pytest.mark.parametrize(("length", "error"), [(-1, ValueError), (2**63, ValueError), (2.0, TypeError)])
def test_a_length_outside_the_range_is_refused_by_name(length, error):
    with pytest.raises(error, match=r"len\(data_source\)"):
        SeededEpochSampler(Indices(length))


def test_empty_and_tiny_datasets_are_walked_like_any_other():
    for n in (0, 1):
        sampler = SeededEpochSampler(n)
        for epoch in range(3):
            assert sampler.epoch == epoch
            assert list(sampler) == list(range(n))
        state = sampler.state_dict()
        assert (state["epoch"], state["position"]) == (3, 0)
        other = SeededEpochSampler(n)
        other.load_state_dict(state)
        assert list(other) == list(range(n))
        assert other.epoch == 4
    assert list(DataLoader(Indices(0), batch_size=4, sampler=SeededEpochSampler(0))) == []


# ---- no global RNG -----------------------------------------------------------------------------------


def test_not_one_bit_of_a_global_rng_is_read_or_moved():
    def states() -> tuple[Any, ...]:
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002  # the global one is what is meant
        return torch.get_rng_state().tolist(), (kind, keys.tolist(), *rest), random.getstate()

    def everything() -> list[Any]:
        seen: list[Any] = [states()]
        for options in ({}, {"replacement": True}, {"num_samples": 15_000}):
            sampler = SeededEpochSampler(6_000, 5, **options)
            seen.append(states())
            iterator = iter(sampler)
            passes = [take(iterator, 3_000)]
            seen.append(states())
            restored = pickle.loads(pickle.dumps(sampler))
            restored.load_state_dict(iterator.state_dict())
            passes += [list(iterator), list(restored), list(sampler)]
            seen.append(states())
            delivered.append(passes)
        return seen

    delivered: list[Any] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        seen = everything()
        assert all(state == seen[0] for state in seen)
    assert delivered[:3] == delivered[3:]  # read neither: other global seeds, the same indices


# ---- who counts --------------------------------------------------------------------------------------


def test_iter_has_no_effect_by_itself():
    sampler = SeededEpochSampler(20, 2)
    before = sampler.state_dict()
    unused = [iter(sampler) for _ in range(6)]
    assert sampler.state_dict() == before
    assert list(unused[3]) == indices(20, 2, 0)  # whichever of the six a loader uses
    assert sampler.epoch == 1
    assert list(unused[0]) == indices(20, 2, 1)  # the others bind when they are used, if ever
    assert sampler.epoch == 2


def test_an_unbound_iterator_says_where_it_would_start():
    sampler = SeededEpochSampler(20, 2)
    iterator = iter(sampler)
    assert iterator.state_dict() == sampler.state_dict() == {**EMPTY, "num_samples": 20, "seed": 2}
    list(sampler)
    assert iterator.state_dict()["epoch"] == 1
    sampler.set_epoch(5)
    assert iterator.state_dict()["epoch"] == 5
    sampler.load_state_dict({**EMPTY, "num_samples": 20, "seed": 2, "epoch": 3, "position": 7})
    assert (iterator.state_dict()["epoch"], iterator.state_dict()["position"]) == (3, 7)
    assert list(iterator) == indices(20, 2, 3)[7:]


def test_an_iterator_binds_when_its_first_index_is_taken():
    sampler = SeededEpochSampler(20, 2)
    early, late = iter(sampler), iter(sampler)
    assert next(early) == indices(20, 2, 0)[0]
    sampler.set_epoch(4)
    assert list(early) == indices(20, 2, 0)[1:]
    assert list(late) == indices(20, 2, 4)


def test_a_pass_to_the_end_moves_the_epoch_on_and_a_peek_changes_nothing():
    sampler = SeededEpochSampler(20, 2)
    peek = iter(sampler)
    assert take(peek, 4) == indices(20, 2, 0)[:4]
    del peek
    assert sampler.epoch == 0
    with pytest.warns(UserWarning, match="set_epoch"):
        assert list(sampler) == indices(20, 2, 0)
    assert sampler.epoch == 1
    assert list(sampler) == indices(20, 2, 1)


def test_a_peek_on_one_rank_leaves_both_ranks_with_the_same_order():
    ranks = [SeededEpochSampler(20, 2) for _ in range(2)]
    next(iter(ranks[0]))
    with pytest.warns(UserWarning, match="epoch 0 stopped early, at position 1 of 20"):
        assert [list(rank) for rank in ranks] == [indices(20, 2, 0)] * 2


def test_starting_an_epoch_again_after_an_early_stop_warns_once_at_the_callers_line():
    sampler = SeededEpochSampler(20, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            for position, _ in enumerate(sampler):
                if position == 4:
                    break
    assert len(caught) == 1
    assert caught[0].category is UserWarning
    assert caught[0].filename == __file__
    assert "epoch 0 stopped early, at position 5 of 20" in str(caught[0].message)
    assert "set_epoch" in str(caught[0].message)


def test_three_epochs_of_a_plain_dataloader_are_three_orders_and_a_break_is_noticed():
    sampler = SeededEpochSampler(Indices(20), 2)
    loader = DataLoader(sampler.data_source, batch_size=4, sampler=sampler)
    passes = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert passes == [indices(20, 2, epoch) for epoch in range(3)]
    for step, _ in enumerate(loader, 1):
        if step == 2:
            break
    with pytest.warns(UserWarning, match="set_epoch"):
        assert torch.cat(list(loader)).tolist() == indices(20, 2, 3)
    assert sampler.epoch == 4


def test_no_warning_where_nothing_is_repeated_unasked():
    sampler = SeededEpochSampler(20, 2)  # any warning of ours is an error in this file
    take(iter(sampler), 3)
    sampler.set_epoch(0)  # the caller counts, and asks for epoch 0
    list(sampler)
    sampler = SeededEpochSampler(20, 2)
    take(iter(sampler), 3)
    sampler.load_state_dict(sampler.state_dict())
    assert list(sampler) == indices(20, 2, 0)[3:]
    list(sampler)
    sampler = SeededEpochSampler(20, 2)
    iterator = iter(sampler)
    iterator.load_state_dict(sampler.state_dict())  # bound at 0, but nothing was handed out
    assert list(sampler) == indices(20, 2, 0)


def test_the_end_counts_when_exactly_n_indices_were_taken_without_stopiteration():
    for n in (1, 2, 20, 1_024, 1_025, 9_216, 40_000):
        sampler = SeededEpochSampler(n, 2)
        iterator = iter(sampler)
        assert take(iterator, n - 1) == indices(n, 2, 0)[:-1]
        assert sampler.epoch == 0
        next(iterator)
        assert sampler.epoch == 1
        assert sampler.state_dict()["position"] == 0
        assert iterator.state_dict() == {**EMPTY, "num_samples": n, "seed": 2, "position": n}
        assert list(iterator) == []  # the StopIteration does not count again
        assert sampler.epoch == 1
        assert take(iter(sampler), n) == indices(n, 2, 1)
        assert sampler.epoch == 2


def test_each_of_several_iterators_may_be_the_one_that_reaches_the_end():
    sampler = SeededEpochSampler(20, 2)
    first, second = iter(sampler), iter(sampler)
    take(first, 5)
    with pytest.warns(UserWarning, match="stopped early"):
        take(second, 3)
    assert take(first, 15) == indices(20, 2, 0)[5:]  # all of them, and the latest to be bound is another
    assert sampler.epoch == 1
    assert take(second, 17) == indices(20, 2, 0)[3:]  # a second pass to the end of the same epoch counts once
    assert sampler.epoch == 1
    assert list(sampler) == indices(20, 2, 1)


def test_a_pass_that_ends_after_its_epoch_is_past_moves_nothing():
    sampler = SeededEpochSampler(20, 2)
    old = iter(sampler)
    take(old, 5)
    with pytest.warns(UserWarning, match="stopped early"):
        list(sampler)
    list(sampler)
    assert sampler.epoch == 2
    assert list(old) == indices(20, 2, 0)[5:]
    assert sampler.epoch == 2


def test_after_set_epoch_the_caller_counts():
    sampler = SeededEpochSampler(20, 2)
    sampler.set_epoch(3)
    for _ in range(3):
        assert list(sampler) == indices(20, 2, 3)
        assert sampler.epoch == 3
    take(iter(sampler), 4)
    assert list(sampler) == indices(20, 2, 3)  # from its start, and without a warning
    sampler.set_epoch(np.int64(1))
    assert type(sampler.epoch) is int
    assert list(sampler) == indices(20, 2, 1)


def test_set_epoch_is_absolute_and_idempotent():
    sampler = SeededEpochSampler(20, 2)
    for epoch in (5, 5, 2, 2, 2, 9):
        sampler.set_epoch(epoch)
        assert sampler.epoch == epoch
    sampler.set_epoch(9)
    assert list(sampler) == indices(20, 2, 9)


def test_set_epoch_drops_a_pending_resume():
    state = SeededEpochSampler(20, 2).state_dict(position=7)
    for epoch in (0, 4):
        sampler = SeededEpochSampler(20, 2)
        sampler.load_state_dict(state)
        sampler.set_epoch(epoch)
        assert sampler.state_dict() == {**state, "epoch": epoch, "position": 0}
        assert list(sampler) == indices(20, 2, epoch)


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_never_disturbs_a_prefetching_iterator_not_even_a_drained_one(drained, workers):
    n = 12 if drained else 64  # 2 workers draw 4 batches of 4 at once
    sampler = SeededEpochSampler(Indices(n), 2)
    loader = DataLoader(
        sampler.data_source,
        batch_size=4,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    prefetching = iter(loader)
    if not workers:
        first = [next(prefetching) for _ in range(3 if drained else 1)]
    sampler.set_epoch(0)
    assert sampler.state_dict()["position"] == (n if drained else 16 if workers else 4)  # what was handed out
    rest = list(prefetching)
    assert torch.cat(rest if workers else first + rest).tolist() == indices(n, 2, 0)
    assert sampler.epoch == 0
    sampler.set_epoch(1)
    assert torch.cat(list(loader)).tolist() == indices(n, 2, 1)


def test_a_pass_bound_before_set_epoch_ends_without_moving_it():
    for epoch in (0, 3):
        sampler = SeededEpochSampler(20, 2)
        bound = iter(sampler)
        take(bound, 5)
        sampler.set_epoch(epoch)
        assert list(bound) == indices(20, 2, 0)[5:]
        assert sampler.epoch == epoch


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (1.0, TypeError), ("1", TypeError), (None, TypeError)])
def test_set_epoch_refuses_what_is_no_epoch_and_changes_nothing(epoch, error):
    sampler = SeededEpochSampler(20, 2)
    sampler.load_state_dict(sampler.state_dict(position=7))
    with pytest.raises(error, match="epoch"):
        sampler.set_epoch(epoch)
    assert list(sampler) == indices(20, 2, 0)[7:]
    assert list(sampler) == indices(20, 2, 1)  # the sampler still counts


# ---- states ------------------------------------------------------------------------------------------

EMPTY = {"algorithm": "v1", "num_samples": 0, "seed": 0, "epoch": 0, "position": 0}


@pytest.mark.parametrize(
    "sampler",
    [
        SeededEpochSampler(Indices(20), np.int64(5)),
        SeededEpochSampler(np.int64(20), 5, num_samples=np.int32(30)),
        SeededEpochSampler(np.uint8(20), 5, replacement=True),
    ],
    ids=repr,
)
def test_a_state_is_a_fresh_dict_of_plain_ints_and_strs(sampler):
    sampler = copy.deepcopy(sampler)
    iterator = iter(sampler)
    take(iterator, 3)
    keys = {"algorithm", "num_samples", "seed", "epoch", "position"}
    for get in (sampler.state_dict, iterator.state_dict, lambda: sampler.state_dict(position=np.int64(3))):
        state = get()
        assert type(state) is dict
        assert state.keys() - {"data_length"} == keys
        assert ("data_length" in state) == (len(sampler) != 20)
        assert {type(key) for key in state} == {str}
        assert {key: type(value) for key, value in state.items()} == {
            key: str if key == "algorithm" else int for key in state
        }
        wanted = dict(state)
        state["position"] = 17
        state.clear()
        assert get() == wanted  # the receiver may change it
        assert wanted["position"] == 3


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"num_samples": 9}, {"num_samples": 50}])
def test_a_state_goes_through_json_and_torch_save_unchanged(options):
    sampler = SeededEpochSampler(20, -(2**70), **options)
    sampler.set_epoch(2**40)
    take(iter(sampler), 6)
    state = sampler.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for loaded in (json.loads(json.dumps(state)), torch.load(file, weights_only=True)):
        assert loaded == state
        other = SeededEpochSampler(20, -(2**70), **options)
        other.load_state_dict(loaded)
        assert other.state_dict() == state
        fresh = SeededEpochSampler(20, -(2**70), **options)
        fresh.set_epoch(2**40)
        assert list(other) == list(fresh)[6:]


def test_position_is_that_of_the_latest_bound_iterator_of_the_current_epoch():
    sampler = SeededEpochSampler(20, 2)
    sampler.set_epoch(1)
    first, second = iter(sampler), iter(sampler)
    take(first, 5)
    take(second, 3)
    assert sampler.state_dict() == second.state_dict() == sampler.state_dict(position=3)
    take(first, 4)
    assert sampler.state_dict()["position"] == 3
    assert first.state_dict()["position"] == 9
    sampler.set_epoch(2)
    assert sampler.state_dict()["position"] == 0  # none of epoch 2 is bound
    assert second.state_dict()["epoch"] == 1
    sampler.set_epoch(1)
    assert sampler.state_dict()["position"] == 3


def test_position_says_how_many_samples_were_really_trained_on():
    sampler = SeededEpochSampler(20, 2)
    iterator = iter(sampler)
    take(iterator, 12)
    assert sampler.state_dict(position=4) == {**sampler.state_dict(), "position": 4}
    take(iterator, 8)
    assert sampler.epoch == 1  # drained by a loader, whose last batches are still to be trained on
    state = sampler.state_dict(position=16)
    assert (state["epoch"], state["position"]) == (0, 16)
    other = SeededEpochSampler(20, 2)
    other.load_state_dict(state)
    assert list(other) == indices(20, 2, 0)[16:]
    assert list(other) == indices(20, 2, 1)


def test_position_counts_in_the_epoch_that_was_set_or_restored():
    sampler = SeededEpochSampler(20, 2)
    take(iter(sampler), 20)
    sampler.set_epoch(6)
    assert sampler.state_dict(position=4)["epoch"] == 6
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "position": 8})
    assert sampler.state_dict(position=12) == {**sampler.state_dict(), "epoch": 3, "position": 12}
    take(iter(sampler), 12)
    assert sampler.state_dict(position=12) == {**sampler.state_dict(), "epoch": 3, "position": 12}


@pytest.mark.parametrize("position", [-1, 21, 1.0, "3", True])
def test_position_outside_the_pass_is_refused(position):
    with pytest.raises((TypeError, ValueError), match="position"):
        SeededEpochSampler(20).state_dict(position=position)


def test_a_restored_pass_goes_on_exactly_there_once_and_the_next_is_the_next_epoch():
    for position in range(20):
        sampler = SeededEpochSampler(20, 2)
        sampler.load_state_dict({**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": position})
        assert sampler.epoch == 4
        assert sampler.state_dict()["position"] == position
        assert list(sampler) == indices(20, 2, 4)[position:]
        assert list(sampler) == indices(20, 2, 5)
        assert list(sampler) == indices(20, 2, 6)


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    end = {**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 20}
    for caller_counts in (False, True):
        sampler = SeededEpochSampler(20, 2)
        if caller_counts:
            sampler.set_epoch(9)
        sampler.load_state_dict(end)
        assert sampler.epoch == 5
        assert sampler.state_dict() == {**end, "epoch": 5, "position": 0}
        assert list(sampler) == indices(20, 2, 5)
        assert list(sampler) == indices(20, 2, 6)  # a restored pass moves on


def test_a_restored_pass_moves_on_also_where_the_caller_counts():
    for drain in (list, lambda iterator: take(iterator, 13)):
        sampler = SeededEpochSampler(20, 2)
        sampler.set_epoch(8)
        sampler.load_state_dict({**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 7})
        assert drain(iter(sampler)) == indices(20, 2, 4)[7:]
        assert sampler.epoch == 5
        assert [list(sampler) for _ in range(2)] == [indices(20, 2, 5)] * 2  # from here on the caller counts again


def test_a_restored_pass_does_not_move_on_if_set_epoch_came_after():
    for load in ("sampler", "iterator"):
        sampler = SeededEpochSampler(20, 2)
        iterator = iter(sampler)
        (sampler if load == "sampler" else iterator).load_state_dict(
            {**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 7}
        )
        assert next(iterator) == indices(20, 2, 4)[7]
        sampler.set_epoch(4)
        assert list(iterator) == indices(20, 2, 4)[8:]
        assert sampler.epoch == 4


def test_the_iterators_own_state_is_absolute_and_wins_over_the_samplers():
    state = {**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 7}
    sampler = SeededEpochSampler(20, 2)
    sampler.set_epoch(1)
    sampler.load_state_dict({**state, "epoch": 2, "position": 11})
    iterator = iter(sampler)
    iterator.load_state_dict(state)
    assert iterator.state_dict() == sampler.state_dict() == state
    assert list(iterator) == indices(20, 2, 4)[7:]
    assert list(sampler) == indices(20, 2, 5)  # the sampler's own resume is gone


def test_set_epoch_between_an_iterators_restoration_and_its_first_next_keeps_the_place():
    sampler = SeededEpochSampler(20, 2)
    iterator = iter(sampler)
    iterator.load_state_dict({**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 7})
    sampler.set_epoch(4)
    assert list(iterator) == indices(20, 2, 4)[7:]
    assert list(sampler) == indices(20, 2, 4)


def test_an_iterator_at_an_epochs_end_is_finished_and_a_fresh_one_is_the_next_epochs():
    end = {**EMPTY, "num_samples": 20, "seed": 2, "epoch": 4, "position": 20}
    for drained in (False, True):
        sampler = SeededEpochSampler(20, 2)
        sampler.set_epoch(4)
        sampler.load_state_dict(end)
        iterator = iter(sampler)
        iterator.load_state_dict(end)
        assert iterator.state_dict() == end
        if drained:
            assert list(iterator) == []
        assert sampler.epoch == 5
        assert sampler.state_dict() == {**end, "epoch": 5, "position": 0}
        assert list(sampler) == indices(20, 2, 5)


@pytest.mark.parametrize("taken", BORDERS)
def test_an_iterator_that_walks_can_be_put_anywhere(taken):
    sampler = SeededEpochSampler(LONG, 3)
    iterator = iter(sampler)
    take(iterator, taken)
    for epoch, position in ((2, 40_000), (0, 0), (1, LONG - 3), (0, 1_024)):
        iterator.load_state_dict({**EMPTY, "num_samples": LONG, "seed": 3, "epoch": epoch, "position": position})
        assert iterator.state_dict()["position"] == position
        assert take(iterator, 3) == indices(LONG, 3, epoch)[position : position + 3]
    assert list(iterator) == indices(LONG, 3, 0)[1_027:]


def test_an_iterator_that_has_ended_says_that_it_cannot_go_on():
    data = list(range(20))
    sampler = SeededEpochSampler(data, 2)
    state = sampler.state_dict(position=7)
    ended = iter(sampler)
    list(ended)
    with pytest.raises(RuntimeError, match=r"call iter\(\)"):
        ended.load_state_dict(state)
    sampler.load_state_dict(state)
    refused = iter(sampler)
    data.append(20)
    with pytest.raises(ValueError, match="num_samples=20"):
        next(refused)
    with pytest.raises(RuntimeError, match=r"call iter\(\)"):
        refused.load_state_dict(sampler.state_dict())
    data.pop()
    assert list(sampler) == indices(20, 2, 0)[7:]  # the pending resume is still there


def test_loading_disturbs_no_bound_iterator_and_none_of_them_moves_what_was_loaded():
    sampler = SeededEpochSampler(20, 2)
    bound = iter(sampler)
    take(bound, 5)
    state = sampler.state_dict(position=7)
    for load in (sampler.load_state_dict, iter(sampler).load_state_dict, sampler.load_state_dict):
        load(state)
        assert sampler.state_dict() == state
        assert bound.state_dict()["position"] == 5
    assert list(bound) == indices(20, 2, 0)[5:]
    assert sampler.state_dict() == state
    assert list(sampler) == indices(20, 2, 0)[7:]
    assert sampler.epoch == 1


def test_the_seed_of_the_state_wins_with_a_warning():
    for load in ("sampler", "iterator"):
        sampler = SeededEpochSampler(20, 2)
        iterator = iter(sampler)
        target = sampler if load == "sampler" else iterator
        with pytest.warns(UserWarning, match="seed=5 replaces this sampler's seed=2") as caught:
            target.load_state_dict({**EMPTY, "num_samples": 20, "seed": 5, "position": 7})
        assert [warning.filename for warning in caught] == [__file__]
        assert sampler.seed == 5
        assert repr(sampler) == "SeededEpochSampler(20, seed=5)"
        assert list(iterator) == indices(20, 5, 0)[7:]
        assert list(sampler) == indices(20, 5, 1)
        sampler.set_epoch(0)
        assert list(sampler) == indices(20, 5, 0)
        sampler.load_state_dict(sampler.state_dict())  # the same seed: no warning


def test_where_the_seed_warning_is_an_error_nothing_is_changed():
    sampler = SeededEpochSampler(20, 2)
    with pytest.raises(UserWarning, match="seed"):
        sampler.load_state_dict({**EMPTY, "num_samples": 20, "seed": 5, "position": 7})
    assert sampler.state_dict() == {**EMPTY, "num_samples": 20, "seed": 2}


GOOD = {"algorithm": "v1", "num_samples": 20, "seed": 2, "epoch": 4, "position": 7}
GOOD_LONG = {**GOOD, "num_samples": 30, "data_length": 20}
WRONG_TYPES = ["7", 7.0, None, True, math.nan, [7], {}, 7 + 0j, b"7", np.array([7, 7]), np.float64(7)]


def malformed() -> list[Any]:
    cases: list[Any] = []

    def add(name: str, key: str, state: Any, num_samples: int | None = None) -> None:
        cases.append(pytest.param(state, key, num_samples, id=name))

    for key in GOOD:
        add(f"without {key}", key, {k: v for k, v in GOOD.items() if k != key})
        for value in WRONG_TYPES:
            add(f"{key}={value!r}", key, {**GOOD, key: value})
    for value in WRONG_TYPES:
        add(f"data_length={value!r}", "data_length", {**GOOD_LONG, "data_length": value}, 30)
        add(f"stride={value!r}", "stride", {**GOOD, "stride": value})
    for key in ("num_samples", "epoch", "position"):
        add(f"{key}=-1", key, {**GOOD, key: -1})
        add(f"{key}=-2**70", key, {**GOOD, key: -(2**70)})
    for key in ("num_samples", "position"):
        for value in (21, 2**31, 2**63, 2**64, 10**30):
            add(f"{key}={value}", key, {**GOOD, key: value})
    add("num_samples=19", "num_samples", {**GOOD, "num_samples": 19})
    add("num_samples=0", "num_samples", {**GOOD, "num_samples": 0, "position": 0})
    add("stride=0", "stride", {**GOOD, "stride": 0})
    add("data_length=21", "data_length", {**GOOD_LONG, "data_length": 21}, 30)
    add("data_length=-1", "data_length", {**GOOD_LONG, "data_length": -1}, 30)
    add("data_length=2**63", "data_length", {**GOOD_LONG, "data_length": 2**63}, 30)
    add("without data_length", "num_samples", {**GOOD, "num_samples": 30}, 30)
    add("num_samples=31 of 30", "num_samples", {**GOOD_LONG, "num_samples": 31}, 30)
    add("num_samples=30 of 20", "num_samples", GOOD_LONG)
    add("extra key", "generator", {**GOOD, "generator": 1})
    add("extra key that is no str", "None", {**GOOD, None: 1})
    for algorithm in ("v2", "V1", "", "v1-replacement", "sequential", "v1\n"):
        add(f"algorithm={algorithm!r}", "algorithm", {**GOOD, "algorithm": algorithm})
    add("of torchdata's RandomSampler", "algorithm", {"yielded": 3, "generator": torch.zeros(3)})
    for other in (None, [], "v1", 7, [("algorithm", "v1")], list(GOOD)):
        add(f"no dict: {other!r}", "state", other)
    return cases


@pytest.mark.parametrize("load", ["sampler", "iterator"])
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(("state", "key", "num_samples"), malformed())
def test_a_malformed_state_is_refused_by_name_and_nothing_is_changed(load, pending, state, key, num_samples):
    sampler = SeededEpochSampler(20, 2, num_samples=num_samples)
    whole = list(SeededEpochSampler(20, 2, num_samples=num_samples))
    walking, unbound = iter(sampler), iter(sampler)
    take(walking, 3)
    if pending:
        sampler.load_state_dict(sampler.state_dict(position=5))
    before = (sampler.state_dict(), walking.state_dict(), unbound.state_dict(), sampler.seed, sampler.epoch)
    targets = [sampler] if load == "sampler" else [walking, unbound]
    for target in targets:
        with pytest.raises(ValueError, match=key):
            target.load_state_dict(state)
    assert before == (sampler.state_dict(), walking.state_dict(), unbound.state_dict(), sampler.seed, sampler.epoch)
    assert list(walking) == whole[3:]
    assert sampler.epoch == (0 if pending else 1)
    if pending:
        assert list(unbound) == whole[5:]
    assert list(sampler) != whole
    assert sampler.epoch == 2


def test_what_is_wrong_with_a_state_is_said_with_both_values_and_the_way_out():
    sampler = SeededEpochSampler(list(range(1_200)), 2)
    state = {**GOOD, "num_samples": 1_000}
    with pytest.raises(ValueError, match=r"num_samples=1000, but this dataset has 1200.*Call set_epoch\(5\)"):
        sampler.load_state_dict(state)
    with pytest.raises(ValueError, match=r"state\['position'\] must be in 0\.\.1200, got 1201.*Load an earlier one"):
        sampler.load_state_dict({**GOOD, "num_samples": 1_200, "position": 1_201})
    with pytest.raises(ValueError, match=r"state\['algorithm'\] is 'v9', but this sampler's is 'v1'.*[Uu]pdate"):
        sampler.load_state_dict({**GOOD, "algorithm": "v9"})
    with pytest.raises(ValueError, match=r"missing \['epoch'\], unknown \['epochs'\]"):
        sampler.load_state_dict({key + "s" * (key == "epoch"): value for key, value in GOOD.items()})


def test_the_way_out_after_the_dataset_grew_is_the_next_epoch_on_the_new_one():
    data = list(range(1_000))
    sampler = SeededEpochSampler(data, 2)
    take(iter(sampler), 300)
    state = sampler.state_dict()
    data += range(1_000, 1_200)
    with pytest.raises(ValueError, match=r"num_samples=1000, but this dataset has 1200") as error:
        sampler.load_state_dict(state)
    assert "set_epoch(1)" in str(error.value)
    sampler.set_epoch(1)
    assert list(sampler) == indices(1_200, 2, 1)


@pytest.mark.parametrize("num_samples", [10, 20, 30])
def test_with_a_fixed_num_samples_a_grown_dataset_is_noticed_too(num_samples):
    data = list(range(20))
    sampler = SeededEpochSampler(data, 2, num_samples=num_samples)
    take(iter(sampler), 3)
    state = sampler.state_dict()
    data.append(20)
    assert len(sampler) == num_samples
    with pytest.raises(ValueError, match="but this dataset has 21"):
        sampler.load_state_dict(state)


def test_a_dataset_that_grew_between_loading_and_the_pass_is_refused_and_the_resume_stays():
    data = list(range(20))
    sampler = SeededEpochSampler(data, 2)
    sampler.load_state_dict(sampler.state_dict(position=7))
    data.append(20)
    with pytest.raises(ValueError, match="num_samples=20, but this dataset has 21"):
        next(iter(sampler))
    data.pop()
    assert list(sampler) == indices(20, 2, 0)[7:]


def test_a_checkpoint_file_cut_short_never_loads_half():
    text = json.dumps(GOOD)
    file = io.BytesIO()
    torch.save(GOOD, file)
    for cut in range(len(text)):
        with pytest.raises(ValueError, match=r".*"):  # a JSONDecodeError is one
            SeededEpochSampler(20, 2).load_state_dict(json.loads(text[:cut]))
    sampler = SeededEpochSampler(20, 2)
    before = sampler.state_dict()
    for cut in range(0, len(file.getvalue()), 50):
        with pytest.raises(Exception, match=r".*"):  # torch's own: EOFError, RuntimeError, ...
            sampler.load_state_dict(torch.load(io.BytesIO(file.getvalue()[:cut]), weights_only=True))
    items = list(GOOD.items())
    for cut in range(len(items)):
        with pytest.raises(ValueError, match="missing"):
            sampler.load_state_dict(dict(items[:cut]))
    assert sampler.state_dict() == before


# ---- replacement and num_samples ---------------------------------------------------------------------


def test_a_shorter_pass_is_the_head_of_each_epochs_order():
    sampler = SeededEpochSampler(20, 2, num_samples=8)
    assert len(sampler) == 8
    assert [list(sampler) for _ in range(3)] == [indices(20, 2, epoch)[:8] for epoch in range(3)]


def test_a_pass_as_long_as_the_dataset_is_the_default():
    fixed, default = SeededEpochSampler(20, 2, num_samples=20), SeededEpochSampler(20, 2)
    for _ in range(2):
        assert list(fixed) == list(default)
        assert fixed.state_dict() == default.state_dict()


def test_a_longer_pass_is_one_permutation_after_another_each_of_its_own():
    sampler = SeededEpochSampler(20, 2, num_samples=50)
    for epoch in range(2):
        walked = list(sampler)
        assert walked == list(EpochRepeats(20, 50, seed=2, epoch=epoch)[:])
        assert walked[:20] == indices(20, 2, epoch)
        assert sorted(walked[20:40]) == list(range(20))
        assert len(set(walked[40:])) == 10
        assert walked[:20] != walked[20:40]


@pytest.mark.parametrize("num_samples", [None, 7, 20, 50])
def test_draws_with_replacement_are_of_the_epoch_and_repeat_some(num_samples):
    sampler = SeededEpochSampler(20, 2, replacement=True, num_samples=num_samples)
    passes = [list(sampler) for _ in range(3)]
    for epoch, walked in enumerate(passes):
        assert walked == list(EpochDraws(20, num_samples or 20, seed=2, epoch=epoch)[:])
        assert {type(index) for index in walked} == {int}
        assert set(walked) <= set(range(20))
    assert len({tuple(walked) for walked in passes}) == 3
    assert any(len(set(walked)) < len(walked) for walked in passes)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("num_samples", [None, 7, 20, 50])
def test_each_kind_of_pass_resumes_at_each_position(replacement, num_samples):
    def new() -> SeededEpochSampler:
        return SeededEpochSampler(20, 2, replacement=replacement, num_samples=num_samples)

    whole = new()
    epochs = [list(whole) for _ in range(3)]
    length = num_samples or 20
    walked = new()
    list(walked)
    iterator = iter(walked)
    for position in range(length):
        state = walked.state_dict()
        assert (state["epoch"], state["position"]) == (1, position)
        by_sampler, by_iterator = new(), new()
        by_sampler.load_state_dict(state)
        assert [list(by_sampler), list(by_sampler)] == [epochs[1][position:], epochs[2]]
        restored = iter(by_iterator)
        restored.load_state_dict(iterator.state_dict())
        assert [list(restored), list(by_iterator)] == [epochs[1][position:], epochs[2]]
        next(iterator)


def test_a_state_of_another_kind_of_pass_is_refused():
    kinds = [
        SeededEpochSampler(20, replacement=replacement, num_samples=num_samples)
        for replacement in (False, True)
        for num_samples in (None, 7, 50)
    ]
    for source, target in itertools.permutations(kinds, 2):
        with pytest.raises(ValueError, match=r"algorithm|num_samples|data_length"):
            target.load_state_dict(source.state_dict())


# ---- positions, size, speed --------------------------------------------------------------------------


def test_the_position_is_exact_at_every_border_of_the_pieces():
    sampler = SeededEpochSampler(LONG, 3)
    iterator, order, taken = iter(sampler), indices(LONG, 3), 0
    for position in BORDERS[:-1]:
        assert take(iterator, position - taken) == order[taken:position]
        taken = position
        state = sampler.state_dict()
        assert (state["epoch"], state["position"]) == (0, position)
        assert iterator.state_dict() == state
        other = SeededEpochSampler(LONG, 3)
        other.load_state_dict(state)
        resumed = iter(other)
        assert take(resumed, 3) == order[position : position + 3]
        assert resumed.state_dict()["position"] == min(position + 3, LONG)
        assert take(resumed, 40_000) == order[position + 3 : position + 40_003]
        assert resumed.state_dict()["position"] == min(position + 40_003, LONG)


def test_the_position_is_exact_after_each_single_index():
    for n in (1, 2, 3, 1_023, 1_024, 1_025, 9_217):
        sampler = SeededEpochSampler(n, 3)
        for position, _ in enumerate(iterator := iter(sampler), 1):
            assert iterator.state_dict()["position"] == position
            assert sampler.state_dict()["position"] == position % n


@pytest.mark.parametrize("n", [10**9, 10**12, 2**63 - 1])
def test_the_first_index_of_a_huge_epoch_comes_at_once(n):
    def first(position: int) -> float:
        sampler = SeededEpochSampler(n, 3)
        started = time.thread_time()  # not the wall's: other processes may want the core
        sampler.load_state_dict({**EMPTY, "num_samples": n, "seed": 3, "position": position})
        index = next(iter(sampler))
        seconds = time.thread_time() - started
        assert index == EpochOrder(n, seed=3)[position]
        return seconds

    first(0)
    assert statistics.median(first(position) for position in [0, n // 2, n - 1] * 7) < 1e-3


def test_walking_500_000_of_10_to_the_12_takes_no_memory():
    run = fresh_process(
        """
        import resource, tracemalloc
        from rankless_sampler.samplers import SeededEpochSampler

        def walk():
            iterator = iter(SeededEpochSampler(10**12, 1))
            for _ in zip(iterator, range(500_000)):
                pass
            return iterator.state_dict()["position"]

        next(iter(SeededEpochSampler(10**12, 1)))  # imports and the scratch of numpy are not the walk's
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert walk() in (500_000, 500_001)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        tracemalloc.start()
        walk()
        print(grown * 1024, tracemalloc.get_traced_memory()[1])
        """
    )
    assert run.returncode == 0, run.stderr
    resident, traced = map(int, run.stdout.split())
    if sys.platform == "darwin":
        resident //= 1024  # there ru_maxrss counts bytes
    assert resident < 8 * 2**20
    assert traced < 8 * 2**20


# ---- copies, processes, threads, ends ----------------------------------------------------------------


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_a_copys_next_pass_is_that_of_the_original_and_they_part_there(clone):
    sampler = SeededEpochSampler(Indices(20), 2)
    assert list(clone(sampler)) == indices(20, 2, 0)
    list(sampler)
    walking = iter(sampler)
    take(walking, 5)
    copied = clone(sampler)  # in the middle of a pass: a copy has no iterators
    assert copied.state_dict() == {**sampler.state_dict(), "position": 0}
    assert list(copied) == indices(20, 2, 1)
    assert (sampler.epoch, copied.epoch) == (1, 2)
    assert list(walking) == indices(20, 2, 1)[5:]
    assert (sampler.epoch, copied.epoch) == (2, 2)
    sampler.load_state_dict(sampler.state_dict(position=8))
    copied = clone(sampler)  # with a resume pending
    assert list(copied) == indices(20, 2, 1)[8:]
    assert list(copied) == indices(20, 2, 2)
    sampler.set_epoch(4)
    copied = clone(sampler)  # where the caller counts
    assert [list(copied) for _ in range(2)] == [indices(20, 2, 4)] * 2


def test_an_iterator_is_not_copied_by_accident():
    iterator = iter(SeededEpochSampler(20))
    take(iterator, 3)
    for clone in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            clone(iterator)


def test_sampler_dataset_and_iterators_go_when_they_are_dropped_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        data = Indices(20)
        sampler = SeededEpochSampler(data, 2)
        walking, unbound, restored = iter(sampler), iter(sampler), iter(sampler)
        take(walking, 3)
        restored.load_state_dict(walking.state_dict())
        references = [weakref.ref(thing) for thing in (data, sampler)]
        del data, sampler
        assert all(reference() is not None for reference in references)  # iterators keep what they need
        assert list(walking) == indices(20, 2, 0)[3:]
        del walking, unbound, restored
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


class Shuffled(Dataset[list[int]]):
    """Item i is, computed in the worker, what the sampler's pass from its place on is there."""

    def __init__(self, sampler: SeededEpochSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        return list(copy.copy(self.sampler))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_both_kinds_see_the_same_order(context):
    sampler = SeededEpochSampler(5_000, 2)
    sampler.load_state_dict(sampler.state_dict(position=4_000))
    loader = DataLoader(Shuffled(sampler), batch_size=None, num_workers=2, multiprocessing_context=context)
    assert list(loader) == [indices(5_000, 2, 0)[4_000:]] * 4
    loader = DataLoader(
        Indices(22), batch_size=4, sampler=SeededEpochSampler(22, 2), num_workers=2, multiprocessing_context=context
    )
    assert torch.cat(list(loader)).tolist() == indices(22, 2, 0)


def _rest(iterator: Any, connection: Any) -> None:
    connection.send(list(iterator))


def test_a_forked_child_goes_on_with_an_iterator_and_leaves_the_parents_alone():
    sampler = SeededEpochSampler(40_000, 2)
    iterator = iter(sampler)
    take(iterator, 10_000)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_rest, args=(iterator, sender))
    child.start()
    assert receiver.recv() == indices(40_000, 2, 0)[10_000:]
    child.join()
    assert child.exitcode == 0
    assert sampler.state_dict()["position"] == 10_000
    assert list(iterator) == indices(40_000, 2, 0)[10_000:]


def test_the_interpreter_ends_in_silence_with_iterators_alive():
    run = fresh_process(
        """
        import itertools
        from torch.utils.data import DataLoader
        from rankless_sampler.samplers import SeededEpochSampler

        sampler = SeededEpochSampler(100_000, 1)
        unbound, walking, restored = iter(sampler), iter(sampler), iter(sampler)
        list(itertools.islice(walking, 50_000))
        restored.load_state_dict(walking.state_dict())
        class Ring: pass
        ring = Ring()
        ring.itself, ring.iterator = ring, iter(SeededEpochSampler(100_000))
        next(ring.iterator)
        loader = DataLoader(range(100), batch_size=4, sampler=SeededEpochSampler(100), num_workers=1)
        batches = iter(loader)
        next(batches)
        print("ready")
        """
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "ready\n", "")


def test_threads_walk_their_iterators_undisturbed():
    shared = SeededEpochSampler(50_000, 9)
    shared.set_epoch(3)
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def walk(number: int) -> None:
        try:
            own = SeededEpochSampler(50_000, number)
            barrier.wait(60)
            for epoch in range(3):
                pairs = list(zip(own, shared, strict=True))
                assert [pair[0] for pair in pairs] == indices(50_000, number, epoch)
                assert [pair[1] for pair in pairs] == indices(50_000, 9, 3)
            assert own.epoch == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=walk, args=(number,)) for number in range(8)]
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_interval)
    assert failures == []
    assert shared.epoch == 3


def test_a_state_taken_by_a_signal_handler_at_any_line_is_exact():
    sampler = SeededEpochSampler(LONG, 9)
    iterator = iter(sampler)
    code = type(sampler)._bind.__code__.co_filename
    taken = 0
    seen: list[tuple[int, int]] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:  # runs where a handler could
        if frame.f_code.co_filename != code:
            return None
        seen.append((iterator.state_dict()["position"], taken))
        return trace

    sys.settrace(trace)
    try:
        for taken, _ in enumerate(iterator, 1):  # noqa: B007
            pass
    finally:
        sys.settrace(None)
    assert len(seen) > 50
    assert all(position == taken for position, taken in seen)


def test_the_receiver_may_change_a_batch_and_nothing_else_changes():
    sampler = SeededEpochSampler(22, 2)
    batches = iter(BatchSampler(sampler, 4, drop_last=False))
    seen = []
    for batch in batches:
        seen += batch
        batch += [99, 99]  # as accelerate does
        batch[0] = -1
    assert seen == indices(22, 2, 0)
    assert list(sampler) == indices(22, 2, 1)
