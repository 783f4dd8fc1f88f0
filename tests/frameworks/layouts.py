"""What each rank must get, in plain Python: written down once, so that no framework is measured by our own samplers."""

from __future__ import annotations

from rankless_sampler import EpochOrder

Batches = list[list[int]]


def cut(indices: list[int], size: int) -> Batches:
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def dealt_by_batch(n: int, seed: int, epoch: int, size: int, world_size: int, rank: int) -> Batches:
    """accelerate's layout: whole batches in turn, the last step filled up from the head (but not on one process)."""
    order = list(EpochOrder(n, seed=seed, epoch=epoch))
    if world_size > 1:
        while len(order) % (size * world_size):
            order.append(order[len(order) - n])
    return cut(order, size)[rank::world_size]


def dealt_by_sample(n: int, seed: int, epoch: int, size: int, world_size: int, rank: int) -> Batches:
    """torch's DistributedSampler's layout: single samples in turn, filled up from the head."""
    order = list(EpochOrder(n, seed=seed, epoch=epoch))
    while len(order) % world_size:
        order.append(order[len(order) - n])
    return cut(order[rank::world_size], size)
