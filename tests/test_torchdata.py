"""torchdata's StatefulDataLoader over the rank views, and `sampler_state`, by which workers and ranks may change."""

from __future__ import annotations

import copy
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from rankless_sampler import EpochOrder, SeededDistributedSampler, SeededEpochSampler, ShardedBatchSampler
from rankless_sampler.torchdata import sampler_state

N, SEED, BATCH_SIZE = 29, 7, 4  # of 2 ranks: 3 full steps and a tail of 5; of 3: 2 and 5
EPOCH = 2
KINDS = ("batches", "lists", "distributed")
Batches = list[list[int]]


def build(
    kind: str,
    world_size: int = 1,
    rank: int = 0,
    *,
    workers: int = 0,
    every: int = 1,
    drop_last: bool = False,
    batch_size: int = BATCH_SIZE,
    even_batches: bool = True,
) -> tuple[Any, StatefulDataLoader]:
    """What has the sampler's state, and a loader over it."""
    data: Any = range(N)
    options: dict[str, Any] = {"num_workers": workers, "snapshot_every_n_steps": every}
    ranks = {"num_replicas": world_size, "rank": rank}
    if kind == "distributed":
        sampler: Any = SeededDistributedSampler(data, seed=SEED, drop_last=drop_last, **ranks)
        return sampler, StatefulDataLoader(data, batch_size, sampler=sampler, drop_last=drop_last, **options)
    if kind == "single":
        sampler = SeededEpochSampler(data, SEED)
        return sampler, StatefulDataLoader(data, batch_size, sampler=sampler, drop_last=drop_last, **options)
    sampler = ShardedBatchSampler(
        SeededEpochSampler(data, SEED), batch_size, drop_last=drop_last, even_batches=even_batches, **ranks
    )
    if kind == "lists":  # the dataset gets whole lists, as Hugging Face datasets take them
        return sampler, StatefulDataLoader(Lists(), batch_size=None, sampler=sampler, **options)
    return sampler, StatefulDataLoader(data, batch_sampler=sampler, **options)


class Lists(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices)


def walk(loader: StatefulDataLoader) -> Batches:
    return [batch.tolist() for batch in loader]


def due(
    kind: str,
    epoch: int,
    start: int,
    world_size: int,
    rank: int,
    *,
    drop_last: bool = False,
    batch_size: int = BATCH_SIZE,
    even_batches: bool = True,
) -> Batches:
    """What the order alone says that this rank gets of `epoch` from position `start` on."""
    order = EpochOrder(N, seed=SEED, epoch=epoch)[:].tolist()
    rest = order[start:]
    unit = world_size * (1 if kind in ("distributed", "single") else batch_size)
    missing = -len(rest) % unit
    if drop_last and missing:
        rest = rest[: len(rest) - (unit - missing)]
    elif even_batches:
        rest += (order * unit)[:missing]
    if kind in ("distributed", "single"):
        own = rest[rank::world_size]
        batches = [own[i : i + batch_size] for i in range(0, len(own), batch_size)]
        return [batch for batch in batches if len(batch) == batch_size or not drop_last]
    batches = [rest[i : i + batch_size] for i in range(0, len(rest), batch_size)]
    return batches[rank::world_size]


def positions(steps: int, world_size: int, batch_size: int = BATCH_SIZE) -> int:
    return min(N, steps * world_size * batch_size)


def states_of_a_pass(sampler: Any, loader: StatefulDataLoader) -> list[dict[str, Any]]:
    """The loader's state before the first batch of EPOCH, after each, and after the end."""
    sampler.set_epoch(EPOCH)
    states = [copy.deepcopy(loader.state_dict())]
    for _ in loader:
        states.append(copy.deepcopy(loader.state_dict()))
    states.append(copy.deepcopy(loader.state_dict()))
    return states


# ---- loader.load_state_dict --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "every", "drop_last"), [(0, 1, False), (0, 1, True), (2, 1, True), (2, 1, False), (2, 3, False)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_resumes_after_any_batch_and_at_the_end_and_goes_on_with_the_next_epoch(
    kind, workers, every, drop_last
):
    options: dict[str, Any] = {"workers": workers, "every": every, "drop_last": drop_last}
    whole = due(kind, EPOCH, 0, 2, 1, drop_last=drop_last)
    following = due(kind, EPOCH + 1, 0, 2, 1, drop_last=drop_last)
    states = states_of_a_pass(*build(kind, 2, 1, **options))
    assert len(states) == len(whole) + 2
    for step, state in enumerate(states):
        sampler, loader = build(kind, 2, 1, **options)
        loader.load_state_dict(state)
        if step <= len(whole):
            assert walk(loader) == whole[step:], step
            assert sampler.epoch == EPOCH + 1
        assert walk(loader) == following, step
        if kind == "distributed":  # a restored pass moves on by itself; from then on the caller counts
            sampler.set_epoch(EPOCH + 2)
        assert walk(loader) == due(kind, EPOCH + 2, 0, 2, 1, drop_last=drop_last)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_resume_in_the_same_epoch_is_exact_too(kind):
    _, loader = build(kind, 2, 0)
    loader_state: dict[str, Any] = {}
    for step, _ in enumerate(loader, start=1):
        loader_state = copy.deepcopy(loader.state_dict())
        if step == 2:
            break
    for _ in range(2):
        _, loader = build(kind, 2, 0)
        loader.load_state_dict(loader_state)
        next(iter(loader))
        loader_state = copy.deepcopy(loader.state_dict())
    _, loader = build(kind, 2, 0)
    loader.load_state_dict(loader_state)
    assert walk(loader) == due(kind, 0, 0, 2, 0)[4:]


