"""Which pass of a loader its state tells of, where several iterators of it live beside each other.

The state is that of the training loop, which is not seen from here. What is seen: who was handed a batch last, and
who has left. Knows no loaders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankless_sampler.samplers import State


@dataclass(eq=False)
class Pass:
    """One walk of a loader's iterator, from its first batch on."""

    begun: State
    restored: bool = False
    generation: int = -1  # the sampler's, when it began
    remainder: int = -1  # accelerate's: samples in its last, uneven step
    at_end: bool = False  # accelerate's end_of_dataloader, at its latest batch
    delivered: int = 0  # batches
    live: bool = True  # neither at its end nor left early

    @property
    def epoch(self) -> int:
        return int(self.begun["epoch"])


class Passes:
    """The passes that are under way, by their latest batch, and the last that was left early."""

    def __init__(self) -> None:
        self.known: list[Pass] = []
        self.opened: Pass | None = None  # the latest to begin

    def open(self, own: Pass) -> None:
        self.keep_live()
        self.opened = own
        self.known.append(own)

    def deliver(self, own: Pass) -> None:
        own.delivered += 1
        if own in self.known:
            self.forget(own)
            self.known.append(own)

    def leave(self, own: Pass) -> None:
        """Its place is kept, unless another pass of that epoch goes on, and is as far: then this was a peek."""
        own.live = False
        if any(other.live and other.epoch == own.epoch and other.delivered >= own.delivered for other in self.known):
            self.forget(own)

    def forget(self, own: Pass) -> None:
        self.known = [other for other in self.known if other is not own]

    def keep_live(self) -> None:
        self.known = [other for other in self.known if other.live]

    def refuse_taken_workers(self, own: Pass, *, persistent: bool) -> None:
        """torch's DataLoader has one set of persistent workers, and the latest iterator takes it.

        Raises:
            RuntimeError: a later iterator has taken the workers from `own`.
        """
        if persistent and own is not self.opened:
            raise RuntimeError(
                "this loader was iterated anew, and with persistent_workers=True the new iterator has taken this one's "
                "workers. Set persistent_workers=False to have two at a time"
            )

    def __reduce__(self) -> tuple[object, ...]:
        copied = [replace(own, live=False) for own in self.known]  # a copy has no iterators
        return Passes, (), {"known": copied, "opened": None}
