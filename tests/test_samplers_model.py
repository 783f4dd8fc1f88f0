"""SeededEpochSampler against a model of it: whatever is done in whatever order, the two agree."""

from __future__ import annotations

import copy
import io
import itertools
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from torch.utils.data import Dataset

from rankless_sampler import EpochOrder, SeededEpochSampler
from rankless_sampler.order import EpochDraws, EpochRepeats

State = dict[str, Any]

# ---- the model: design.md, "Epochs: who counts" and "State", with lists for iterators -----------------


class RefusedError(Exception):
    """The real one raises ValueError here."""


class Pass:
    """One walk of one iterator."""

    def __init__(self, model: Model) -> None:
        self.model, self.at, self.restored, self.told, self.ended = model, None, False, 0, False

    def state(self) -> State:
        return dict(self.at or self.model.place())

    def bind(self, place: State, *, restored: bool) -> None:
        self.at, self.restored, self.told = dict(place), restored, self.model.told
        self.model.latest, self.model.resume = self, None

    def take(self, count: int) -> list[int]:
        model = self.model
        if self.ended or count == 0:
            return []
        if self.at is None:  # binds when its first index is taken
            place = model.place()
            if not model.fits(place):
                self.ended = True
                raise RefusedError
            model.notice_early_stop(place)
            self.bind(place, restored=model.resume is not None)
        items = model.indices(self.at)[self.at["position"] :][:count]
        self.at["position"] += len(items)
        self.ended = len(items) < count  # StopIteration
        if self.ended or self.at["position"] == self.at["num_samples"]:
            model.reached_the_end(self)
        return items


class Model:
    def __init__(self, n: int, seed: int, num_samples: int | None, replacement: bool) -> None:
        self.n, self.seed, self.num_samples, self.replacement = n, seed, num_samples, replacement
        self.epoch, self.caller_counts, self.resume, self.latest = 0, False, None, None
        self.told = 0  # how often set_epoch or a load has said what is due
        self.warned, self.warnings = False, 0

    def start(self) -> State:
        length = self.num_samples or self.n
        names = {"algorithm": "v1-replacement" if self.replacement else "v1", "num_samples": length}
        names |= {"seed": self.seed, "epoch": self.epoch, "position": 0}
        return names | ({} if length == self.n else {"data_length": self.n})

    def place(self) -> State:
        """Where the next pass starts."""
        return self.resume or self.start()

    def fits(self, state: State) -> bool:
        return all(state.get(key) == self.start().get(key) for key in ("algorithm", "num_samples", "data_length"))

    def indices(self, place: State) -> list[int]:
        n, length = place.get("data_length", place["num_samples"]), place["num_samples"]
        key = {"seed": place["seed"], "epoch": place["epoch"]}
        if self.replacement:
            return EpochDraws(n, length, **key)[:].tolist()
        return EpochRepeats(n, length, **key)[:].tolist() if length > n else EpochOrder(n, **key)[:length].tolist()

    def notice_early_stop(self, place: State) -> None:
        before = self.latest.at if self.latest else {"epoch": None}
        again = before["epoch"] == place["epoch"] and before["position"] > 0 and self.resume is None
        if again and not self.caller_counts and not self.warned:
            self.warned, self.warnings = True, self.warnings + 1

    def reached_the_end(self, walk: Pass) -> None:
        if (walk.restored or not self.caller_counts) and walk.told == self.told and walk.at["epoch"] == self.epoch:
            self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.caller_counts, self.resume, self.told = epoch, True, None, self.told + 1

    def state(self, position: int | None = None) -> State:
        latest = self.latest
        if position is not None:
            return {**(latest.at if latest and latest.told == self.told else self.place()), "position": position}
        return dict(latest.at if latest and latest.at["epoch"] == self.epoch else self.place())

    def load(self, state: State, into: Pass | None = None) -> None:
        if not self.fits(state):
            raise RefusedError
        self.warnings += state["seed"] != self.seed
        at_end = 0 < state["position"] == state["num_samples"]  # means the start of the next epoch
        self.seed, self.epoch, self.told = state["seed"], state["epoch"] + at_end, self.told + 1
        self.latest, self.resume = None, ({**state, "epoch": self.epoch, "position": 0} if at_end else dict(state))
        if into is not None:
            into.bind(state, restored=True)

    def copied(self) -> Model:
        other = copy.copy(self)
        other.latest, other.warnings = None, 0
        return other


