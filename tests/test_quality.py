"""The quick part of the quality battery: order v1 passes it, weak orders do not, and its laws are right.

The whole battery is ``python -m benchmarks.quality``; its results stand in benchmarks/results/quality.md.
"""

from __future__ import annotations

import itertools
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import quality
from benchmarks.quality import ENTRIES, QUICK, REJECT, PValues
from rankless_sampler.order import EpochDraws, EpochOrder, EpochRepeats

ACCEPTED = [name for name, entry in ENTRIES.items() if entry.good]


@cache
def battery(name: str) -> PValues:
    return quality.battery(ENTRIES[name], QUICK)


def all_rows(n: int) -> quality.Ints:
    return np.array(list(itertools.permutations(range(n))), dtype=np.int64)


# ---- the verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACCEPTED)
def test_no_test_rejects_an_order_that_ought_to_pass(name: str) -> None:
    assert {test: p for test, p in battery(name).items() if not p >= REJECT} == {}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("v1's network, 2 rounds", 100),
        ("v1's network, 3 rounds", 30),
        ("v1's network, 4 rounds", 10),
        ("Grain's index_shuffle (4 rounds)", 100),
        ("affine map a*i + b mod n", 100),
        ("two-level block shuffle", 80),
        ("torch.randperm(seed + epoch)", 20),
        ("repeats: the same order again", 5),
        ("repeats: the next epochs' orders", 5),
        ("draws: 64-bit word mod n", 5),
        ("draws: 64-bit word * n >> 64", 1),
        ("draws: without replacement", 5),
    ],
)
def test_weak_orders_are_rejected_by_many_tests(name: str, least: int) -> None:
    assert len(quality.rejected(battery(name))) >= least


def test_five_rounds_are_rejected_by_pairs_that_agree_and_keep_their_difference() -> None:
    rejected = quality.rejected(battery("v1's network, 5 rounds"))
    assert "n = 65536, halves: same R, agree and keep" in rejected
    assert "n = 4097, halves: same R, agree and keep" in rejected


def test_p_values_of_uniform_permutations_are_uniform() -> None:
    p_values = quality.good_p_values({name: battery(name) for name in ACCEPTED}, ["numpy Generator.permutation"])
    assert len(p_values) > 200
    assert quality.uniformity(p_values) > 1e-3
    assert quality.uniformity(p_values**2) < REJECT  # the check of the check