def test_set_epoch_between_load_and_the_first_batch_does_not_disturb_the_restored_iterator():
    sampler, loader = build("batches", 2, 1, workers=2)
    state = states_of_a_pass(sampler, loader)[3]
    sampler, loader = build("batches", 2, 1, workers=2)
    loader.load_state_dict(state)
    iterator = iter(loader)
    sampler.set_epoch(EPOCH)  # as Lightning does, there
    assert [batch.tolist() for batch in iterator] == due("batches", EPOCH, 0, 2, 1)[3:]


# ---- sampler_state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("kind", [*KINDS, "single"])
def test_sampler_state_is_the_place_of_the_last_batch_given_out(kind, workers, every, drop_last):
    world_size = 1 if kind == "single" else 2
    options: dict[str, Any] = {"workers": workers, "every": every, "drop_last": drop_last}
    by_rank = [states_of_a_pass(*build(kind, world_size, rank, **options)) for rank in range(world_size)]
    last = len(by_rank[0]) - 2
    needs_help = kind in ("single", "distributed") and workers
    for step, states in enumerate(zip(*by_rank, strict=True)):
        given = {"samples_per_step": world_size * BATCH_SIZE} if needs_help and 0 < step < every else {}
        found = [sampler_state(state, **given) for state in states]
        assert found == [found[0]] * world_size  # the same on every rank
        finished = step > last
        place = {"algorithm": "v1", "num_samples": N, "seed": SEED, "epoch": EPOCH}
        assert found[0] == {**place, "position": N if finished else positions(step, world_size)}, step


