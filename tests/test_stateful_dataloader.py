"""torchdata's StatefulDataLoader over SeededEpochSampler: saved at any moment, resumed in a new process, exact."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stateful_runs
import torch

from rankless_sampler import EpochOrder

COMBINATIONS = [
    {
        "num_workers": workers,
        "persistent_workers": persistent,
        "snapshot_every_n_steps": steps,
        "drop_last": drop_last,
        "caller_counts": caller_counts,
    }
    for workers, persistent in ((0, False), (1, False), (1, True), (2, False), (2, True))
    for steps, drop_last, caller_counts in itertools.product((1, 3, 5), (False, True), (False, True))
]


def batches_of(epoch: int, drop_last: bool) -> list[list[int]]:
    order = EpochOrder(stateful_runs.SAMPLES, seed=stateful_runs.SEED, epoch=epoch)[:].tolist()
    size = stateful_runs.BATCH_SIZE
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    assert 0 < len(batches[-1]) < size  # the case where drop_last matters
    return batches[: -1 if drop_last else None]


def new_process(what: str, todo: list[Any], folder: Path) -> list[Any]:
    torch.save(todo, folder / f"{what}.in")
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        # A warning of ours has no place in any of these runs.
        [sys.executable, "-W", "error:a pass through epoch:UserWarning", "-W", "error:the state's seed:UserWarning"]
        + [stateful_runs.__file__, what, str(folder / f"{what}.in"), str(folder / f"{what}.out")],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return torch.load(folder / f"{what}.out", weights_only=True)


@pytest.fixture(scope="module", params=[0, 1, 2], ids=lambda workers: f"workers={workers}")
def workers(request):
    return request.param


@pytest.fixture(scope="module")
def combinations(workers):
    return [options for options in COMBINATIONS if options["num_workers"] == workers]


@pytest.fixture(scope="module")
def saved(combinations, tmp_path_factory):
    return new_process("begin", combinations, tmp_path_factory.mktemp("begin"))


@pytest.fixture(scope="module")
def resumed(saved, tmp_path_factory):
    return new_process("resume", [state for states in saved for state in states], tmp_path_factory.mktemp("resume"))


def check(results: list[Any]) -> None:
    wrong = []
    for result in results:
        place, (rest, following) = result["saved"], result["delivered"]
        drop_last = place["options"]["drop_last"]
        wanted_rest = batches_of(place["epoch"], drop_last)[place["batches"] :]
        if (rest, following) != (wanted_rest, batches_of(place["epoch"] + 1, drop_last)):
            wrong.append((place["options"], place["epoch"], place["batches"], rest, following))
    assert wrong == []


def test_there_is_a_state_for_each_possible_moment(saved, combinations):
    for options, states in zip(combinations, saved, strict=True):
        count = 5 if options["drop_last"] else 6
        places = [(0, 0)] + [(1, done) for done in range(count + 1)] + [(2, 0)]
        assert [(state["epoch"], state["batches"]) for state in states] == places


def test_a_new_process_delivers_the_rest_and_then_the_next_epoch(resumed, combinations):
    assert len(resumed) == sum(8 if options["drop_last"] else 9 for options in combinations)
    check(resumed)


def test_resumed_trained_on_and_saved_again_the_third_process_delivers_the_rest_too(resumed, tmp_path):
    again = [state for result in resumed for state in result["again"]]
    assert len(again) >= 4 / 5 * len(resumed)
    again = [state for state in again if not state["options"]["persistent_workers"]]  # seen above; this is the long run
    check(new_process("resume", again, tmp_path))


def test_a_new_loader_for_each_batch_delivers_the_same(combinations, tmp_path):
    combinations = [options for options in combinations if not options["persistent_workers"]]
    for options, delivered in zip(combinations, new_process("step_by_step", combinations, tmp_path), strict=True):
        assert delivered == [batch for epoch in range(2) for batch in batches_of(epoch, options["drop_last"])]
