"""check_ranks and shared_seed: what the ranks must agree on, and an error that says who does not."""

from __future__ import annotations

import os
import random
import re
from typing import Any

import numpy as np
import pytest
import torch

import rankless_sampler.accelerate
from rankless_sampler import (
    SeededDistributedSampler,
    SeededEpochSampler,
    ShardedBatchSampler,
    check_ranks,
    shared_seed,
)

# ---- on the ranks ------------------------------------------------------------------------------------


def rng_states() -> list[Any]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002  # the global one is what is meant
    return [torch.get_rng_state().tolist(), kind, words.tolist(), *rest, repr(random.getstate())]


def outcome(call: Any) -> str:
    try:
        return repr(call())
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def on_three_ranks() -> dict[str, Any]:
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    results: dict[str, Any] = {"before init": [outcome(shared_seed), outcome(lambda: ShardedBatchSampler(loaded(), 2))]}
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 2])  # members' own numbers in it: 0 and 1
    before = rng_states()

    samplers: dict[str, Any] = {
        "equal": SeededEpochSampler(20, 7),
        "seeds": SeededEpochSampler(20, rank),
        "two seeds": SeededEpochSampler(20, 7 + (rank == 1)),
        "lengths": SeededEpochSampler(20 + rank, 7),
        "num_samples": SeededEpochSampler(20, 7, num_samples=5 + rank // 2),
        "kinds": SeededEpochSampler(20, 7, replacement=rank == 2),
        "epochs": loaded(epoch=rank // 2),
        "positions": loaded(position=4 if rank else 5),
        "views": ShardedBatchSampler(loaded(), 2),
        "batch sizes": ShardedBatchSampler(loaded(), 2 + rank),
        "drop_last": ShardedBatchSampler(loaded(), 2, drop_last=rank == 0),
        "even_batches": ShardedBatchSampler(loaded(), 2, even_batches=rank == 0),
        "num_replicas": ShardedBatchSampler(loaded(), 2, num_replicas=3 + rank, rank=rank),
        "rank": ShardedBatchSampler(loaded(), 2, num_replicas=3, rank=0),
        "distributed": SeededDistributedSampler(range(20), seed=7),
        "distributed seeds": SeededDistributedSampler(range(20), seed=-rank),
        "distributed rank": SeededDistributedSampler(range(20), num_replicas=2, rank=rank % 2),
        "shuffle": SeededDistributedSampler(range(20), shuffle=rank == 0),
        "everywhere": SeededEpochSampler(20, 7) if rank else SeededDistributedSampler(range(20), seed=8),
        "looked at": SeededEpochSampler(20, 7),
        "walked": SeededEpochSampler(20, 7),
    }
    if rank == 0:
        next(iter(samplers["looked at"]))
        list(samplers["walked"])
    results |= {name: outcome(lambda sampler=sampler: check_ranks(sampler)) for name, sampler in samplers.items()}
    if rank != 1:
        results["in a group"] = outcome(lambda: check_ranks(SeededEpochSampler(20, rank), group=pair))
        results["equal in a group"] = outcome(lambda: check_ranks(SeededEpochSampler(20, rank // 3), group=pair))
        results["seed of a group"] = shared_seed(pair)
    results["shared seeds"] = [shared_seed(), shared_seed()]
    results["rngs moved"] = rng_states() != before
    view = samplers["views"]
    results["views know"] = [view.num_replicas, view.rank]
    dist.destroy_process_group()
    return results


def loaded(epoch: int = 0, position: int = 0) -> SeededEpochSampler:
    sampler = SeededEpochSampler(20, 7)
    if epoch or position:
        sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": position})
    return sampler


def through_accelerate() -> dict[str, Any]:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index

    def prepared(*samplers: SeededEpochSampler) -> Any:
        loaders = [DataLoader(range(20), 2, sampler=sampler) for sampler in samplers]
        return rankless_sampler.accelerate.prepare(accelerator, *loaders)

    differing = outcome(lambda: prepared(SeededEpochSampler(20, rank)))
    second = outcome(lambda: prepared(SeededEpochSampler(20, 7), SeededEpochSampler(20, 8 + rank)))
    known_after_errors = len(accelerator._dataloaders)
    seed = shared_seed()
    loader = prepared(SeededEpochSampler(20, seed))
    return {
        "differing": differing,
        "second": second,
        "known after errors": known_after_errors,
        "seed": seed,
        "walk": [index for batch in loader for index in batch.tolist()],
    }


# ---- the promises ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_ranks(run_ranks):
    return run_ranks(3, "test_ranks_agree:on_three_ranks")


EXPECTED = {
    "equal": None,
    "views": None,
    "distributed": None,
    "looked at": None,  # a look at one batch changes nothing
    "equal in a group": None,
    "seeds": "seed is 0 on rank 0, 1 on rank 1, 2 on rank 2",
    "two seeds": "seed is 7 on ranks 0, 2, 8 on rank 1",
    "lengths": "data_length is 20 on rank 0, 21 on rank 1, 22 on rank 2; num_samples is 20 on rank 0, 21 on rank 1, "
    "22 on rank 2",
    "num_samples": "num_samples is 5 on ranks 0, 1, 6 on rank 2",
    "kinds": "algorithm is 'v1' on ranks 0, 1, 'v1-replacement' on rank 2",
    "epochs": "epoch is 0 on ranks 0, 1, 1 on rank 2",
    "walked": "epoch is 1 on rank 0, 0 on ranks 1, 2",
    "positions": "position is 5 on rank 0, 4 on ranks 1, 2",
    "batch sizes": "batch_size is 2 on rank 0, 3 on rank 1, 4 on rank 2",
    "drop_last": "drop_last is 1 on rank 0, 0 on ranks 1, 2",
    "even_batches": "even_batches is 1 on rank 0, 0 on ranks 1, 2",
    "num_replicas": "num_replicas is 3 on rank 0, 4 on rank 1, 5 on rank 2",
    "rank": "num_replicas=3, but the ranks' views are rank=[0, 0, 0]: each must occur equally often",
    "distributed seeds": "seed is 0 on rank 0, -1 on rank 1, -2 on rank 2",
    "distributed rank": "num_replicas=2, but the ranks' views are rank=[0, 1, 0]: each must occur equally often",
    "shuffle": "algorithm is 'v1' on rank 0, 'sequential' on ranks 1, 2",
    "everywhere": "drop_last is 0 on rank 0, None on ranks 1, 2; num_replicas is 3 on rank 0, None on ranks 1, 2; "
    "seed is 8 on rank 0, 7 on ranks 1, 2",
    "in a group": "seed is 0 on rank 0, 2 on rank 2",  # the numbers that the ranks have in the whole job
}


@pytest.mark.parametrize("name", EXPECTED)
def test_check_ranks_says_on_every_rank_who_differs_and_in_what(three_ranks, name):
    messages = {results[name] for results in three_ranks if name in results}
    assert len(messages) == 1
    (message,) = messages
    expected = EXPECTED[name]
    if expected is None:
        assert message == "None"
    else:
        assert message.startswith("ValueError: ")
        assert expected in message
        assert "Build each with the same arguments" in message or "pass the data-parallel rank" in message


def test_shared_seed_is_fresh_and_the_same_on_every_rank(three_ranks):
    seeds = [results["shared seeds"] for results in three_ranks]
    assert seeds == [seeds[0]] * 3
    assert seeds[0][0] != seeds[0][1]
    assert all(0 <= seed < 2**63 for seed in seeds[0])


def test_shared_seed_of_a_group_reaches_its_members(three_ranks):
    assert three_ranks[0]["seed of a group"] == three_ranks[2]["seed of a group"]


def test_neither_moves_a_global_rng(three_ranks):
    assert [results["rngs moved"] for results in three_ranks] == [False] * 3


def test_under_torchrun_both_refuse_to_guess_before_the_process_group_is_there(three_ranks):
    for results in three_ranks:
        for message in results["before init"]:
            assert re.match(r"RuntimeError: .* cannot be known yet: .*WORLD_SIZE=3.*init_process_group", message)


def test_views_take_their_numbers_from_torch_distributed(three_ranks):
    assert [results["views know"] for results in three_ranks] == [[3, 0], [3, 1], [3, 2]]


def test_prepare_refuses_ranks_with_different_seeds_and_names_them(run_ranks):
    results = run_ranks(2, "test_ranks_agree:through_accelerate")
    for result in results:
        assert "ValueError: the ranks' samplers differ: seed is 0 on rank 0, 1 on rank 1." in result["differing"]
        assert "shared_seed()" in result["differing"]
        assert "seed is 8 on rank 0, 9 on rank 1" in result["second"]
        assert result["known after errors"] == 0
    assert results[0]["seed"] == results[1]["seed"]
    assert sorted(results[0]["walk"] + results[1]["walk"]) == list(range(20))


def test_check_ranks_says_what_it_takes():
    with pytest.raises(TypeError, match=r"sampler must be .*, got list; of a loader, pass its"):
        check_ranks([1, 2])


def test_without_other_ranks_check_ranks_is_silent_and_shared_seed_fresh():
    check_ranks(SeededEpochSampler(20, 1))
    check_ranks(ShardedBatchSampler(SeededEpochSampler(20, 1), 2))
    before = rng_states()
    seeds = {shared_seed() for _ in range(100)}
    assert rng_states() == before
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_shared_seed_refuses_to_guess_in_one_process_of_several(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE=2"):
        shared_seed()
