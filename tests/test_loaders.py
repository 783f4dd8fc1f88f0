"""replace_sampler: the order changes and nothing else, or an error says what would be lost."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import rankless_sampler
from rankless_sampler import EpochOrder, SeededDistributedSampler, SeededEpochSampler, replace_sampler, sampler_state

N, SEED = 53, 7  # 6 batches of 8 and one of 5
CLASSES = [DataLoader, StatefulDataLoader]


def order(epoch: int = 0, n: int = N) -> list[int]:
    return list(EpochOrder(n, seed=SEED, epoch=epoch))


def cut(indices: list[int], size: int, drop_last: bool = False) -> list[list[int]]:
    batches = [indices[i : i + size] for i in range(0, len(indices), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


def walk(loader: Any) -> list[list[int]]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else list(batch) for batch in loader]


def as_list(samples: list[int]) -> list[int]:
    return [*samples]


def remember(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.started_as = worker  # type: ignore[attr-defined]


class Numbers(Dataset[int]):
    started_as: int | None = None

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        assert self.started_as is not None, "worker_init_fn was lost"
        return index


class Lists(Dataset[list[int]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> list[int]:
        return list(index)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_come_in_the_order_of_the_seed(kind: type[DataLoader[int]], drop_last: bool) -> None:
    loader = replace_sampler(kind(range(N), batch_size=8, shuffle=True, drop_last=drop_last), seed=SEED)
    assert type(loader) is kind
    assert [walk(loader) for _ in range(3)] == [cut(order(epoch), 8, drop_last) for epoch in range(3)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_other_argument_is_kept(kind: type[DataLoader[int]]) -> None:
    generator = torch.Generator()
    given: dict[str, Any] = {
        "num_workers": 2,
        "collate_fn": as_list,
        "pin_memory": True,
        "timeout": 30,
        "worker_init_fn": remember,
        "multiprocessing_context": multiprocessing.get_context("spawn"),
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "cpu",
    }
    if kind is StatefulDataLoader:
        given["snapshot_every_n_steps"] = 5
    if hasattr(DataLoader(range(1)), "in_order"):
        given["in_order"] = False
    data = Numbers()
    with pytest.warns(UserWarning, match=r"order came from a `generator`, and comes from seed=7 now"):
        loader = replace_sampler(kind(data, batch_size=8, shuffle=True, drop_last=True, **given), seed=SEED)
    assert loader.dataset is data
    assert (loader.batch_size, loader.drop_last) == (8, True)
    assert {name: getattr(loader, name) for name in given} == given


@pytest.mark.parametrize("kind", CLASSES)
def test_what_was_kept_works_in_the_workers(kind: type[DataLoader[int]]) -> None:
    shuffling = kind(Numbers(), batch_size=8, shuffle=True, num_workers=2, collate_fn=as_list, worker_init_fn=remember)
    loader = replace_sampler(shuffling, SEED)
    assert [walk(loader) for _ in range(2)] == [cut(order(epoch), 8) for epoch in range(2)]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_generator_of_torchdatas_own_is_not_one_that_was_given(kind: type[DataLoader[int]]) -> None:
    replace_sampler(kind(range(N), shuffle=True))  # a warning would be an error


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("replacement", "num_samples"), [(False, None), (False, 20), (False, 70), (True, None), (True, 70)]
)
def test_draws_are_as_many_and_of_the_kind_they_were(
    kind: type[DataLoader[int]], replacement: bool, num_samples: int | None
) -> None:
    sampler = RandomSampler(range(N), replacement=replacement, num_samples=num_samples)
    loader = replace_sampler(kind(range(N), batch_size=8, sampler=sampler), SEED)
    expected = SeededEpochSampler(N, SEED, replacement=replacement, num_samples=num_samples)
    assert walk(loader) == cut(list(expected), 8)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_samplers_batches_are_kept_and_resume(kind: type[DataLoader[int]], drop_last: bool) -> None:
    def build() -> Any:
        batches = BatchSampler(RandomSampler(range(N)), 8, drop_last)
        return replace_sampler(kind(range(N), batch_sampler=batches), SEED)

    assert walk(build()) == cut(order(), 8, drop_last)
    if kind is StatefulDataLoader:  # over torch's own BatchSampler all sampler state is lost
        loader = build()
        assert walk(loader) == cut(order(), 8, drop_last)
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(3)]
        resumed = build()
        resumed.load_state_dict(loader.state_dict())
        assert seen + walk(resumed) == cut(order(1), 8, drop_last)
        assert sampler_state(loader.state_dict())["position"] == 24


@pytest.mark.parametrize("kind", CLASSES)
def test_a_dataset_that_takes_whole_lists_gets_them(kind: type[DataLoader[int]]) -> None:
    def build() -> Any:
        return replace_sampler(
            kind(Lists(), batch_size=None, sampler=BatchSampler(RandomSampler(range(N)), 8, True)), SEED
        )

    loader = build()
    assert [walk(loader) for _ in range(2)] == [cut(order(epoch), 8, True) for epoch in range(2)]
    if kind is StatefulDataLoader:
        batches = iter(loader)
        seen = [list(next(batches)) for _ in range(3)]
        resumed = build()
        resumed.load_state_dict(loader.state_dict())
        assert seen + walk(resumed) == cut(order(2), 8, True)


@pytest.mark.parametrize("kind", CLASSES)
def test_single_samples_stay_single(kind: type[DataLoader[int]]) -> None:
    assert list(replace_sampler(kind(range(N), batch_size=None, shuffle=True), SEED)) == order()


class InPairs(BatchSampler):
    """One that makes batches its own way, from its `sampler`."""

    def __init__(self, sampler: Any, groups: list[int]) -> None:
        self.sampler, self.groups = sampler, groups

    def __iter__(self) -> Iterator[list[int]]:
        walk = iter(self.sampler)
        yield from ([first, second] for first, second in zip(walk, walk, strict=False))

    def __len__(self) -> int:
        return len(self.sampler) // 2


def test_another_batch_sampler_goes_on_over_the_new_order() -> None:
    batches = InPairs(RandomSampler(range(N)), [1, 2])
    loader = replace_sampler(DataLoader(range(N), batch_sampler=batches), SEED)
    assert walk(loader) == cut(order(), 2, True)
    assert type(loader.batch_sampler) is InPairs
    assert loader.batch_sampler.groups == [1, 2]
    assert type(batches.sampler) is RandomSampler, "the old loader must stay as it was"


@pytest.mark.parametrize("old", [DistributedSampler, StatefulDistributedSampler])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_distributed_sampler_keeps_its_ranks_and_its_epoch(kind: type[DataLoader[int]], old: Any) -> None:
    seen = []
    for rank in range(2):
        sampler = old(range(N), num_replicas=2, rank=rank, seed=3, drop_last=True)
        sampler.set_epoch(4)
        loader = replace_sampler(kind(range(N), batch_size=8, sampler=sampler), SEED)
        expected = SeededDistributedSampler(range(N), num_replicas=2, rank=rank, seed=SEED, drop_last=True)
        expected.set_epoch(4)
        assert walk(loader) == cut(list(expected), 8)
        seen += [index for batch in walk(loader) for index in batch]
    assert sorted(seen) == sorted(order(4)[:52])


# ---- what it cannot take over --------------------------------------------------------------------------


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(N)


class WithArguments(DataLoader[int]):
    def __init__(self, dataset: Any, flavour: str, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)


class Closed:
    def __iter__(self) -> Iterator[list[int]]:
        yield [0]


class Twofold(InPairs):
    def __init__(self, sampler: Any, rest: Any = None) -> None:
        super().__init__(sampler, [])
        self.rest = sampler if rest is None else rest


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"does not shuffle \(SequentialSampler\).*Make it with shuffle=True"),
        ({"sampler": SequentialSampler(range(N))}, "does not shuffle"),
        (
            {"sampler": DistributedSampler(range(N), num_replicas=2, rank=0, shuffle=False)},  # type: ignore[arg-type]
            r"does not shuffle \(DistributedSampler\(shuffle=False\)\)",
        ),
        ({"sampler": WeightedRandomSampler([1.0] * N, N)}, "WeightedRandomSampler, whose meaning would be lost"),
        ({"sampler": SubsetRandomSampler([1, 2])}, r"SubsetRandomSampler, .*give torch.utils.data.Subset"),
        ({"sampler": [2, 1, 0]}, "walks a list"),
        ({"sampler": SeededEpochSampler(N, 3)}, r"walks SeededEpochSampler\(53, seed=3\) already"),
        ({"sampler": BatchSampler(RandomSampler(range(N)), 2, False)}, "walks a BatchSampler"),
        ({"batch_sampler": Closed()}, "is a Closed without a `sampler`"),
        *(
            ({"batch_sampler": Twofold(RandomSampler(range(N)), rest)}, r"is a Twofold that draws from \['rest'\] too")
            for rest in (None, [RandomSampler(range(N))], {"a": SequentialSampler(range(N))}, iter(range(N)))
        ),
        ({"batch_sampler": InPairs(SubsetRandomSampler([1, 2]), [])}, "whose meaning would be lost"),
    ],
)
def test_an_order_that_means_something_else_is_refused(
    kind: type[DataLoader[int]], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace_sampler(kind(range(N), **arguments), SEED)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_iterable_dataset_is_refused(kind: type[DataLoader[int]]) -> None:
    with pytest.raises(TypeError, match=r"reads Stream, an IterableDataset.*map-style"):
        replace_sampler(kind(Stream(), batch_size=8))


def test_a_loader_class_of_its_own_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a WithArguments, whose argument 'flavour' cannot be read back"):
        replace_sampler(WithArguments(range(N), "sweet", shuffle=True))


def test_running_persistent_workers_are_refused() -> None:
    loader = DataLoader(range(N), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"its workers run.*before the first iteration"):
        replace_sampler(loader)


def test_a_stateful_loader_that_keeps_a_place_is_refused() -> None:
    loader: Any = StatefulDataLoader(range(N), batch_size=8, shuffle=True)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"it keeps its place.*before the first iteration"):
        replace_sampler(loader)
    resumed: Any = StatefulDataLoader(range(N), batch_size=8, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"waits to go on from a loaded state.*before load_state_dict"):
        replace_sampler(resumed)


def test_a_prepared_loader_is_refused() -> None:
    from accelerate import Accelerator

    prepared = Accelerator(cpu=True).prepare(DataLoader(range(N), batch_size=8, shuffle=True))
    with pytest.raises(ValueError, match="prepared by accelerate already: call replace_sampler before prepare"):
        replace_sampler(prepared)


def test_what_is_no_loader_or_no_seed_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch.utils.data.DataLoader, got list"):
        replace_sampler([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed"):
        replace_sampler(DataLoader(range(N), shuffle=True), seed=1.5)  # type: ignore[arg-type]


def test_a_subset_is_shuffled_within_itself() -> None:
    subset = Subset(range(100, 200), list(range(0, 100, 10)))
    loader = replace_sampler(DataLoader(subset, batch_size=4, shuffle=True), SEED)
    assert [sample for batch in walk(loader) for sample in batch] == [100 + 10 * i for i in order(n=10)]


def test_the_name_is_public() -> None:
    assert "replace_sampler" in rankless_sampler.__all__
    assert "replace_sampler" in dir(rankless_sampler)
