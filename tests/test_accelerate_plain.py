"""SeededEpochSampler under plain `accelerator.prepare`: real torchrun processes, whose global RNGs stand elsewhere."""

from __future__ import annotations

import itertools
import random
from typing import Any

import accelerate
import numpy as np
import pytest
import torch

from rankless_sampler import EpochOrder, SeededEpochSampler

SEED = 7
EPOCHS = 3
BATCH_SIZE = 4  # on one rank
SAMPLES = 101  # leaves a tail of 5, a full batch and one of 1, for 2 and for 3 ranks

Settings = dict[str, Any]


def settings(
    *,
    order: str = "seeded",
    rng: str = "seeded",
    samples: int = SAMPLES,
    workers: int = 6,
    persistent: bool = False,
    drop_last: bool = False,
    batch_size: int = BATCH_SIZE,
    **config: bool,
) -> Settings:
    loader = {
        "batch_size": batch_size,
        "num_workers": workers,
        "persistent_workers": persistent,
        "drop_last": drop_last,
    }
    config = {"use_stateful_dataloader": True, **config}
    return {"order": order, "rng": rng, "samples": samples, "seed": SEED, "config": config, "loader": loader}


def every_combination(world_size: int) -> list[Settings]:
    """All of them but persistent workers where there are no workers, which torch refuses."""
    flags = [False, True]
    return [
        settings(
            use_stateful_dataloader=stateful,
            workers=workers,
            split_batches=split,
            batch_size=BATCH_SIZE * (world_size if split else 1),  # so that the ranks' batches are the same
            even_batches=even,
            drop_last=drop_last,
            persistent=persistent,
        )
        for stateful, workers, split, even, drop_last, persistent in itertools.product(
            flags, [0, 2, 6], flags, flags, flags, flags
        )
        if workers or not persistent
    ]


def laid_out(
    epoch: int, world_size: int, *, even_batches: bool = True, drop_last: bool = False
) -> list[list[list[int]]]:
    """The batches of each rank, as the order alone says: rank r's batch of step t is number t * world_size + r."""
    order = EpochOrder(SAMPLES, seed=SEED, epoch=epoch)[:].tolist()
    step = world_size * BATCH_SIZE
    tail = len(order) % step
    if drop_last:
        order = order[: len(order) - tail]
    elif even_batches and tail:
        order += order[: step - tail]
    batches = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
    return [batches[rank::world_size] for rank in range(world_size)]


def arrived(walks: list[list[list[list[list[int]]]]], loader: int, epoch: int) -> list[int]:
    """Every index that came, over all ranks."""
    return [index for walk in walks for batch in walk[loader][epoch] for index in batch]


def lost(indices: list[int], samples: int) -> int:
    return samples - len(set(indices))


def repeated(indices: list[int]) -> int:
    return len(indices) - len(set(indices))


@pytest.fixture(scope="module", params=[2, 3])
def partition(request, run_ranks):
    """world_size, the settings of all loaders, and by rank, loader and epoch what came: one launch for all of them."""
    loaders = every_combination(request.param)
    return (
        request.param,
        loaders,
        run_ranks(request.param, "walk_prepared", loaders=loaders, epochs=EPOCHS, timeout=300),
    )


def of_kind(loaders: list[Settings], *, even_batches: bool, drop_last: bool) -> list[int]:
    kind = [
        number
        for number, loader in enumerate(loaders)
        if loader["config"]["even_batches"] == even_batches and loader["loader"]["drop_last"] == drop_last
    ]
    assert len(kind) == 20
    return kind


def test_even_batches_repeat_only_the_padding(partition):
    world_size, loaders, walks = partition
    padding = -SAMPLES % (world_size * BATCH_SIZE)
    for loader in of_kind(loaders, even_batches=True, drop_last=False):
        for epoch in range(EPOCHS):
            indices = arrived(walks, loader, epoch)
            assert (lost(indices, SAMPLES), repeated(indices)) == (0, padding), (loaders[loader], epoch)


def test_uneven_batches_hold_every_index_once(partition):
    _, loaders, walks = partition
    for loader in of_kind(loaders, even_batches=False, drop_last=False):
        for epoch in range(EPOCHS):
            assert sorted(arrived(walks, loader, epoch)) == list(range(SAMPLES)), (loaders[loader], epoch)


