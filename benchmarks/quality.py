"""Quality battery: an order must look like a uniformly random permutation, and weak shuffles must not.

    python -m benchmarks.quality            every test on every order, 10 to 15 minutes; writes benchmarks/results/
    python -m benchmarks.quality --quick    a small part of it, to the terminal only

A source is any function (n, seed, epoch) -> something that a slice or an int64 array of positions indexes. A
test is a pure function from arrays of its indices to a p-value, two-sided unless it says otherwise: an order that
is too even is as wrong as one that is too clumsy. Its docstring states what is counted and the law under uniform
permutations. Arrays of `rows` are int64 of shape (keys, positions). The keys were chosen before the first run.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from rankless_sampler.order import EpochDraws, EpochOrder, EpochRepeats

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
PValues = dict[str, float]

REJECT = 1e-7
"""A test rejects below this p: in a full run of some 10,000 tests, one false alarm in 1,000 runs (Bonferroni)."""

FULL_MAX = 10**6  # up to here every position of a key is looked at, beyond it windows
WINDOW = 16_384  # positions in a window
FIRST_KEY = 11  # seeds and epochs are FIRST_KEY, FIRST_KEY + 1, ...: neighbours, as users choose them
CELLS = 16  # a side of a grid
BINS = 64  # of differences
RANKS = 8  # shards
KINDS = ("orders", "repeats", "draws")
BATTERIES = 30  # of each n of the calibration
RESULTS = Path(__file__).parent / "results"


class Order(Protocol):
    """What a source returns: indices at a slice, or at an int64 array, of positions."""

    def __getitem__(self, key: Any, /) -> Any: ...


Source = Callable[[int, int, int], Order]


def halves(n: int) -> tuple[int, int]:
    """(k, b) of order v1: position = L * 2^k + R with L < b. 2^k is also the farthest lag that is tested."""
    bits = (n - 1).bit_length()
    k = 32 if bits == 63 else bits // 2
    return k, -(-n >> k)


# ---- from statistics to p-values ---------------------------------------------------------------------


def normal_p(z: float) -> float:
    """Two-sided p of a standard normal."""
    return float(2 * stats.norm.sf(abs(z)))


def chi2_p(statistic: float, mean: float, variance: float | None = None) -> float:
    """Two-sided p of a chi-square with `mean` degrees of freedom, or scaled to this mean and variance."""
    scale = 1.0 if variance is None else variance / (2 * mean)
    law = stats.chi2(mean / scale)
    return float(min(1.0, 2 * min(law.cdf(statistic / scale), law.sf(statistic / scale))))


def count_p(count: int, law: Any) -> float:
    """Two-sided mid-p of a count under a discrete law."""
    half = law.pmf(count) / 2
    return float(min(1.0, 2 * min(law.cdf(count) - half, law.sf(count) + half)))


def smallest_p(p_values: Sequence[float]) -> float:
    """The smallest of independent p-values as one p-value (Sidak). One-sided by nature."""
    return float(-math.expm1(len(p_values) * math.log1p(-min(p_values))))


# ---- rows as permutations ----------------------------------------------------------------------------


def ranks(rows: Ints) -> Ints:
    """Each row by the ranks of its values: a uniform permutation again, of as many elements as it has positions."""
    return np.argsort(np.argsort(rows, axis=1), axis=1)


def descents(perms: Ints) -> Floats:
    """Positions of each row whose value exceeds the next one."""
    return np.asarray((perms[:, 1:] < perms[:, :-1]).sum(axis=1), dtype=np.float64)


def inversions(perms: Ints) -> Floats:
    """Pairs of each row that stand in the wrong order: (1 - Kendall's tau) n (n - 1) / 4."""
    m = perms.shape[1]
    taus = [stats.kendalltau(np.arange(m), row, method="asymptotic").statistic for row in perms]
    return np.asarray((1 - np.array(taus)) * (m * (m - 1) / 4), dtype=np.float64)


def cycles(perms: Ints) -> Floats:
    """Number of cycles of each row."""
    m = perms.shape[1]
    ones, start = np.ones(m, dtype=np.int8), np.arange(m)
    graphs = (coo_array((ones, (start, row)), shape=(m, m)) for row in perms)
    return np.array([connected_components(graph, return_labels=False) for graph in graphs], dtype=float)


def odd_permutations(perms: Ints) -> int:
    """How many of the rows are odd: with n minus the number of cycles odd."""
    return int(((perms.shape[1] - cycles(perms)) % 2).sum())


def footrule(perms: Ints) -> Floats:
    """Spearman's footrule of each row: the sum of |value - position|."""
    return np.asarray(np.abs(perms - np.arange(perms.shape[1])).sum(axis=1), dtype=np.float64)


def spearman(perms: Ints) -> Floats:
    """Spearman's rank correlation of each row with its positions."""
    middle = (perms.shape[1] - 1) / 2
    centred = np.asarray(perms - middle)
    return np.asarray((centred @ (np.arange(perms.shape[1]) - middle)) / np.square(centred).sum(axis=1))


def _harmonic(m: int, power: int) -> float:
    return float((1.0 / np.arange(1, m + 1, dtype=float) ** power).sum())


MOMENTS: dict[str, tuple[Callable[[Ints], Floats], Callable[[int], tuple[float, float]]]] = {
    "descents": (descents, lambda m: ((m - 1) / 2, (m + 1) / 12)),  # Eulerian numbers
    "inversions": (inversions, lambda m: (m * (m - 1) / 4, m * (m - 1) * (2 * m + 5) / 72)),  # Mahonian numbers
    "cycles": (cycles, lambda m: (_harmonic(m, 1), _harmonic(m, 1) - _harmonic(m, 2))),  # Stirling numbers
    "footrule": (footrule, lambda m: ((m * m - 1) / 3, (m + 1) * (2 * m * m + 7) / 45)),  # Diaconis and Graham 1977
    "Spearman": (spearman, lambda m: (0.0, 1 / (m - 1))),
}
"""Name: (statistic of each row, its exact mean and variance over all m! permutations)."""


def moment_test(name: str, perms: Ints) -> float:
    """The statistic's sum over the keys: normal, with the exact mean and variance of MOMENTS."""
    statistic, law = MOMENTS[name]
    mean, variance = law(perms.shape[1])
    return normal_p(float((statistic(perms) - mean).sum()) / math.sqrt(variance * len(perms)))


def fixed_points(perms: Ints) -> float:
    """Positions that hold their own index, over all keys: Poisson, mean 1 a key."""
    return count_p(int(np.count_nonzero(perms == np.arange(perms.shape[1]))), stats.poisson(len(perms)))


def longest_runs(perms: Ints) -> float:
    """Runs up or down as long as the longest of a key or so: Poisson, (m-r)(1/r! - 1/(r+1)!) + 1/r! each way."""
    keys, m = perms.shape

    def mean(r: int) -> float:
        short, long = 1 / math.factorial(r), 1 / math.factorial(r + 1)
        return float(2 * keys * ((m - r) * (short - long) + short))

    r = max(r for r in range(3, 20) if mean(r) >= min(20.0, mean(3)))
    count = 0
    for steps in (perms[:, 1:] > perms[:, :-1], perms[:, 1:] < perms[:, :-1]):
        ends = np.flatnonzero(np.pad(~steps, ((0, 0), (0, 1)), constant_values=True))
        count += np.count_nonzero(np.diff(ends, prepend=-1) >= r)
    return count_p(count, stats.poisson(mean(r)))


def permutation_tests(perms: Ints) -> PValues:
    """Every test that looks at one permutation at a time."""
    found = {name: moment_test(name, perms) for name in MOMENTS}
    return found | {"fixed points": fixed_points(perms), "longest runs": longest_runs(perms)}


def all_permutations(source: Source, n: int, keys: int) -> float:
    """How often each of the n! permutations comes over the keys: chi-square of n! cells (n = 2: binomial)."""
    rows = np.stack([source(n, FIRST_KEY + i, i % 3)[0:n] for i in range(keys)])
    counts = np.unique(rows @ n ** np.arange(n), return_counts=True)[1]
    cells = math.factorial(n)
    if cells == 2:  # too few for a chi-square
        return count_p(int(np.count_nonzero(rows[:, 0])), stats.binom(keys, 0.5))
    return chi2_p(float((counts.astype(float) ** 2).sum() * cells / keys - keys), cells - 1)


# ---- two arrays side by side: positions and indices, lags, neighbouring keys --------------------------


def correlation(x: Ints, y: Ints, mean: float = 0.0) -> float:
    """Correlation of x and y row by row, summed: normal; of a row the mean is `mean`, the variance 1 / (m - 1)."""
    x_centred, y_centred = (a - a.mean(axis=1, keepdims=True) for a in (x, y))
    r = (x_centred * y_centred).sum(axis=1)
    r /= np.sqrt(np.square(x_centred).sum(axis=1) * np.square(y_centred).sum(axis=1))
    return normal_p(float((r - mean).sum()) * math.sqrt((x.shape[1] - 1) / len(r)))


def bins_of(x: Ints, n: int, bins: int) -> Ints:
    """The contiguous one of `bins` equal parts of ``range(n)`` that each value lies in."""
    return np.minimum((x / n * bins).astype(np.int64), bins - 1)


def bin_sizes(n: int, bins: int) -> Floats:
    """How many of ``range(n)`` lie in each of `bins_of`."""
    edges = [-(-i * n // bins) for i in range(bins + 1)]
    return np.array([high - low for low, high in itertools.pairwise(edges)], dtype=float)


def tally(cells: Ints, bins: int) -> Floats:
    """How often each of `bins` cells comes in each row: float, shape (rows, bins)."""
    rows = len(cells)
    if bins == 2:
        ones = cells.sum(axis=1).astype(float)
        return np.stack([cells.shape[1] - ones, ones], axis=1)
    offsets = (np.arange(rows) * bins)[:, None]
    return np.bincount((cells + offsets).ravel(), minlength=rows * bins).reshape(rows, bins).astype(float)


def differences(x: Ints, y: Ints, n: int) -> float:
    """(y - x) mod n in 64 bins, row by row, summed: chi-square, 63 degrees of freedom a row (Hoeffding's variance)."""
    m = x.shape[1]
    difference = y - x
    expected = bin_sizes(n, BINS) * (m / n)
    counts = tally(bins_of(np.where(difference < 0, difference + np.int64(n), difference), n, BINS), BINS)
    statistic = (np.square(counts - expected) / expected).sum()
    return chi2_p(float(statistic) * (n - 1) / n, len(x) * (BINS - 1))


def grid(x: Ints, y: Ints, side: int = CELLS) -> float:
    """Table of cells of x by cells of y, a row each, summed: chi-square of independence, its margins given."""
    m = x.shape[1]
    counts = tally(x * side + y, side * side).reshape(-1, side, side)
    across, down = counts.sum(axis=2), counts.sum(axis=1)
    expected = across[:, :, None] * down[:, None, :] / m
    statistic = (np.square(counts - expected) / np.where(expected > 0, expected, 1)).sum()
    freedom = ((np.count_nonzero(across, axis=1) - 1) * (np.count_nonzero(down, axis=1) - 1)).sum()
    return chi2_p(float(statistic) * (m - 1) / m, float(freedom))


def bit_cells(x: Ints, n: int) -> dict[str, Ints]:
    """The top, the middle (both sides of the halves' border) and the low four bits, roughly."""
    return {"top": bins_of(x, n, CELLS), "middle": (x >> max(0, halves(n)[0] - 2)) & 15, "low": x & 15}


def equal_values(x: Ints, y: Ints, mean: float) -> float:
    """Positions where x and y hold the same index, over all keys: Poisson with this mean."""
    return count_p(int(np.count_nonzero(x == y)), stats.poisson(mean))


def pair_tests(x: Ints, y: Ints, x_range: int, n: int, mean: float = 0.0) -> PValues:
    """Every test of two arrays of the same shape, x from ``range(x_range)``, y from ``range(n)``."""
    found = {"correlation": correlation(x, y, mean)}
    x_cells, y_cells = bit_cells(x, x_range), bit_cells(y, n)
    found |= {f"{name} bits": grid(x_cells[name], y_cells[name]) for name in x_cells}
    return found | ({"differences": differences(x, y, n)} if x_range == n else {})


def lagged(rows: Ints, lag: int, *, circular: bool) -> tuple[Ints, Ints]:
    """Each value and the one `lag` positions later."""
    return (rows, np.roll(rows, -lag, axis=1)) if circular else (rows[:, :-lag], rows[:, lag:])


def key_pairs(values: Ints) -> dict[str, tuple[Ints, Ints]]:
    """Neighbouring keys in `values`, shape (seeds, epochs, windows, positions): rows of both, side by side."""
    a, b = np.triu_indices(len(values), 2)  # not (s, s + 1): that pair stands in the last line
    pairs = {
        "epochs e, e + 1": (values[:, :-1], values[:, 1:]),
        "seeds s, s + 1": (values[:-1], values[1:]),
        "keys (s, e), (e, s)": (values[a, b], values[b, a]),
        "keys (s, e), (s + 1, e - 1)": (values[:-1, 1:], values[1:, :-1]),
    }
    m = values.shape[-1]
    return {name: (x.reshape(-1, m), y.reshape(-1, m)) for name, (x, y) in pairs.items() if x.size}


def pearson_variance(share: Floats, size: int) -> float:
    """Variance of Pearson's chi-square of `size` independent draws among cells of these shares (Haldane 1937)."""
    cells = len(share)
    return 2 * (cells - 1) + float((1 / share).sum() - cells**2 - 2 * cells + 2) / size


# ---- composition: batches and rank shards -------------------------------------------------------------


def labellings(x: Ints, n: int) -> Iterator[tuple[str, Ints, Floats]]:
    """Ways to label the indices: name, the labels of x, how many of ``range(n)`` bear each label."""
    yield "contiguous", bins_of(x, n, 10), bin_sizes(n, 10)
    yield "period 10", x % 10, np.array([(n - i + 9) // 10 for i in range(10)], dtype=float)
    for bit in range((n - 1).bit_length()):
        ones = (n >> (bit + 1) << bit) + max(0, (n & ((2 << bit) - 1)) - (1 << bit))
        yield f"bit {bit}", (x >> bit) & 1, np.array([n - ones, ones], dtype=float)


def composition(groups: Ints, sizes: Floats, population: float, groups_a_key: int) -> float:
    """Labels in each group (a row): the hypergeometric law's chi-square, its mean and variance, summed over groups."""
    rows, size = groups.shape
    share = sizes / sizes.sum()
    labels = len(share)
    without = 1 - (size - 1) / (population - 1)  # the finite-population factor (N - B) / (N - 1)
    statistic = (np.square(tally(groups, labels) - size * share) / (size * share)).sum()
    variance = pearson_variance(share, size)
    shared = 1 + (groups_a_key - 1) * (size / (population - size)) ** 2  # groups of one key exclude one another
    return chi2_p(float(statistic), rows * (labels - 1) * without, rows * variance * without**2 * shared)


def composition_tests(rows: Ints, n: int, population: float) -> PValues:
    """Composition of batches of 32 and 256 and of 8 rank shards, for every labelling with one of each label or more."""
    found: PValues = {}
    keys, m = rows.shape
    bits: dict[str, list[float]] = {}
    for name, labels, sizes in labellings(rows, n):
        shards = labels[:, : m // RANKS * RANKS].reshape(keys, -1, RANKS).swapaxes(1, 2)
        batches = {f"batches of {size}": labels[:, : m // size * size].reshape(keys, -1, size) for size in (32, 256)}
        for group, parts in (batches | {"rank shards": shards}).items():
            size = parts.shape[2]
            if sizes.min() * size >= n:
                p = composition(parts.reshape(-1, size), sizes, population, parts.shape[1])
                if name.startswith("bit"):
                    bits.setdefault(group, []).append(p)
                else:
                    found[f"{group}: {name}"] = p
    return found | {f"{group}: periods 2^j, smallest p": smallest_p(p) for group, p in bits.items()}


# ---- the two halves of a Feistel network --------------------------------------------------------------


def equal_pairs(rows: Ints) -> int:
    """Pairs of equal values within a row, over all rows."""
    ordered = np.sort(rows, axis=1)
    starts = np.pad(ordered[:, 1:] != ordered[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    runs = np.diff(np.flatnonzero(starts), append=starts.size)
    return int((runs * (runs - 1) // 2).sum())


AGREEMENTS = ("agree in it", "agree in the other", "keep the difference", "agree and keep")
"""What two positions that share a half may do: have the same half of that kind in their outputs, have the same
other half, keep the difference of the other half (L: mod b, R: xor), the first and the third at once."""


def pair_chances(n: int, same: str) -> tuple[float, ...]:
    """The chance of each of AGREEMENTS for two positions that share the half `same`, over all permutations.

    Exact; for R's differences, which are not all as frequent where n is no multiple of 2^k, the mean over them.
    """
    k, b = halves(n)
    row = 1 << k  # values of each L
    last = n - ((b - 1) << k)  # values of the last L; as many R come b times, the others b - 1
    same_left = (b - 1) * row * (row - 1) + last * (last - 1)  # ordered pairs of different values
    same_right = last * b * (b - 1) + (row - last) * (b - 1) * (b - 2)
    counts: list[float]
    if same == "R":
        counts = [same_right, same_left, (b - 2) * row * row + 2 * row * last, (b - 2) * row + 2 * last]
    else:
        counts = [same_left, same_right, (n * n - n - same_right) / (row - 1), same_left / (row - 1)]
    return tuple(count / (n * (n - 1)) for count in counts)


def half_keys(values: Ints, n: int, same: str) -> tuple[Ints, ...]:
    """Arrays of the shape of `values`, equal within a row where AGREEMENTS hold.

    `values`, shape (classes, members): the positions of a class share the half `same`, and its members have 0, 1,
    2, ... as their other half.
    """
    k, b = halves(n)
    member = np.arange(values.shape[1])
    left, right = values >> k, values & ((1 << k) - 1)
    if same == "R":
        move = (left - member) % b
        return right, left, move, right * b + move
    move = right ^ member
    return left, right, move, (left << k) | move


def half_pairs(values: Ints, n: int, same: str) -> PValues:
    """Pairs of positions that share a half and agree in their outputs: binomial, exact chance; 10 or more are due.

    The sharpest test of a Feistel network: pairs that keep their difference come twice as often at 4 rounds, and
    at 5 those that also agree. `values` as in half_keys.
    """
    pairs = len(values) * values.shape[1] * (values.shape[1] - 1) // 2
    keys, chances = half_keys(values, n, same), pair_chances(n, same)
    return {
        f"same {same}, {name}": count_p(equal_pairs(key), stats.binom(pairs, chance))
        for name, key, chance in zip(AGREEMENTS, keys, chances, strict=True)
        if pairs * chance >= 10
    }


SELECTED_PAIRS = {2**32 + 1: (128, 1 << 16), 10**12: (4, 1 << 16), 2**63 - 1: (2, 1 << 20)}
"""n: (classes, members) of selected positions, where all of them are too many."""


def half_tests(source: Source, n: int, full: Ints | None) -> PValues:
    """Pair collisions on the halves, from whole permutations (rows) or from selected classes of positions."""
    k, b = halves(n)
    if full is not None:
        table = full[:, : (b - 1) << k].reshape(len(full), b - 1, 1 << k)
        classes = {"R": table.swapaxes(1, 2).reshape(-1, b - 1), "L": table.reshape(-1, 1 << k)}
    else:
        count, members = SELECTED_PAIRS[n]
        order, a, other = source(n, FIRST_KEY, FIRST_KEY), np.arange(count)[:, None], np.arange(members)
        classes = {"R": order[(other << k) + a], "L": order[(a << k) + other[: 1 << k]]}
    return {name: p for same, values in classes.items() for name, p in half_pairs(values, n, same).items()}


# ---- selected positions over many keys ----------------------------------------------------------------


def uniform(columns: Ints, sizes: Floats) -> float:
    """Cells of each column over its rows, summed over columns: chi-square, cells - 1 degrees of freedom a column."""
    rows, count = columns.shape
    share = sizes / sizes.sum()
    statistic = (np.square(tally(columns.T, len(sizes)) - rows * share) / (rows * share)).sum()
    return chi2_p(float(statistic), count * (len(sizes) - 1), count * pearson_variance(share, rows))


def mallows_moment(m: int, q: float) -> float:
    """Mean of q ** inversions over all permutations of m."""
    return math.prod((1 - q**j) / (j * (1 - q)) for j in range(1, m + 1))


def discordant_pairs(rows: Ints) -> Floats:
    """Kendall's distance of each two rows: pairs of positions that they order differently."""
    first, second = np.triu_indices(rows.shape[1], 1)
    signs = np.where(rows[:, first] < rows[:, second], 1.0, -1.0)
    return np.asarray((len(first) - signs @ signs.T) / 2)


@cache
def mallows_law(keys: int, m: int) -> tuple[float, float, float, float]:
    """(q, mean, variance, skewness) of the sum over pairs of keys of the kernel q ** discordant pairs.

    Mean and variance are exact: the pairs are uncorrelated. Of the skewness the part that stems from triples of
    keys is simulated, with a fixed seed.
    """
    q = math.exp(-5 / (m * (m - 1) / 2))
    mean, square, cube = (mallows_moment(m, q**power) for power in (1, 2, 3))
    pairs, variance = keys * (keys - 1) / 2, square - mean**2
    size = 2_048
    kernel = q ** discordant_pairs(np.random.default_rng(0).permuted(np.tile(np.arange(m), (size, 1)), axis=1)) - mean
    np.fill_diagonal(kernel, 0)
    triple = float((kernel @ kernel * kernel).sum()) / (size * (size - 1) * (size - 2))
    third = pairs * (cube - 3 * mean * square + 2 * mean**3) + keys * (keys - 1) * (keys - 2) * triple
    return q, pairs * mean, pairs * variance, third / (pairs * variance) ** 1.5


def mallows(rows: Ints) -> float:
    """Mallows kernel, q ** discordant pairs, summed over pairs of keys: Pearson's type III with its three moments."""
    keys, m = rows.shape
    q, mean, variance, skewness = mallows_law(keys, m)
    total = float((q ** discordant_pairs(rows)).sum()) / 2 - keys / 2  # each pair once, none with itself
    law, z = stats.pearson3(skewness), (total - mean) / math.sqrt(variance)
    return float(min(1.0, 2 * min(law.cdf(z), law.sf(z))))


def selected_positions(n: int) -> Ints:
    """The first 16 positions, then 16 more: multiples of 2^k, the middle, the end, and some in between."""
    k = halves(n)[0]
    spread = [i << k for i in range(1, 5)] + [(n // 2) + i for i in range(4)] + [n - 1 - i for i in range(4)]
    return np.array([*range(16), *spread, *(n // 7 + i * (n // 11) for i in range(1, 5))], dtype=np.int64)


def key_tests(source: Source, n: int, keys: int) -> PValues:
    """Values at selected positions over many keys: half of them seeds in a row, half of them epochs in a row."""
    at = selected_positions(n)
    chosen = [(i, 0) for i in range(keys // 2)] + [(0, i) for i in range(1, keys - keys // 2 + 1)]
    values = np.stack([source(n, seed, epoch)[at] for seed, epoch in chosen])
    tops = np.ascontiguousarray(bins_of(values, n, 8).T)
    low = np.array([(n - i + 15) // 16 for i in range(16)], dtype=float)
    return {
        "top bits": uniform(bins_of(values, n, 32), bin_sizes(n, 32)),
        "low bits": uniform(values & 15, low),
        "neighbouring positions": grid(tops[:-1], tops[1:], 8),
        "successive keys": correlation(values[:-1], values[1:]),
        "Mallows kernel, the first 16": mallows(values[:, :16]),
        "Mallows kernel, 16 others": mallows(values[:, 16:]),
    }


def index_positions(perms: Ints) -> float:
    """Where 64 of the indices stand, over the keys, in 8 bins: chi-square, 7 degrees of freedom an index."""
    n = perms.shape[1]
    where = np.argsort(perms, axis=1)[:, np.arange(64) * (n // 64)]
    return uniform(bins_of(where, n, 8), bin_sizes(n, 8))


# ---- the battery --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How much a run looks at."""

    orders: dict[int, int]  # n: seeds (and as many epochs)
    repeats: dict[int, int]
    draws: dict[int, int]
    keys: int  # for selected positions
    small: int  # the largest n of which all n! permutations are counted
    small_keys: int  # at least so many for each of them


FULL = Plan(
    orders={1_009: 16, 4_096: 11, 4_097: 11, 65_536: 5, 65_537: 5, 10**6: 3, 2**32 + 1: 5, 10**12: 5, 2**63 - 1: 5},
    repeats={1_009: 8, 4_097: 6, 65_537: 3},
    draws=dict.fromkeys((1_009, 65_537, 10**6, 3 << 30, 2**32 + 1, 3 << 61, 2**63 - 1), 5),
    keys=1_024,
    small=6,
    small_keys=500,
)
QUICK = Plan(
    orders={4_097: 5, 65_536: 2, 10**12: 2},
    repeats={4_097: 3},
    draws=dict.fromkeys((1_009, 3 << 61), 2),
    keys=256,
    small=4,
    small_keys=200,
)


def _prefixed(prefix: str, found: PValues) -> PValues:
    return {f"{prefix}: {name}": p for name, p in found.items()}


def grid_of_keys(side: int, values: Callable[[int, int], Ints]) -> Ints:
    """values(seed, epoch), shape (windows, positions), of side x side neighbouring keys."""
    chosen = range(FIRST_KEY, FIRST_KEY + side)
    return np.array([[values(seed, epoch) for epoch in chosen] for seed in chosen])


def windows(n: int) -> Ints:
    """Selected positions, shape (3, WINDOW): from 0 on, from n // 3 on, and every 2^k-th (all of one right half)."""
    ramp = np.arange(WINDOW)
    return np.stack([ramp, n // 3 + ramp, ramp << halves(n)[0]])


def order_tests(source: Source, n: int, side: int, keys: int) -> PValues:
    """The battery on one n. p-values by test."""
    full = n <= FULL_MAX
    values = grid_of_keys(side, lambda s, e: source(n, s, e)[0:n][None] if full else source(n, s, e)[windows(n)])
    rows = values.reshape(-1, values.shape[-1])
    straight = rows if full else values[:, :, :2].reshape(-1, WINDOW)
    strided = rows if full else values[:, :, 2].reshape(-1, WINDOW)
    far = 1 << halves(n)[0]

    found = _prefixed("permutation", permutation_tests(rows if full else ranks(rows)))
    m = rows.shape[1]
    position = pair_tests(np.broadcast_to(np.arange(m), straight.shape), straight, m, n)
    found |= _prefixed("position", {name: p for name, p in position.items() if name != "correlation"})  # Spearman's
    for lag in sorted({1, 2, 16, 256, far}):
        near = full or lag != far
        x, y = lagged(straight if near else strided, lag if near else 1, circular=full)
        found |= _prefixed(f"lag {lag}" if lag != far else "lag 2^k", pair_tests(x, y, n, n, -1 / (m - 1)))
    for name, (x, y) in key_pairs(values).items():
        found |= _prefixed(name, pair_tests(x, y, n, n))
        if full:
            found[f"{name}: equal"] = equal_values(x, y, len(x))
    found |= composition_tests(straight, n, n)
    found |= _prefixed("halves", half_tests(source, n, rows if full else None))
    found |= _prefixed("many keys", key_tests(source, n, keys))
    if n <= 4_097:
        found["many keys: positions of indices"] = index_positions(rows)
    return found


def repeat_tests(source: Source, n: int, side: int) -> PValues:
    """Four permutations in one pass: each by itself, one against the next, across epochs and seeds."""
    values = grid_of_keys(side, lambda s, e: source(n, s, e)[0 : 4 * n].reshape(4, n))
    found = _prefixed("permutation", permutation_tests(values.reshape(-1, n)))
    pairs = key_pairs(values) | {
        "repeats j, j + 1": (values[:, :, :-1].reshape(-1, n), values[:, :, 1:].reshape(-1, n)),
        "(e, j + 1), (e + 1, j)": (values[:, :-1, 1:].reshape(-1, n), values[:, 1:, :-1].reshape(-1, n)),
    }
    for name, (x, y) in pairs.items():
        found |= _prefixed(name, pair_tests(x, y, n, n) | {"equal": equal_values(x, y, len(x))})
    return found


DRAWS = 65_536  # draws of a key


def draw_tests(source: Source, n: int, side: int) -> PValues:
    """Draws with replacement: uniform, without modulo bias, independent over positions, epochs and seeds."""
    values = grid_of_keys(side, lambda s, e: source(n, s, e)[0:DRAWS][None])
    rows = values.reshape(-1, DRAWS)
    pooled = rows.reshape(-1, 1)
    found = {"uniform: parts": uniform(bins_of(pooled, n, 256), bin_sizes(n, 256))}
    if n <= DRAWS:
        found["uniform: every index"] = uniform(pooled, np.ones(n))
    for period in (3, 7, 16, 1000):
        sizes = np.array([(n - i + period - 1) // period for i in range(period)], dtype=float)
        found[f"uniform: mod {period}"] = uniform(pooled % period, sizes)
    pairs = len(rows) * DRAWS * (DRAWS - 1) // 2
    if pairs / n >= 10:
        found["uniform: pairs drawn twice"] = count_p(equal_pairs(rows), stats.binom(pairs, 1 / n))
    position = pair_tests(np.broadcast_to(np.arange(DRAWS), rows.shape), rows, DRAWS, n)
    found |= _prefixed("position", position)
    for lag in (1, 2, 16, 256, 4096):
        x, y = lagged(rows, lag, circular=False)
        found |= _prefixed(f"lag {lag}", pair_tests(x, y, n, n, -1 / DRAWS))
    for name, (x, y) in key_pairs(values).items():
        found |= _prefixed(name, pair_tests(x, y, n, n))
        if x.size / n >= 10:
            found[f"{name}: equal"] = equal_values(x, y, x.size / n)
    return found | composition_tests(rows, n, math.inf)


def all_triples(source: Source, n: int, keys: int) -> float:
    """How often each triple of the first three draws comes over the keys: chi-square, n^3 - 1 degrees of freedom."""
    rows = np.stack([source(n, FIRST_KEY + i, i % 3)[0:3] for i in range(keys)])
    return uniform((rows @ n ** np.arange(3))[:, None], np.ones(n**3))


# ---- sources: ours, the references, the known bad ------------------------------------------------------


def epoch_order(n: int, seed: int, epoch: int) -> Order:
    """Order v1."""
    return EpochOrder(n, seed=seed, epoch=epoch)


@dataclass(frozen=True)
class _Inverse:
    order: EpochOrder

    def __getitem__(self, key: Any, /) -> Ints:
        return self.order.positions(np.arange(self.order.n)[key] if isinstance(key, slice) else key)


def inverse_order(n: int, seed: int, epoch: int) -> Order:
    """Order v1 backwards: the position of each index. Uniform if and only if the order is."""
    return _Inverse(EpochOrder(n, seed=seed, epoch=epoch))


@dataclass(frozen=True)
class Walked:
    """A permutation (or what passes for one) of ``range(size)``, walked until its values lie in ``range(n)``."""

    n: int
    size: int
    encrypt: Callable[[Words], Words]

    def __getitem__(self, key: Any, /) -> Ints:
        positions = np.arange(*key.indices(self.n)) if isinstance(key, slice) else np.asarray(key)
        if self.size > 8 * self.n:  # long walks: tabulate, each turn doubles the paths
            first = self.encrypt(np.arange(self.size, dtype=np.uint64)).astype(np.int32)
            walk = np.where(np.arange(self.size) < self.n, np.arange(self.size), first).astype(np.int32)
            while (walk[first[: self.n]] >= self.n).any():
                walk = walk[walk]
            return walk[first[positions]].astype(np.int64)
        out = np.empty(positions.size, dtype=np.int64)
        flat = positions.reshape(-1).astype(np.uint64)
        for i in range(0, len(out), 16_384):  # pieces that stay in the cache
            piece = self.encrypt(flat[i : i + 16_384])
            while len(outside := np.flatnonzero(piece >= np.uint64(self.n))):
                piece[outside] = self.encrypt(piece[outside])
            out[i : i + 16_384] = piece
        return out.reshape(positions.shape)


def network(n: int, seed: int, epoch: int, *, rounds: int) -> Walked:
    """The network of order v1 with another number of rounds, at any n: with 8 it is order v1 above 4096."""
    digest = hashlib.sha512(f"rankless/v1/n={n}/seed={seed}/epoch={epoch}".encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").astype(np.uint64)
    k, b = halves(n)
    v = min(31, (b - 1).bit_length() + 8)
    bits, low, mask = np.uint64(k), np.uint64((1 << k) - 1), np.uint64(0xFFFFFFFF)

    def mix(half: Words, j: int, top: int) -> Words:
        t = (half * (words[2 * j] | np.uint64(1)) + words[2 * j + 1]) & mask
        t = ((t ^ (t >> np.uint64(15))) * np.uint64(0x9E3779B1)) & mask
        return np.asarray(t >> np.uint64(32 - top))

    def encrypt(values: Words) -> Words:
        left, right = values >> bits, values & low
        for j in range(rounds):
            if j % 2:
                right = right ^ mix(left, j, k)
            else:
                left = (left + mix(right, j, v)) % np.uint64(b)
        return np.asarray((left << bits) | right)

    return Walked(n, b << k, encrypt)


def _seed_sequence(seed: int) -> list[int]:
    """Four words of the C++ standard's ``std::seed_seq{seed}``, [rand.util.seedseq]."""
    words, mask = [0x8B8B8B8B] * 4, 0xFFFFFFFF
    for k in range(8):
        a, b, c, d = k % 4, (k + 1) % 4, (k + 2) % 4, (k + 3) % 4
        if k < 4:
            t = words[a] ^ words[b] ^ words[d]
            first = 1664525 * (t ^ (t >> 27)) & mask
            second = (first + (1, 1 + seed, 2, 3)[k]) & mask
            words[b], words[c] = (words[b] + first) & mask, (words[c] + second) & mask
        else:
            t = (words[a] + words[b] + words[d]) & mask
            first = 1566083941 * (t ^ (t >> 27)) & mask
            second = (first - a) & mask
            words[b], words[c] = words[b] ^ first, words[c] ^ second
        words[a] = second
    return words


def grain_like(n: int, seed: int, epoch: int) -> Walked:
    """Grain's index_shuffle: 4 rounds of SIMON's (x<<<1 & x<<<8) ^ x<<<2 on an even block of >= 16 bits, walked.

    The block has ceil(log2(n - 1)) bits rounded up to even, which is one too few for n = 2^(2j) + 1, j >= 8; the key
    is the sum seed + epoch.
    """
    keys = [np.uint64(word) for word in _seed_sequence((seed + epoch) % 2**32)]
    bits = math.ceil(math.log2(max(2, n - 1)))
    width = max(16, bits + bits % 2) // 2
    mask = np.uint64((1 << width) - 1)

    def rotate(x: Words, by: int) -> Words:
        by %= width
        return np.asarray(((x << np.uint64(by)) | (x >> np.uint64(width - by))) & mask)

    def encrypt(values: Words) -> Words:
        left, right = (values >> np.uint64(width)) & mask, values & mask
        for key in keys:
            left, right = right, left ^ (rotate(right, 1) & rotate(right, 8)) ^ rotate(right, 2) ^ (key & mask)
        return np.asarray((left << np.uint64(width)) | right)

    return Walked(n, 1 << 2 * width, encrypt)


def affine(n: int, seed: int, epoch: int) -> Walked:
    """a * position + b mod n, with a coprime to n."""
    rng = np.random.default_rng([n, seed, epoch])
    high = n if n > 2**33 else min(n, 2**63 // n)  # up to 2^33 in 64 bits, beyond it in Python's ints
    a = next(a for a in iter(lambda: int(rng.integers(1, max(2, high))), 0) if math.gcd(a, n) == 1)
    b = int(rng.integers(n))

    def encrypt(values: Words) -> Words:
        if n <= 2**33:
            return np.asarray((values * np.uint64(a) + np.uint64(b)) % np.uint64(n))
        return np.array([(a * value + b) % n for value in values.tolist()], dtype=np.uint64)

    return Walked(n, n, encrypt)


def block_shuffle(n: int, seed: int, epoch: int) -> Order:
    """Blocks of 2^k indices in random order, each shuffled inside: what shuffle buffers over shards come to."""
    rng = np.random.default_rng([n, seed, epoch])
    size = 1 << halves(n)[0]
    whole = n // size * size
    blocks = rng.permuted(rng.permutation(np.arange(whole).reshape(-1, size)), axis=1)
    return np.concatenate([blocks.ravel(), rng.permutation(np.arange(whole, n))])


@dataclass(frozen=True)
class _Distinct:
    """Uniform distinct values where a whole permutation is too long: of one call; another call draws anew."""

    n: int
    key: tuple[int, ...]

    def __getitem__(self, positions: Ints, /) -> Ints:
        rng = np.random.default_rng([*self.key, positions.size, int(positions.flat[-1])])
        values = rng.integers(self.n, size=positions.size)
        while len(twice := (ordered := np.sort(values))[1:][ordered[1:] == ordered[:-1]]):
            again = twice[np.minimum(np.searchsorted(twice, values), len(twice) - 1)] == values
            values[again] = rng.integers(self.n, size=np.count_nonzero(again))  # all of them: no value is preferred
        return values.reshape(positions.shape)


def numpy_permutation(n: int, seed: int, epoch: int) -> Order:
    """numpy's Generator.permutation; beyond 10^6, as many distinct Generator.integers as are looked at."""
    if n > FULL_MAX:
        return _Distinct(n, (n, seed, epoch))
    return np.random.default_rng([n, seed, epoch]).permutation(n)


def _torch_permutation(n: int, seed: int) -> Order:
    import torch

    return np.asarray(torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy())


def torch_permutation(n: int, seed: int, epoch: int) -> Order:
    """torch.randperm with a hashed key."""
    return _torch_permutation(n, int.from_bytes(hashlib.sha256(f"{n}/{seed}/{epoch}".encode()).digest()[:4], "little"))


def torch_seed_plus_epoch(n: int, seed: int, epoch: int) -> Order:
    """torch.randperm keyed by seed + epoch, as DistributedSampler does."""
    return _torch_permutation(n, seed + epoch)


def epoch_repeats(n: int, seed: int, epoch: int) -> Order:
    """Several permutations in one pass."""
    return EpochRepeats(n, 4 * n, seed=seed, epoch=epoch)


def same_again(n: int, seed: int, epoch: int) -> Order:
    """One permutation four times."""
    return np.tile(EpochOrder(n, seed=seed, epoch=epoch)[:], 4)


def next_epochs(n: int, seed: int, epoch: int) -> Order:
    """The orders of epoch, epoch + 1, ... in one pass."""
    return np.concatenate([EpochOrder(n, seed=seed, epoch=epoch + j)[:] for j in range(4)])


def epoch_draws(n: int, seed: int, epoch: int) -> Order:
    """Draws with replacement."""
    return EpochDraws(n, DRAWS, seed=seed, epoch=epoch)


def numpy_integers(n: int, seed: int, epoch: int) -> Order:
    """numpy's Generator.integers."""
    return np.random.default_rng([n, seed, epoch]).integers(n, size=DRAWS)


def modulo_draws(n: int, seed: int, epoch: int) -> Order:
    """64-bit words mod n: the low indices too often."""
    words = np.random.default_rng([n, seed, epoch]).integers(2**64, size=DRAWS, dtype=np.uint64)
    return np.asarray(words % np.uint64(n), dtype=np.int64)


def one_word_draws(n: int, seed: int, epoch: int) -> Order:
    """floor(word * n / 2^64) of one 64-bit word at any n: uneven within each three indices at n = 3 * 2^61."""
    words = np.random.default_rng([n, seed, epoch]).integers(2**64, size=DRAWS, dtype=np.uint64)
    if n < 2**31:
        high, low, factor, half = words >> np.uint64(32), words & np.uint64(2**32 - 1), np.uint64(n), np.uint64(32)
        return np.asarray((high * factor + (low * factor >> half)) >> half, dtype=np.int64)
    return np.array([word * n >> 64 for word in words.tolist()], dtype=np.int64)


def order_as_draws(n: int, seed: int, epoch: int) -> Order:
    """No draws at all, but a permutation (again and again where n is small)."""
    return EpochRepeats(n, DRAWS, seed=seed, epoch=epoch)


@dataclass(frozen=True)
class Entry:
    """A source, how it is tested, and whether it ought to pass (None: known to lie between)."""

    source: Source
    good: bool | None = False
    kind: str = "orders"  # or "repeats", "draws"
    largest: int = 2**63 - 1


ENTRIES: dict[str, Entry] = {
    "EpochOrder (order v1)": Entry(epoch_order, good=True),
    "EpochOrder, inverse": Entry(inverse_order, good=True),
    "numpy Generator.permutation": Entry(numpy_permutation, good=True),
    "torch.randperm": Entry(torch_permutation, good=True, largest=FULL_MAX),
    "torch.randperm(seed + epoch)": Entry(torch_seed_plus_epoch, largest=FULL_MAX),
    "Grain's index_shuffle (4 rounds)": Entry(grain_like),
    "v1's network, 6 rounds": Entry(partial(network, rounds=6), good=None),
    "v1's network, 5 rounds": Entry(partial(network, rounds=5)),
    "v1's network, 4 rounds": Entry(partial(network, rounds=4)),
    "v1's network, 3 rounds": Entry(partial(network, rounds=3)),
    "v1's network, 2 rounds": Entry(partial(network, rounds=2)),
    "affine map a*i + b mod n": Entry(affine),
    "two-level block shuffle": Entry(block_shuffle, largest=FULL_MAX),
    "EpochRepeats": Entry(epoch_repeats, good=True, kind="repeats"),
    "repeats: the same order again": Entry(same_again, kind="repeats"),
    "repeats: the next epochs' orders": Entry(next_epochs, kind="repeats"),
    "EpochDraws": Entry(epoch_draws, good=True, kind="draws"),
    "draws: numpy Generator.integers": Entry(numpy_integers, good=True, kind="draws"),
    "draws: 64-bit word mod n": Entry(modulo_draws, kind="draws"),
    "draws: 64-bit word * n >> 64": Entry(one_word_draws, kind="draws"),
    "draws: without replacement": Entry(order_as_draws, kind="draws"),
}


def steps(entry: Entry, plan: Plan) -> Iterator[tuple[str, Callable[[], PValues]]]:
    """The parts of an entry's battery, each with its n as a label."""
    source = entry.source
    if entry.kind != "repeats":
        for n in range(2, plan.small + 1):
            if entry.kind == "orders":
                yield (
                    f"n = {n}",
                    partial(_small, all_permutations, source, n, max(plan.small_keys, 10 * math.factorial(n))),
                )
            else:
                yield f"n = {n}", partial(_small, all_triples, source, n, max(plan.small_keys, 10 * n**3))
    for n, side in getattr(plan, entry.kind).items():
        if n <= entry.largest:
            if entry.kind == "orders":
                yield f"n = {n}", partial(order_tests, source, n, side, plan.keys)
            else:
                yield f"n = {n}", partial(repeat_tests if entry.kind == "repeats" else draw_tests, source, n, side)


def _small(test: Callable[[Source, int, int], float], source: Source, n: int, keys: int) -> PValues:
    return {"small n: all": test(source, n, keys)}


def battery(entry: Entry, plan: Plan) -> PValues:
    """Every p-value of an entry: {"n = 4097, lag 1: top bits": p, ...}."""
    return {f"{label}, {name}": p for label, step in steps(entry, plan) for name, p in step().items()}


def calibration(batteries: int) -> Iterator[PValues]:
    """numpy's permutations under other keys, smaller batteries on three n: their p-values must be uniform."""
    for n, side in ((1_009, 6), (4_097, 4), (10**12, 3)):
        for i in range(1, batteries + 1):
            yield order_tests(partial(_other_key, 1_000 * i), n, side, 128)


def _other_key(shift: int, n: int, seed: int, epoch: int) -> Order:
    return numpy_permutation(n, seed + shift, epoch)


def rejected(found: PValues) -> list[str]:
    """The tests that reject."""
    return [name for name, p in found.items() if not p >= REJECT]


# ---- report -------------------------------------------------------------------------------------------


def family(name: str) -> str:
    """The group of a test: "n = 4097, lag 16: top bits" -> "lags"."""
    group = name.split(", ", 1)[1].rsplit(": ", 1)[0]
    for start, title in {"lag": "lags", "batches": "batches, shards", "rank": "batches, shards"}.items():
        if group.startswith(start):
            return title
    if group.startswith(("epochs", "seeds", "keys (")):
        return "neighbouring keys"
    return group


def summary(results: dict[str, PValues], kind: str) -> list[str]:
    """The README's table: tests, smallest p, rejections of each order."""
    lines = ["| order | tests | rejected at p < 1e-7 | smallest p |", "|---|---:|---:|---:|"]
    for name, found in results.items():
        if ENTRIES[name].kind == kind:
            smallest = min(found.values())
            shown = f"{smallest:.1e}" if smallest > 1e-300 else "< 1e-300"
            lines.append(f"| {name} | {len(found)} | {len(rejected(found))} | {shown} |")
    return lines


def by_family(results: dict[str, PValues]) -> list[str]:
    """Rejections of each order by group of tests."""
    orders = {name: found for name, found in results.items() if ENTRIES[name].kind == "orders"}
    families = list(dict.fromkeys(family(test) for found in orders.values() for test in found))
    lines = ["| order | " + " | ".join(families) + " |", "|---|" + "---:|" * len(families)]
    for name, found in orders.items():
        cells = []
        for title in families:
            mine = {test: p for test, p in found.items() if family(test) == title}
            cells.append(f"{len(rejected(mine))} of {len(mine)}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def by_size(results: dict[str, PValues], plan: Plan) -> list[str]:
    """Rejections of each order by n."""
    labels = ["n <= 6", *(f"n = {n}" for n in plan.orders)]
    lines = ["| order | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    for name, found in results.items():
        if ENTRIES[name].kind == "orders":
            cells = []
            for label in labels:
                mine = {
                    t: p for t, p in found.items() if t.startswith(f"{label},") or (label == "n <= 6" and "small" in t)
                }
                cells.append(f"{len(rejected(mine))} of {len(mine)}" if mine else "-")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def parities(sizes: Iterable[int]) -> list[str]:
    """A table of odd permutations among the orders of 40 seeds."""
    lines = ["| n | b | order v1 | numpy |", "|---:|---:|---:|---:|"]
    for n in sizes:
        odd = [
            odd_permutations(np.stack([f(n, i, 0)[0:n] for i in range(40)])) for f in (epoch_order, numpy_permutation)
        ]
        lines.append(f"| {n:,} | {halves(n)[1]} | {odd[0]} | {odd[1]} |")
    return lines


def good_p_values(results: dict[str, PValues], names: Iterable[str]) -> Floats:
    """All p-values of these orders."""
    return np.array([p for name in names for p in results[name].values()])


def uniformity(p_values: Floats) -> float:
    """Are p-values uniform on (0, 1)? Kolmogorov and Smirnov's p."""
    return float(stats.kstest(p_values, "uniform").pvalue)


def markdown(results: dict[str, PValues], seconds: dict[str, float], calibrating: Floats) -> str:
    """The whole report."""
    good = [name for name in results if ENTRIES[name].good]
    total = sum(len(found) for found in results.values())
    all_good = good_p_values(results, good)
    lines = [
        "# Quality of the order",
        "",
        f"Written by `python -m benchmarks.quality`: {total:,} tests in {sum(seconds.values()) / 60:.0f} CPU minutes. "
        f"Keys: seeds and epochs from {FIRST_KEY} on and from 0 on, chosen before the first run. A test rejects at "
        f"p < {REJECT:g}, so that one run in 1,000 has a false alarm anywhere. All p are two-sided, "
        "but for the smallest ones of the power-of-two labellings.",
        "",
        f"Among the {len(all_good):,} tests of the {len(good)} that ought to pass, the smallest p is "
        f"{all_good.min():.1e} (about {1 / len(all_good):.0e} is due) and {len(all_good[all_good < REJECT])} reject.",
        "",
        "## Permutations",
        "",
        *summary(results, "orders"),
        "",
        "torch.randperm and the block shuffle are made whole and so stop at 10^6. numpy's stands for uniform "
        "permutations: beyond 10^6 it draws distinct integers. Grain's index_shuffle was written anew from "
        "the facts and gives the values of grain 0.2.18; its key is seed + epoch. "
        "Up to 4,096 order v1 is a table; the rows of its network use the network at every n. With eight rounds it is "
        "order v1 above 4,096. Five rounds are seen up to "
        "2^32 + 1; beyond it their pairs would take more than 10^7 positions.",
        "",
        "## Several permutations in one pass, draws with replacement",
        "",
        *summary(results, "repeats"),
        *summary(results, "draws")[2:],
        "",
        "## Calibration",
        "",
        f"Are the laws right? {len(calibrating):,} p-values of numpy's Generator.permutation, from {3 * BATTERIES} "
        "smaller batteries under other keys than those above (n = 1,009, 4,097 and 10^12):",
        "",
        "| uniform? Kolmogorov-Smirnov p | below 0.5 | below 0.1 | below 0.01 | below 0.001 | smallest |",
        "|---:|---:|---:|---:|---:|---:|",
        f"| {uniformity(calibrating):.2g} | "
        + " | ".join(f"{(calibrating < p).mean():.2%}" for p in (0.5, 0.1, 0.01, 0.001))
        + f" | {calibrating.min():.1e} |",
        "",
        "The same question to the one battery of each order above, whose tests share data:",
        "",
        "| order | Kolmogorov-Smirnov p | mean of the p-values |",
        "|---|---:|---:|",
        *(
            f"| {name} | {uniformity(p_values):.2g} | {p_values.mean():.3f} |"
            for name in good
            for p_values in [good_p_values(results, [name])]
        ),
        "",
        "![p-values](quality.pvalues.png)",
        "",
        "## Rejections by kind of test",
        "",
        *by_family(results),
        "",
        "## Rejections by n",
        "",
        *by_size(results, FULL),
        "",
        "![orders of 4,096](quality.orders.png)",
        "",
        "## Known and accepted",
        "",
        "Where b = ceil(n / 2^k) is odd, every key gives an order of the same parity: one bit, which only all of it "
        "shows. No test above looks for it. Odd permutations among 40 seeds:",
        "",
        *parities((65_536, 65_537, 69_632, 100_000)),
        "",
    ]
    return "\n".join(lines)


def as_json(results: dict[str, PValues], seconds: dict[str, float], calibrating: Floats) -> str:
    """Every p-value: tests down, orders across."""
    tests = {
        kind: list(dict.fromkeys(t for n, f in results.items() if ENTRIES[n].kind == kind for t in f)) for kind in KINDS
    }
    document = {
        "reject_below": REJECT,
        "first_key": FIRST_KEY,
        "calibration": {"p_values": len(calibrating), "kolmogorov_smirnov_p": float(f"{uniformity(calibrating):.4g}")},
        "cpu_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "tests": {name: len(found) for name, found in results.items()},
        "rejected": {name: len(rejected(found)) for name, found in results.items()},
        "smallest_p": {name: float(f"{min(found.values()):.4g}") for name, found in results.items()},
    }
    parts = [json.dumps(document, indent=1)[:-2]]
    for kind in KINDS:
        names = [name for name in results if ENTRIES[name].kind == kind]
        rows = [json.dumps(["test", *names])]
        for test in tests[kind]:
            row = [results[name].get(test) for name in names]
            rows.append(json.dumps([test, *(None if p is None else float(f"{p:.3g}") for p in row)]))
        parts.append(f' "{kind}": [\n  ' + ",\n  ".join(rows) + "\n ]")
    return ",\n".join(parts) + "\n}\n"


def draw_pictures(results: dict[str, PValues], folder: Path) -> None:
    """Orders of 4,096 as scatter plots, and the p-values of the good orders as histograms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    n, key = 4_096, (FIRST_KEY, FIRST_KEY)
    shown = [
        "EpochOrder (order v1)",
        "torch.randperm",
        "Grain's index_shuffle (4 rounds)",
        "affine map a*i + b mod n",
        "v1's network, 2 rounds",
        "v1's network, 3 rounds",
        "v1's network, 4 rounds",
        "two-level block shuffle",
    ]
    figure, axes = pyplot.subplots(2, 4, figsize=(14, 7.4), layout="constrained")
    for axis, name in zip(axes.flat, shown, strict=True):
        axis.plot(np.arange(n), ENTRIES[name].source(n, *key)[0:n], ",", color="black")
        axis.set_title(f"{name}\nrejected by {len(rejected(results[name]))} of {len(results[name])} tests", fontsize=10)
        axis.set(xticks=[0, n], yticks=[0, n], xlim=(0, n), ylim=(0, n), aspect="equal")
    figure.supxlabel("position")
    figure.supylabel("index")
    figure.savefig(folder / "quality.orders.png", dpi=110)

    good = [name for name in results if ENTRIES[name].good]
    figure, axes = pyplot.subplots(2, math.ceil(len(good) / 2), figsize=(14, 6), layout="constrained")
    for axis in axes.flat[len(good) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, good, strict=False):
        p_values = good_p_values(results, [name])
        axis.hist(p_values, bins=20, range=(0, 1), color="0.6")
        axis.axhline(len(p_values) / 20, color="black", linewidth=1)
        axis.set_title(f"{name}\n{len(p_values)} tests, smallest p {p_values.min():.1e}", fontsize=10)
    figure.supxlabel("p-value")
    figure.supylabel("tests")
    figure.savefig(folder / "quality.pvalues.png", dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the battery; 0 if every order that ought to pass does, and no other."""
    from tqdm import tqdm

    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description="Test the order's quality.")
    parser.add_argument("--quick", action="store_true", help="a small part, to the terminal only")
    plan = QUICK if parser.parse_args(arguments).quick else FULL
    results: dict[str, PValues] = {}
    seconds: dict[str, float] = {}
    work = [(name, list(steps(entry, plan))) for name, entry in ENTRIES.items()]
    calibrating: list[float] = []
    batteries = BATTERIES if plan is FULL else 0
    with tqdm(total=sum(len(parts) for _, parts in work) + 3 * batteries, unit="part") as bar:
        for name, parts in work:
            start = time.process_time()
            results[name] = {}
            for label, step in parts:
                bar.set_description(f"{name}, {label}")
                results[name] |= {f"{label}, {test}": p for test, p in step().items()}
                bar.update()
            seconds[name] = time.process_time() - start
        bar.set_description("calibration")
        for found in calibration(batteries):
            calibrating += found.values()
            bar.update()
    for kind in KINDS:
        print("\n".join(summary(results, kind)))
    if plan is FULL:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "quality.json").write_text(as_json(results, seconds, np.array(calibrating)), encoding="utf-8")
        (RESULTS / "quality.md").write_text(markdown(results, seconds, np.array(calibrating)), encoding="utf-8")
        draw_pictures(results, RESULTS)
    wrong = [name for name, found in results.items() if ENTRIES[name].good is bool(rejected(found))]
    for name in wrong:
        print(f"unexpected: {name}: {rejected(results[name])}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
