"""Shuffling whose order is a value: the same on every rank, whenever it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankless_sampler.order import EpochOrder

if TYPE_CHECKING:
    from rankless_sampler.batching import SeededDistributedSampler, ShardedBatchSampler, check_ranks, shared_seed
    from rankless_sampler.loaders import replace_sampler
    from rankless_sampler.samplers import SeededEpochSampler
    from rankless_sampler.torchdata import sampler_state

__version__ = "0.1.0"

__all__ = [
    "EpochOrder",
    "SeededDistributedSampler",
    "SeededEpochSampler",
    "ShardedBatchSampler",
    "check_ranks",
    "replace_sampler",
    "sampler_state",
    "shared_seed",
]

# torch is imported only when one of these is asked for: EpochOrder serves numpy and JAX users too.
_NEEDS_TORCH = {
    "SeededDistributedSampler": "batching",
    "SeededEpochSampler": "samplers",
    "ShardedBatchSampler": "batching",
    "check_ranks": "batching",
    "replace_sampler": "loaders",
    "sampler_state": "torchdata",
    "shared_seed": "batching",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("accelerate", "lightning", "transformers"):
        return import_module(f"rankless_sampler.{name}")
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | _NEEDS_TORCH.keys())