@pytest.mark.parametrize("even_batches", [True, False])
def test_drop_last_loses_only_the_tail_and_repeats_nothing(partition, even_batches):
    world_size, loaders, walks = partition
    tail = SAMPLES % (world_size * BATCH_SIZE)
    for loader in of_kind(loaders, even_batches=even_batches, drop_last=True):
        for epoch in range(EPOCHS):
            indices = arrived(walks, loader, epoch)
            assert (lost(indices, SAMPLES), repeated(indices)) == (tail, 0), (loaders[loader], epoch)


def test_each_epoch_is_another_order_and_exactly_the_samplers(partition):
    world_size, loaders, walks = partition
    for number, loader in enumerate(loaders):
        kind = {"even_batches": loader["config"]["even_batches"], "drop_last": loader["loader"]["drop_last"]}
        expected = [laid_out(epoch, world_size, **kind) for epoch in range(EPOCHS)]
        assert expected[0] != expected[1] != expected[2] != expected[0]
        for epoch in range(EPOCHS):
            assert [walk[number][epoch] for walk in walks] == expected[epoch], (loader, epoch)


# ---- the public fault: 96 samples, batches of 4, 6 workers, a stateful loader ------------------------

RNGS = ("unseeded", "seeded", "consumed")


@pytest.fixture(scope="module", params=[2, 3, 4])
def public_fault(request, run_ranks):
    """By (order, rng) and epoch: what came over all ranks."""
    kinds = list(itertools.product(["shuffle", "seeded", "peeked"], RNGS))
    loaders = [settings(order=order, rng=rng, samples=96) for order, rng in kinds]
    walks = run_ranks(request.param, "walk_prepared", loaders=loaders, epochs=EPOCHS)
    return {kind: [arrived(walks, n, epoch) for epoch in range(EPOCHS)] for n, kind in enumerate(kinds)}


@pytest.mark.parametrize("rng", RNGS)
def test_prefetch_in_prepare_gives_every_rank_the_same_epochs(public_fault, rng):
    for indices in public_fault["seeded", rng]:
        assert sorted(indices) == list(range(96))


@pytest.mark.parametrize("rng", RNGS)
def test_a_look_at_one_batch_on_rank_0_before_prepare_changes_nothing(public_fault, rng):
    assert public_fault["peeked", rng] == public_fault["seeded", rng]


@pytest.mark.parametrize("rng", RNGS)
def test_these_tests_have_power_since_shuffle_true_loses_samples(public_fault, rng):
    indices = public_fault["shuffle", rng][0]
    assert len(indices) == 96
    assert lost(indices, 96) > 10, f"accelerate {accelerate.__version__} no longer has the fault: find another control"


# ---- resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3])
def test_set_epoch_and_skip_first_batches_resume_the_due_epoch_in_a_new_run(run_ranks, tmp_path, world_size):
    loaders = [
        settings(use_stateful_dataloader=stateful, workers=workers) for stateful in (False, True) for workers in (0, 2)
    ]
    last = len(laid_out(0, world_size)[0])
    steps = [1, 5, last - 1]
    place = {"loaders": loaders, "epoch": 2, "steps": steps, "folder": str(tmp_path)}
    run_ranks(world_size, "train_and_save", **place)
    resumed = run_ranks(world_size, "resume", **place)
    due, following = laid_out(2, world_size), laid_out(3, world_size)
    for rank, number, at in itertools.product(range(world_size), range(len(loaders)), range(len(steps))):
        rest, after = resumed[rank][number][at]
        assert rest == due[rank][steps[at] :], (loaders[number], rank, steps[at])
        assert after == following[rank], (loaders[number], rank, steps[at])


# ---- the global RNGs ---------------------------------------------------------------------------------


def test_building_and_walking_a_sampler_moves_no_bit_of_a_global_rng():
    def states() -> tuple[Any, ...]:
        kind, words, *rest = np.random.get_state()  # noqa: NPY002  # the global one is what is meant
        return torch.get_rng_state().tolist(), kind, words.tolist(), rest, random.getstate()

    before = states()
    sampler = SeededEpochSampler(range(10_000), SEED)
    walked = [list(sampler), list(sampler)]
    assert states() == before
    assert walked[0] != walked[1]
    random.random()
    assert states() != before
