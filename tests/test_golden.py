"""Frozen for good: what every sampler, rank view and state gives. A change here breaks somebody's running training.

The order's own golden vectors are in test_order.py; these pin what is built on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from rankless_sampler import EpochOrder, SeededDistributedSampler, SeededEpochSampler, ShardedBatchSampler


def digest(values: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()[:32]


def walk(sampler: Any, *, epoch: int, start: int = 0, items: int = 1_000) -> list[Any]:
    sampler.set_epoch(epoch)
    if start:
        sampler.load_state_dict(sampler.state_dict(position=start))
    return list(islice(sampler, items))


SAMPLERS = {
    "negative seed": lambda: SeededEpochSampler(1_000, -7),
    "negative seed, network": lambda: SeededEpochSampler(5_000, -7),
    "seed beyond 64 bits": lambda: SeededEpochSampler(10**6, 2**70 + 1),
    "num_samples < n": lambda: SeededEpochSampler(5_000, 7, num_samples=300),
    "num_samples > n, table": lambda: SeededEpochSampler(10, 7, num_samples=95),
    "num_samples > n, network": lambda: SeededEpochSampler(4_500, 7, num_samples=9_500),
    "replacement": lambda: SeededEpochSampler(1_000, 7, replacement=True),
    "replacement, num_samples": lambda: SeededEpochSampler(3, 7, replacement=True, num_samples=100),
    "replacement, n > 2^32": lambda: SeededEpochSampler(2**62 + 5, 7, replacement=True),
    "batches": lambda: ShardedBatchSampler(SeededEpochSampler(103, 7), 4, num_replicas=3, rank=1),
    "batches, uneven": lambda: ShardedBatchSampler(
        SeededEpochSampler(103, 7), 4, num_replicas=3, rank=2, even_batches=False
    ),
    "batches, drop_last": lambda: ShardedBatchSampler(
        SeededEpochSampler(103, 7), 4, num_replicas=3, rank=0, drop_last=True
    ),
    "batches, replacement": lambda: ShardedBatchSampler(
        SeededEpochSampler(5_000, 7, replacement=True), 16, num_replicas=2, rank=1
    ),
    "distributed": lambda: SeededDistributedSampler(range(103), 4, 3, seed=7),
    "distributed, drop_last": lambda: SeededDistributedSampler(range(5_003), 4, 2, seed=7, drop_last=True),
    "distributed, in order": lambda: SeededDistributedSampler(range(10), 4, 3, shuffle=False),
}

GOLDEN = {
    "negative seed": "26155730d7827a5ef1219952215ebe4d",
    "negative seed, network": "3bc5b66280dfb209223889285a2a4efe",
    "seed beyond 64 bits": "00a62c0a6107b09b5e3babbd522c9e90",
    "num_samples < n": "797a003f88c1ab62539a10a436d5cbca",
    "num_samples > n, table": "96f0a40e272443c16d689771a3777b53",
    "num_samples > n, network": "6f2e6acc77811127c1429c2f8d59dfda",
    "replacement": "7608fa88848a7b1f31de465d0617e8d5",
    "replacement, num_samples": "8533f9bef7a24eac9aef47407cf88634",
    "replacement, n > 2^32": "f8a8eedefb7295018f9e43a8a04b5892",
    "batches": "c4569cdb61cac96631a67dd774c3410d",
    "batches, uneven": "e25586276985cfab0a8b87d0d2b53604",
    "batches, drop_last": "eed55315c3c9fe017d080bb696d18042",
    "batches, replacement": "7a944bd92d2f44f7ec85a702c31c7056",
    "distributed": "150dc61f8da163053607962bfd392f2b",
    "distributed, drop_last": "33ab6d5582ccfc51d26eb70fcbe31f07",
    "distributed, in order": "ba557b7279735cb39e508e0cb3363ce9",
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gives_what_it_gave_when_v1_was_frozen(name: str) -> None:
    make = SAMPLERS[name]
    got = digest([walk(make(), epoch=0), walk(make(), epoch=3), walk(make(), epoch=3, start=8)])
    assert got == GOLDEN[name]


STATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "permutation": (
        lambda: SeededEpochSampler(1_000, 7),
        {"algorithm": "v1", "num_samples": 1000, "seed": 7, "epoch": 3, "position": 8},
    ),
    "num_samples": (
        lambda: SeededEpochSampler(1_000, -7, num_samples=300),
        {"algorithm": "v1", "num_samples": 300, "seed": -7, "epoch": 3, "position": 8, "data_length": 1000},
    ),
    "replacement": (
        lambda: SeededEpochSampler(1_000, 7, replacement=True),
        {"algorithm": "v1-replacement", "num_samples": 1000, "seed": 7, "epoch": 3, "position": 8},
    ),
    "batches": (
        lambda: ShardedBatchSampler(SeededEpochSampler(1_000, 7), 4, num_replicas=2, rank=1),
        {"algorithm": "v1", "num_samples": 1000, "seed": 7, "epoch": 3, "position": 64},
    ),
    "distributed": (
        lambda: SeededDistributedSampler(range(1_000), 2, 1, seed=7),
        {"algorithm": "v1", "num_samples": 1000, "seed": 7, "epoch": 3, "position": 16},
    ),
    "in order": (
        lambda: SeededDistributedSampler(range(1_000), 2, 1, shuffle=False, seed=7),
        {"algorithm": "sequential", "num_samples": 1000, "seed": 7, "epoch": 3, "position": 16},
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_says_what_it_said_when_v1_was_frozen_and_still_loads(name: str) -> None:
    make, state = STATES[name]
    sampler = make()
    sampler.set_epoch(3)
    whole = iter(sampler)
    for _ in range(8):
        next(whole)
    assert sampler.state_dict() == state
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == list(whole)


def test_epochs_and_repeats_come_from_the_order_of_v1() -> None:
    # The links that the digests above do not spell out.
    assert walk(SeededEpochSampler(50, 7), epoch=3) == list(EpochOrder(50, seed=7, epoch=3))
    assert walk(SeededEpochSampler(50, 7, num_samples=20), epoch=3) == list(EpochOrder(50, seed=7, epoch=3))[:20]
    repeat_1 = int.from_bytes(hashlib.sha512(b"rankless/v1/repeat=1/seed=7").digest()[:16], "little")
    long = walk(SeededEpochSampler(50, 7, num_samples=100), epoch=3)
    assert long == list(EpochOrder(50, seed=7, epoch=3)) + list(EpochOrder(50, seed=repeat_1, epoch=3))
