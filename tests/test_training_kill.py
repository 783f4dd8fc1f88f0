"""A real training under torchrun whose ranks are killed, and a killed save_state: exact counts, no torn state."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits

from rankless_sampler import EpochOrder

EPOCHS, KILLS, SEED = 4, 10, 7
STEP = 2 * 32  # samples of both ranks


@pytest.mark.timeout(1_800)  # 12 starts of two ranks
def test_a_training_killed_ten_times_trains_on_each_sample_as_often_as_it_must(run_ranks, tmp_path):
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", pixels=digits.data, digits=digits.target)
    n = len(digits.target)
    runs = {}
    for name, kills in (("undisturbed", 0), ("killed", KILLS)):
        (tmp_path / name).mkdir()
        arguments = {"digits": str(tmp_path / "digits.npz"), "folder": str(tmp_path / name), "seed": SEED}
        runs[name] = run_ranks(
            2, "kill_training:train", epochs=EPOCHS, kills=kills, **arguments, max_restarts=kills, timeout=120
        )

    kills = [json.loads(line) for line in (tmp_path / "killed" / "kills").read_text().splitlines()]
    assert [kill["life"] for kill in kills] == list(range(KILLS))  # 10 of 10
    assert {kill["who"] for kill in kills} == {"rank 0", "rank 1", "inside save_state"}
    assert [kill["refused"] for kill in kills if kill["refused"]]  # torn ones were met, and refused

    expected = np.full(n, EPOCHS)
    for epoch in range(EPOCHS):  # the last step of each epoch is filled up from the head of that epoch
        expected[EpochOrder(n, seed=SEED, epoch=epoch)[: -n % STEP]] += 1
    for run in runs.values():
        for rank in run:
            assert rank["counts"] == expected.tolist()
            assert rank["steps"] == EPOCHS * -(-n // STEP)
            assert rank["accuracy"] > 0.9
    assert {rank["life"] for rank in runs["killed"]} == {KILLS}
    weights = [rank["weights"] for run in runs.values() for rank in run]
    assert weights == [weights[0]] * 4  # bit for bit those of the undisturbed training


def test_a_save_state_killed_at_any_moment_leaves_what_is_refused_or_whole(run_ranks, tmp_path):
    (result,) = run_ranks(1, "kill_training:tear", folder=str(tmp_path), points=50)
    assert result["deaths"] > 2 * 90
    for where, allowed in (
        ("new folder", ["nothing there", "refused", "new"]),
        ("over an old one", ["old", "refused", "new"]),
    ):
        outcomes = result["outcomes"][where]
        assert set(outcomes) == set(allowed)
        # In that order, each from one moment on: a checkpoint is taken away first and vouched for last.
        assert outcomes == sorted(outcomes, key=allowed.index)
        assert outcomes.count("refused") > len(outcomes) / 2