@pytest.mark.parametrize("size", [32, 256])
def test_batches_hold_indices_of_the_lower_half_as_the_hypergeometric_law_says(size: int) -> None:
    n = 65_536
    rows = np.concatenate([EpochOrder(n, seed=3, epoch=e)[:].reshape(-1, size) for e in range(8)])
    counts = np.count_nonzero(rows < n // 2, axis=1)
    variance = size / 4 * (n - size) / (n - 1)  # 8 for batches of 32
    assert counts.mean() == size / 2
    assert abs(counts.var() / variance - 1) < 5.5 * math.sqrt(2 / len(counts))
    grain = np.concatenate([quality.grain_like(n, 3, e)[0:n].reshape(-1, size) for e in range(8)])
    assert np.count_nonzero(grain < n // 2, axis=1).var() == 0


# ---- the sources are what they are called ------------------------------------------------------------


@pytest.mark.parametrize("n", [4_097, 5_000, 65_536, 65_537, 10**6, 2**32, 2**32 + 1, 10**12, 2**62 + 1, 2**63 - 1])
def test_eight_rounds_of_the_network_here_are_order_v1(n: int) -> None:
    positions = np.concatenate([np.arange(3_000), n - 1 - np.arange(500), n // 3 + np.arange(500)])
    for seed, epoch in ((0, 0), (-5, 3), (2**70, 10**9)):
        mine = quality.network(n, seed, epoch, rounds=8)
        assert np.array_equal(mine[positions], EpochOrder(n, seed=seed, epoch=epoch)[positions])


@pytest.mark.parametrize(
    ("n", "values"),
    [
        (10, [4, 0, 3, 7, 2, 9, 6, 8, 1, 5]),
        (65_536, [8812, 17398, 45604, 57751, 64428, 33447]),
        (10**12, [605708682160, 878623081001, 610578293915, 887921837379]),
    ],
)
def test_grain_like_gives_what_grain_gives(n: int, values: list[int]) -> None:
    """Values of index_shuffle(i, max_index=n - 1, seed=7, rounds=4), grain 0.2.18."""
    assert quality.grain_like(n, 5, 2)[np.arange(len(values))].tolist() == values


@pytest.mark.parametrize("n", [2, 6, 100, 4_096, 4_097, 65_536])
@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.kind == "orders"])
def test_every_source_is_a_permutation(name: str, n: int) -> None:
    assert sorted(ENTRIES[name].source(n, 1, 2)[0:n].tolist()) == list(range(n))


def test_orders_of_one_n_have_one_parity_where_b_is_odd() -> None:
    odd = {n: quality.odd_permutations(np.stack([EpochOrder(n, seed=s)[:] for s in range(40)])) for n in (4_097, 8_192)}
    assert odd[4_097] in (0, 40)  # b = 65: known and accepted
    assert 5 <= odd[8_192] <= 35  # b = 128


# ---- the laws are exact ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(quality.MOMENTS))
@pytest.mark.parametrize("n", [3, 5, 7])
def test_moments_are_those_of_all_permutations(name: str, n: int) -> None:
    statistic, law = quality.MOMENTS[name]
    values = statistic(all_rows(n))
    assert (values.mean(), values.var()) == pytest.approx(law(n))


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_mallows_mean_is_that_of_all_permutations(q: float) -> None:
    assert quality.mallows_moment(6, q) == pytest.approx((q ** quality.inversions(all_rows(6))).mean())


@pytest.mark.parametrize("n", [33, 45, 48, 63, 64])
@pytest.mark.parametrize("same", ["R", "L"])
def test_pair_chances_are_those_of_all_pairs_of_values(n: int, same: str) -> None:
    k, b = quality.halves(n)
    members = b if same == "R" else 1 << k
    first, second = np.array([(i, j) for i in range(n) for j in range(n) if i != j]).T
    expected = np.zeros(len(quality.AGREEMENTS))
    for i, j in itertools.combinations(range(members), 2):
        values = np.zeros((len(first), members), dtype=np.int64)
        values[:, i], values[:, j] = first, second
        expected += [(key[:, i] == key[:, j]).mean() for key in quality.half_keys(values, n, same)]
    assert quality.pair_chances(n, same) == pytest.approx(expected / math.comb(members, 2))


@pytest.mark.parametrize(("n", "bit"), [(1_000, 0), (1_000, 5), (1_000, 9), (64, 5), (65, 6)])
def test_labels_are_counted_right(n: int, bit: int) -> None:
    for name, labels, sizes in quality.labellings(np.arange(n), n):
        if name in ("contiguous", "period 10", f"bit {bit}"):
            assert np.bincount(labels, minlength=len(sizes)).tolist() == sizes.tolist()


@pytest.mark.parametrize("n", [1_000, 1_009, 4_096, 4_097])
def test_a_test_rejects_what_is_too_even(n: int) -> None:
    even = np.tile(np.arange(n), (20, 1))
    assert quality.differences(even, np.roll(even, -1, axis=1), n) < REJECT
    assert quality.composition(np.tile(np.arange(32) % 2, (n, 1)), np.array([n / 2, n / 2]), n, n // 32) < REJECT
    assert quality.fixed_points(even) < REJECT


# ---- with replacement, and several permutations in one pass ------------------------------------------


def test_draws_of_all_epochs_and_seeds_differ() -> None:
    seen = {EpochDraws(1_000, 8, seed=s, epoch=e)[:].tobytes() for s in range(100) for e in range(100)}
    assert len(seen) == 10_000


def test_repeats_of_all_epochs_and_seeds_differ() -> None:
    repeats = [
        EpochRepeats(50, 200, seed=s, epoch=e)[:].reshape(4, 50) for s, e in itertools.product(range(30), range(30))
    ]
    assert all((np.sort(rows, axis=1) == np.arange(50)).all() for rows in repeats)
    assert len({row.tobytes() for rows in repeats for row in rows}) == 30 * 30 * 4


def test_counts_of_all_small_orders_have_power() -> None:
    assert quality.all_triples(quality.order_as_draws, 5, 1_250) < REJECT
    assert quality.all_permutations(quality.affine, 4, 500) < REJECT


def test_the_readme_says_what_the_whole_battery_found() -> None:
    found = json.loads((quality.RESULTS / "quality.json").read_text(encoding="utf-8"))
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert list(found["tests"]) == list(ENTRIES)
    for name, tests in found["tests"].items():
        assert f"| {name} | {tests} | {found['rejected'][name]} | " in readme
        assert ENTRIES[name].good is not bool(found["rejected"][name])
    assert f"{sum(found['tests'].values()):,} tests" in readme