# ---- the machine -------------------------------------------------------------------------------------


class Growing(Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


@dataclass
class Twin:
    """A sampler and its model."""

    sampler: SeededEpochSampler
    model: Model

    def agree(self) -> None:
        assert self.sampler.epoch == self.model.epoch
        assert self.sampler.seed == self.model.seed
        assert self.sampler.state_dict() == self.model.state()


@dataclass
class Walk:
    """An iterator and its model."""

    twin: Twin
    iterator: Any
    model: Pass


def pickled(sampler: SeededEpochSampler) -> SeededEpochSampler:
    return pickle.loads(pickle.dumps(sampler))


def through_json(state: State) -> Any:
    return json.loads(json.dumps(state))


def through_torch(state: State) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


SIZES = st.one_of(st.integers(0, 12), st.sampled_from([1_023, 1_024, 1_025, 5_000, 9_217, 40_000]))
COUNTS = st.one_of(st.integers(0, 8), st.sampled_from([1_023, 1_024, 1_025, 9_000, 33_000, 10**9]))


class SamplerMachine(RuleBasedStateMachine):
    twins = Bundle("twins")
    walks = Bundle("walks")
    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.all_twins: list[Twin] = []
        self.all_walks: list[Walk] = []
        self.watch = self.may_set_epoch = False

    def both(self, twin: Twin, real: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """Do the same to both: same result, same refusal, same warnings."""
        before = twin.model.warnings
        try:
            wanted = model()
        except RefusedError:
            with pytest.raises(ValueError, match=r"num_samples|data_length|algorithm"):
                real()
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = real()
        assert result == wanted
        assert [warning.category for warning in caught] == [UserWarning] * (twin.model.warnings - before)
        return result

    @initialize(target=twins, data=st.data(), watch=st.booleans(), may_set_epoch=st.booleans())
    def make(self, data: st.DataObject, watch: bool, may_set_epoch: bool) -> Any:
        self.watch = watch  # asking for a state must change nothing: half of the runs do without
        self.may_set_epoch = may_set_epoch  # there is no way back to where the sampler counts
        made = []
        for _ in range(2):
            num_samples = data.draw(st.one_of(st.none(), st.integers(1, 20)))
            n = data.draw(SIZES if num_samples is None else SIZES.filter(bool))
            seed, replacement = data.draw(st.integers(-3, 3)), data.draw(st.booleans())
            sampler = SeededEpochSampler(Growing(n), seed, replacement=replacement, num_samples=num_samples)
            made.append(Twin(sampler, Model(n, seed, num_samples, replacement)))
        same = made[0].model
        twin = SeededEpochSampler(Growing(same.n), 7, replacement=same.replacement, num_samples=same.num_samples)
        made.append(Twin(twin, Model(same.n, 7, same.num_samples, same.replacement)))  # takes the first one's states
        self.all_twins += made
        return multiple(*made)

    @rule(target=walks, twin=twins)
    def iterate(self, twin: Twin) -> Walk:
        walk = Walk(twin, iter(twin.sampler), Pass(twin.model))
        self.all_walks.append(walk)
        return walk

    @rule(walk=walks, count=COUNTS)
    def take(self, walk: Walk, count: int) -> None:
        self.both(walk.twin, lambda: list(itertools.islice(walk.iterator, count)), lambda: walk.model.take(count))

    @rule(walk=walks, short=st.integers(0, 2))
    def take_all_without_stopiteration(self, walk: Walk, short: int) -> None:
        place = walk.model.state()
        self.take(walk, max(place["num_samples"] - place["position"] - short, 0))

    @rule(walk=walks)
    def exhaust(self, walk: Walk) -> None:
        self.both(walk.twin, lambda: list(walk.iterator), lambda: walk.model.take(10**9))

    @rule(twin=twins)
    def walk_a_whole_pass(self, twin: Twin) -> None:
        self.both(twin, lambda: list(twin.sampler), lambda: Pass(twin.model).take(10**9))

    @rule(twin=twins, count=st.integers(1, 3))
    def peek(self, twin: Twin, count: int) -> None:
        self.both(twin, lambda: list(itertools.islice(twin.sampler, count)), lambda: Pass(twin.model).take(count))

    @rule(walk=consumes(walks))
    def drop(self, walk: Walk) -> None:
        self.all_walks.remove(walk)
        walk.iterator = None

    @precondition(lambda self: self.may_set_epoch)
    @rule(twin=twins, epoch=st.integers(0, 3))
    def set_epoch(self, twin: Twin, epoch: int) -> None:
        self.both(twin, lambda: twin.sampler.set_epoch(epoch), lambda: twin.model.set_epoch(epoch))

    @rule(target=states, twin=twins, way=st.sampled_from([dict, through_json, through_torch]))
    def save(self, twin: Twin, way: Callable[[Any], Any]) -> Any:
        return way(self.both(twin, twin.sampler.state_dict, twin.model.state))

    @rule(target=states, walk=walks)
    def save_iterator(self, walk: Walk) -> Any:
        return self.both(walk.twin, walk.iterator.state_dict, walk.model.state)

    @rule(target=states, twin=twins, data=st.data())
    def save_at(self, twin: Twin, data: st.DataObject) -> Any:
        position = data.draw(st.integers(0, twin.model.state(position=0)["num_samples"]))
        return self.both(twin, lambda: twin.sampler.state_dict(position=position), lambda: twin.model.state(position))

    @rule(twin=twins, state=states)
    def load(self, twin: Twin, state: State) -> None:
        self.both(twin, lambda: twin.sampler.load_state_dict(state), lambda: twin.model.load(state))

    @rule(walk=walks, state=states)
    def load_iterator(self, walk: Walk, state: State) -> None:
        if walk.model.ended:
            with pytest.raises(RuntimeError, match=r"iter\(\)"):
                walk.iterator.load_state_dict(state)
            return
        self.both(
            walk.twin,
            lambda: walk.iterator.load_state_dict(state),
            lambda: walk.twin.model.load(state, walk.model),
        )

    @rule(twin=twins, epoch=st.integers(0, 3), data=st.data())
    def load_any_place(self, twin: Twin, epoch: int, data: st.DataObject) -> None:
        start = twin.model.start()
        self.load(twin, {**start, "epoch": epoch, "position": data.draw(st.integers(0, start["num_samples"]))})

    @rule(walk=walks, taken=st.integers(0, 3), epoch=st.integers(0, 3), then=COUNTS, data=st.data())
    def load_any_place_into_iterator(self, walk: Walk, taken: int, epoch: int, then: int, data: st.DataObject) -> None:
        self.take(walk, taken)
        start = walk.twin.model.start()
        position = data.draw(st.integers(0, start["num_samples"]))
        self.load_iterator(walk, {**start, "epoch": epoch, "position": position})
        self.take(walk, then)

    @rule(target=walks, twin=twins, state=states)
    def resume_as_torchdata_does(self, twin: Twin, state: State) -> Any:
        self.load(twin, state)
        self.iterate(twin)
        walk = self.iterate(twin)
        self.load_iterator(walk, state)
        return walk

    @rule(target=twins, twin=twins, way=st.sampled_from([copy.copy, copy.deepcopy, pickled]))
    def copy(self, twin: Twin, way: Callable[[Any], Any]) -> Any:
        if len(self.all_twins) > 6:
            return multiple()
        sampler = way(twin.sampler)
        sampler.data_source = Growing(twin.model.n)  # copy.copy shares it
        other = Twin(sampler, twin.model.copied())
        self.all_twins.append(other)
        return other

    @rule(twin=twins, by=st.sampled_from([-1, 0, 0, 0, 1]))  # seldom: no older state fits any more
    def grow_or_shrink(self, twin: Twin, by: int) -> None:
        n = twin.model.n + by
        if n < 0 or (n == 0 and twin.model.num_samples is not None):
            return
        twin.model.n = twin.sampler.data_source.n = n

    @rule(twin=twins)
    def look(self, twin: Twin) -> None:
        twin.agree()
        assert len(twin.sampler) == (twin.model.n if twin.model.num_samples is None else twin.model.num_samples)
        if not twin.model.replacement:
            assert twin.sampler.order() == EpochOrder(twin.model.n, seed=twin.model.seed, epoch=twin.model.epoch)

    @invariant()
    def agree(self) -> None:
        if self.watch:
            for twin in self.all_twins:
                twin.agree()
            for walk in self.all_walks:
                assert walk.iterator.state_dict() == walk.model.state()

    def teardown(self) -> None:
        for twin in self.all_twins:
            twin.agree()
        for walk in self.all_walks:
            assert walk.iterator.state_dict() == walk.model.state()


SamplerMachine.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSamplerAgainstModel = SamplerMachine.TestCase
