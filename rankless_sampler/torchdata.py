"""torchdata: our sampler's state out of a StatefulDataLoader's, so that a resume may change workers, batches and ranks.

Knows the layout of StatefulDataLoader.state_dict() (torchdata 0.11), but does not import torchdata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankless_sampler.order import check_int
from rankless_sampler.samplers import State

__all__ = ["sampler_state"]


def sampler_state(loader_state: Mapping[str, Any], *, samples_per_step: int | None = None) -> State:
    """The state of our sampler at the last batch that a StatefulDataLoader gave out.

    ``sampler.load_state_dict(sampler_state(loader_state))`` in place of ``loader.load_state_dict(loader_state)`` goes
    on exactly there with any num_workers, which torchdata itself refuses to change, any batch size and number of ranks.

    Args:
        loader_state: ``StatefulDataLoader.state_dict()`` of a loader over any sampler of this package.
        samples_per_step: samples that one step takes over all ranks, batch_size * num_replicas. Needed only where the
            state does not tell: between two snapshots (``snapshot_every_n_steps > 1``), before the first of them.
    Returns:
        A state for the `load_state_dict` of a sampler of the same dataset and kind.
    Raises:
        ValueError: the state holds no state of ours, or `samples_per_step` is needed, or < 1.
    """
    if samples_per_step is not None:
        samples_per_step = check_int("samples_per_step", samples_per_step, 1)
    try:
        snapshot = loader_state.get("_snapshot")
        main = loader_state if snapshot is None else snapshot["_main_snapshot"]
        steps_since = 0 if snapshot is None else check_int("steps since", loader_state["_steps_since_snapshot"], 0)
        batches = main["_sampler_iter_state"]
        found = batches.get("sampler_iter_state", batches)
        state: State = {key: found[key] for key in ("algorithm", "num_samples", "seed", "epoch", "position")}
        if "data_length" in found:
            state["data_length"] = found["data_length"]
        length = check_int("num_samples", found["num_samples"])
        position = check_int("position", found["position"])
        finished = loader_state["_iterator_finished"]
        if not isinstance(finished, bool):
            raise TypeError(f"_iterator_finished is {finished!r}")
        if finished:  # though with drop_last the last snapshot may lie before the end
            position = length
        elif steps_since:
            if samples_per_step is None:
                samples_per_step = _samples_per_step(main, batches, found)
            position = min(position + steps_since * samples_per_step, length)
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            "loader_state must be the state_dict() of a torchdata StatefulDataLoader over a sampler of this package, "
            f"but its sampler's state is not there ({type(error).__name__}: {error})"
        ) from None
    state["position"] = position
    return state


def _samples_per_step(main: Mapping[str, Any], batches: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    if batches is found:  # our own iterator: its item is the loader's step
        return check_int("stride", found.get("stride", 1), 1)
    samples, steps = batches["samples_yielded"], main["_sampler_iter_yielded"]
    if not steps or samples % steps:
        raise ValueError(
            "samples_per_step must be given: the state was taken before the loader's first snapshot, and does not tell "
            "how large a step is. Pass samples_per_step=batch_size * num_replicas, or use snapshot_every_n_steps=1"
        )
    return int(samples // steps * found.get("stride", 1))