@pytest.mark.parametrize(("kind", "workers"), list(itertools.product([*KINDS, "single"], (0, 2))))
def test_with_sampler_state_workers_and_batch_size_may_change(kind, workers):
    world_size = 1 if kind == "single" else 2
    states = states_of_a_pass(*build(kind, world_size, workers=workers))
    for step in (0, 1, 3, len(states) - 2, len(states) - 1):
        start = positions(step, world_size)
        for others, batch_size in ((0, BATCH_SIZE), (3 - workers, 3)):
            sampler, loader = build(kind, world_size, workers=others, batch_size=batch_size)
            sampler.load_state_dict(sampler_state(states[step]))
            if start < N:
                assert walk(loader) == due(kind, EPOCH, start, world_size, 0, batch_size=batch_size), step
            assert walk(loader) == due(kind, EPOCH + 1, 0, world_size, 0, batch_size=batch_size), step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_2_ranks_goes_on_with_3(kind, workers):
    step = 3
    states = [states_of_a_pass(*build(kind, 2, rank, workers=workers, even_batches=False))[step] for rank in range(2)]
    start = positions(step, 2)
    for place in (states[0], states[1]):
        arrived: list[int] = []
        for rank in range(3):
            sampler, loader = build(kind, 3, rank, workers=workers, even_batches=False)
            loader.load_state_dict(place)  # the same number of workers: torchdata's own way
            own = walk(loader)
            assert own == due(kind, EPOCH, start, 3, rank, even_batches=False or kind == "distributed")
            sampler.load_state_dict(sampler_state(place))
            assert walk(build_again(kind, sampler, rank, workers=1 - workers // 2)) == own
            arrived += itertools.chain.from_iterable(own)
        rest = EpochOrder(N, seed=SEED, epoch=EPOCH)[start:].tolist()
        padding = -len(rest) % 3 if kind == "distributed" else 0
        assert len(arrived) == len(rest) + padding
        assert set(arrived) >= set(rest)


def build_again(kind: str, sampler: Any, rank: int, workers: int) -> StatefulDataLoader:
    """A loader with another number of workers over the same sampler."""
    if kind == "distributed":
        return StatefulDataLoader(range(N), BATCH_SIZE, sampler=sampler, num_workers=workers)
    if kind == "lists":
        return StatefulDataLoader(Lists(), batch_size=None, sampler=sampler, num_workers=workers)
    return StatefulDataLoader(range(N), batch_sampler=sampler, num_workers=workers)


def test_sampler_state_keeps_the_dataset_length_of_a_shorter_pass():
    sampler = SeededEpochSampler(N, SEED, num_samples=20)
    loader = StatefulDataLoader(range(N), batch_sampler=ShardedBatchSampler(sampler, 4, num_replicas=1, rank=0))
    next(iter(loader))
    place = sampler_state(loader.state_dict())
    assert place == {**sampler.state_dict(), "position": 4}
    assert place["data_length"] == N


@pytest.mark.parametrize("kind", ["batches", "lists", "alone"])
def test_a_step_of_one_sample_needs_no_help_between_snapshots(kind):
    if kind == "alone":
        loader = StatefulDataLoader(
            range(N), batch_size=None, sampler=SeededEpochSampler(N, SEED), num_workers=1, snapshot_every_n_steps=4
        )
    else:
        _, loader = build(kind, batch_size=1, workers=1, every=4)
    for step, _ in enumerate(loader, start=1):
        assert sampler_state(loader.state_dict())["position"] == step


def test_between_snapshots_a_state_that_does_not_tell_the_step_asks_for_it():
    _, loader = build("single", workers=2, every=5)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=r"samples_per_step=batch_size \* num_replicas"):
        sampler_state(state)
    assert sampler_state(state, samples_per_step=BATCH_SIZE)["position"] == BATCH_SIZE
    for damaged in ("x", -1, 1.5, None):
        with pytest.raises(ValueError, match="_iterator_finished is"):
            sampler_state({**state, "_iterator_finished": damaged}, samples_per_step=BATCH_SIZE)
    for bad, kind in ((0, ValueError), (-1, ValueError), (1.5, TypeError), ("4", TypeError), (True, TypeError)):
        with pytest.raises(kind, match="samples_per_step must be"):
            sampler_state(state, samples_per_step=bad)


def test_a_state_of_something_else_is_refused_and_named():
    torchs = BatchSampler(SeededEpochSampler(N), 4, False)  # its iterator has no state
    states: list[Any] = [
        {},
        None,
        [1],
        SeededEpochSampler(N).state_dict(),
        StatefulDataLoader(range(N), 4, shuffle=True).state_dict(),
        StatefulDataLoader(range(N), 4).state_dict(),
        StatefulDataLoader(range(N), batch_sampler=torchs).state_dict(),
        StatefulDataLoader(range(N), 4, shuffle=True, num_workers=1).state_dict(),
    ]
    for state in states:
        with pytest.raises(
            ValueError, match=r"loader_state must be the state_dict\(\) of a torchdata StatefulDataLoader"
        ):
            sampler_state(state)


def test_sampler_state_changes_nothing_in_the_loaders_state():
    _, loader = build("single", workers=2)
    next(iter(loader))
    state = loader.state_dict()
    before = copy.deepcopy(state)
    place = sampler_state(state)
    place["position"] = 0
    assert state == before


# ---- real ranks --------------------------------------------------------------------------------------

SAVED_STEPS = (1, 3)
COMBINATIONS = list(itertools.product(KINDS, (0, 2)))


def on_a_rank(kind: str, workers: int) -> tuple[Any, StatefulDataLoader]:
    """The views take rank and number of ranks from torch.distributed."""
    return build(kind, None, None, workers=workers, even_batches=False)  # type: ignore[arg-type]


def save_on_ranks(folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    for kind, workers in COMBINATIONS:
        states = states_of_a_pass(*on_a_rank(kind, workers))
        if torch.distributed.get_rank() == 0:
            for step in SAVED_STEPS:
                torch.save(states[step], Path(folder, f"{kind}-{workers}-{step}"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def resume_on_ranks(folder: str) -> list[Batches]:
    torch.distributed.init_process_group("gloo")
    walks = []
    for kind, workers in COMBINATIONS:
        for step in SAVED_STEPS:
            state = torch.load(Path(folder, f"{kind}-{workers}-{step}"), weights_only=True)
            sampler, loader = on_a_rank(kind, workers)
            loader.load_state_dict(state)
            walks += [walk(loader), walk(loader)]
            sampler, loader = on_a_rank(kind, 2 - workers)
            sampler.load_state_dict(sampler_state(state))
            walks += [walk(loader), walk(loader)]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    assert int(os.environ["WORLD_SIZE"]) == 3
    return walks


def test_real_ranks_resume_a_stateful_loader_with_2_as_3(run_ranks, tmp_path):
    run_ranks(2, "test_torchdata:save_on_ranks", folder=str(tmp_path))
    results = run_ranks(3, "test_torchdata:resume_on_ranks", folder=str(tmp_path))
    for rank, walks in enumerate(results):
        given = iter(walks)
        for (kind, workers), step in itertools.product(COMBINATIONS, SAVED_STEPS):
            padded = kind == "distributed"
            rest = due(kind, EPOCH, positions(step, 2), 3, rank, even_batches=padded)
            following = due(kind, EPOCH + 1, 0, 3, rank, even_batches=padded)
            for way in ("loader", "sampler"):
                assert [next(given), next(given)] == [rest, following], (kind, workers, step, rank, way)
