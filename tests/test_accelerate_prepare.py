"""accelerate.prepare: exact, elastic resume through real save_state and load_state, and nothing else changed."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import pickle
import random
import warnings
import weakref
from pathlib import Path
from typing import Any

import accelerate
import pytest
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration
from elastic_runs import Numbers, accelerator_of, loader_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from rankless_sampler import (
    EpochOrder,
    SeededDistributedSampler,
    SeededEpochSampler,
    ShardedBatchSampler,
    sampler_state,
)
from rankless_sampler.accelerate import CHECKPOINT_FILE, ElasticDataLoader, _batches, prepare

SEED = 7
FLAGS = (False, True)


def shuffled(n: int, epoch: int) -> list[int]:
    return EpochOrder(n, seed=SEED, epoch=epoch)[:].tolist()


def laid_out(
    order: list[int], start: int, batch_size: int, world_size: int, *, drop_last: bool, even_batches: bool
) -> list[list[list[int]]]:
    """By rank, the batches of a pass from `start` on."""
    rest, step = order[start:], world_size * batch_size
    if drop_last:
        rest = rest[: len(rest) - len(rest) % step]
    elif even_batches:
        rest = rest + [order[i % len(order)] for i in range(-len(rest) % step)]
    batches = [rest[i : i + batch_size] for i in range(0, len(rest), batch_size)]
    return [batches[rank::world_size] for rank in range(world_size)]


# ---- elastic runs: legs over the launches ------------------------------------------------------------

LAUNCHES = (2, 3, 4, 3, 1, 2)  # processes; a run goes through some of them, from left to right
N = 61
EPOCH = 1  # the epoch that is cut up; the one before it is walked whole
WORKERS = (0, 2, 3)


class Run:
    """One training run: an epoch, then EPOCH in legs on different launches, then the next epoch.

    Args:
        legs: (launch, batch size of a rank, num_workers, steps); the last leg's steps do not matter.
        user_counts: the caller calls set_epoch before each pass, a resumed one too.
        kind: how the loader is built, see elastic_runs.loader_of.
    """

    def __init__(
        self,
        name: str,
        legs: list[tuple[int, int, int, int]],
        *,
        stateful: bool = False,
        even_batches: bool = True,
        split_batches: bool = False,
        drop_last: bool = False,
        persistent: bool = False,
        user_counts: bool = False,
        kind: str = "samples",
    ) -> None:
        self.name = name
        self.legs = legs
        self.user_counts = user_counts
        self.drop_last = drop_last
        self.even_batches = even_batches
        self.config = {
            "use_stateful_dataloader": stateful,
            "even_batches": even_batches,
            "split_batches": split_batches,
        }
        self.persistent = persistent
        self.kind = kind
        self.results: list[list[list[dict[str, Any]]]] = []  # by leg, rank and pass

    def __repr__(self) -> str:
        return self.name

    def job(self, number: int) -> dict[str, Any]:
        launch, batch_size, workers, steps = self.legs[number]
        world_size = LAUNCHES[launch]
        loader = {
            "n": N,
            "batch_size": batch_size * (world_size if self.config["split_batches"] else 1),
            "kind": self.kind,
            "drop_last": self.drop_last,
            "num_workers": workers,
            "persistent_workers": self.persistent and workers > 0,
        }
        first, last = number == 0, number == len(self.legs) - 1
        passes: list[dict[str, Any]] = [{"epoch": EPOCH - 1}] if first else []
        passes.append({"epoch": EPOCH} if last else {"epoch": EPOCH, "stop": steps, "save": [steps]})
        if last:
            passes.append({"epoch": EPOCH + 1})
        if not self.user_counts:
            passes = [settings | {"epoch": None} for settings in passes]
        before = None if first else f"{self.name}.{number - 1}-{self.legs[number - 1][3]}"
        gather = self.even_batches or world_size == 1
        return {
            "name": f"{self.name}.{number}",
            "config": self.config,
            "loader": loader,
            "load": before,
            "passes": passes,
            "gather": gather,
        }

    def pads(self, leg: int) -> bool:
        """Whether the last batches are filled up; of one process accelerate leaves the last one short."""
        return self.even_batches and (LAUNCHES[self.legs[leg][0]] > 1 or self.kind == "view")

    def due(self, epoch: int, start: int, leg: int) -> list[list[list[int]]]:
        """By rank, what the order alone says comes on that leg's launch."""
        launch, batch_size, *_ = self.legs[leg]
        layout = {"drop_last": self.drop_last, "even_batches": self.pads(leg)}
        return laid_out(shuffled(N, epoch), start, batch_size, LAUNCHES[launch], **layout)

    def starts(self) -> list[int]:
        """Where in EPOCH each leg starts."""
        starts = [0]
        for launch, batch_size, _, steps in self.legs[:-1]:
            starts.append(starts[-1] + steps * batch_size * LAUNCHES[launch])
        return starts

    def cut_up(self) -> list[list[dict[str, Any]]]:
        """By leg and rank, the pass through EPOCH."""
        return [[passes[1 if leg == 0 else 0] for passes in ranks] for leg, ranks in enumerate(self.results)]


def grid() -> list[Run]:
    """Each change of processes, in every configuration, with workers that change too."""
    routes = {"2to3": [0, 3], "2to1": [0, 4], "3to2": [1, 5], "4to3to1": [2, 3, 4]}
    workers = itertools.cycle([0, 2, 0, 3, 0, 0, 2, 3, 3])
    runs = []
    for (route, launches), stateful, even, split, drop in itertools.product(routes.items(), FLAGS, FLAGS, FLAGS, FLAGS):
        legs = [(launch, 2, next(workers), 3) for launch in launches]
        runs.append(
            Run(
                f"{route}{' stateful' * stateful}{' even' * even}{' split' * split}{' drop_last' * drop}",
                legs,
                stateful=stateful,
                even_batches=even,
                split_batches=split,
                drop_last=drop,
                persistent=len(runs) % 2 == 0,
                user_counts=len(runs) % 3 == 0,
            )
        )
    for kind in ("batches", "lists", "view"):
        runs.append(Run(f"kind {kind}", [(0, 3, 2, 2), (3, 2, 0, 3), (4, 2, 2, 1)], kind=kind, even_batches=True))
    return runs


def histories(count: int) -> list[Run]:
    """Random ones: which launches, batch sizes, workers and steps, until the epoch ends."""
    rng = random.Random(5)
    runs = []
    for number in range(count):
        launches = sorted(rng.sample(range(len(LAUNCHES)), rng.randint(3, 5)))
        left, legs = N, []
        for launch in launches:
            batch_size = rng.randint(1, 4)
            steps = rng.randint(0, max(0, left // (2 * batch_size * LAUNCHES[launch])))
            steps = max(steps, 1)
            if steps * batch_size * LAUNCHES[launch] >= left or launch == launches[-1]:
                break
            legs.append((launch, batch_size, rng.choice(WORKERS), steps))
            left -= steps * batch_size * LAUNCHES[launch]
        legs.append((launches[-1], rng.randint(1, 4), rng.choice(WORKERS), 0))
        stateful, user_counts = rng.random() < 0.5, rng.random() < 0.5
        runs.append(
            Run(f"history{number}", legs, stateful=stateful, user_counts=user_counts, even_batches=number % 3 == 0)
        )
    return runs


# ---- any step ----------------------------------------------------------------------------------------

STEPS_OF_2 = -(-N // (2 * 4))  # in a pass of 2 ranks with batches of 4


def any_step_jobs() -> list[dict[str, Any]]:
    """On 2 ranks: checkpoints before the first step, after each, and after the loop, all of one epoch."""
    return [
        {
            "name": f"any {workers}",
            "config": {"use_stateful_dataloader": workers > 0},
            "loader": {"n": N, "batch_size": 4, "num_workers": workers},
            "passes": [{}, {"save": [-1, *range(STEPS_OF_2 + 1)]}],
        }
        for workers in (0, 2)
    ]


def from_any_step_jobs() -> list[dict[str, Any]]:
    """On 3 ranks: go on from each of them; from some with set_epoch, as epoch loops do."""
    return [
        {
            "name": f"from {workers} {step}",
            "config": {"use_stateful_dataloader": bool(step % 2)},
            "loader": {"n": N, "batch_size": 2, "num_workers": (step % 5 == 0) * 2},
            "load": f"any {workers}-{step}",
            "passes": [{"epoch": EPOCH if 0 <= step < STEPS_OF_2 and step % 2 else None}, {}],
        }
        for workers in (0, 2)
        for step in (*range(STEPS_OF_2 + 1), -1)
    ]


# ---- beside accelerate's own -------------------------------------------------------------------------


def cases_beside(world_size: int) -> list[dict[str, Any]]:
    """Configurations, and lengths down to 0, 1, fewer than ranks, and fewer than a step (case 19)."""
    cases = []
    for even, split, drop, n in itertools.product(FLAGS, FLAGS, FLAGS, (0, 1, 2, 3, 5, 11, 12, 17, 24)):
        batch_size = 3 * (world_size if split else 1)
        cases.append(
            {
                "config": {"even_batches": even, "split_batches": split},
                "loader": {"n": n, "batch_size": batch_size, "drop_last": drop},
                "gather": even or world_size == 1 or drop,
            }
        )
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}
    for kind in ("batches", "samples"):
        cases.append(
            {"config": {}, "loader": {"n": 17, "batch_size": 3, "kind": kind, **options}, "gather": world_size > 1}
        )
    return cases


# ---- the launches ------------------------------------------------------------------------------------

RUNS = grid()
HISTORIES = histories(10)
MESHES = [
    {"dp_shard": 2, "cp": 2},
    {"dp_replicate": 2, "tp": 2},
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp_replicate": 4},
    {"tp": 4},
]
LARGE_MESH = {"dp_replicate": 2, "dp_shard": 2, "tp": 3}


@pytest.fixture(scope="module")
def launched(run_ranks, tmp_path_factory):
    """By launch and by the name of the function: what it returned, by rank. Fills the runs' results, too."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    extra: list[list[tuple[str, dict[str, Any]]]] = [
        [
            ("legs", {"jobs": any_step_jobs(), "folder": folder}),
            ("beside_accelerates_own", {"cases": cases_beside(2)}),
            ("accumulate", {"folder": f"{folder}/accumulate", "save_after": 3}),
        ],
        [("beside_accelerates_own", {"cases": cases_beside(3)})],
        [("on_meshes", {"meshes": MESHES, "folder": folder})],
        [
            ("legs", {"jobs": from_any_step_jobs(), "folder": folder}),
            ("accumulate", {"folder": f"{folder}/accumulate"}),
        ],
        [("beside_accelerates_own", {"cases": cases_beside(1)}), ("ranks_on_a_mesh", {"sizes": LARGE_MESH})],
        [],
    ]
    results: list[dict[str, Any]] = []
    for launch, world_size in enumerate(LAUNCHES):
        mine = [(run, number) for run in RUNS + HISTORIES for number, leg in enumerate(run.legs) if leg[0] == launch]
        calls = [("legs", {"jobs": [run.job(number) for run, number in mine], "folder": folder}), *extra[launch]]
        by_rank = run_ranks(world_size, "elastic_runs:several", calls=calls, timeout=300)
        for at, (run, _) in enumerate(mine):
            run.results.append([ranks[0][at] for ranks in by_rank])
        results.append({name: [ranks[i + 1] for ranks in by_rank] for i, (name, _) in enumerate(extra[launch])})
    return results


# ---- the promises: elastic runs ----------------------------------------------------------------------


def came(passes: list[dict[str, Any]]) -> list[int]:
    """All samples, over all ranks."""
    return [index for one in passes for batch in one["batches"] for index in batch]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("run", RUNS + HISTORIES, ids=repr)
class TestElasticRun:
    def test_no_sample_is_lost_and_none_comes_twice(self, run):
        legs = run.cut_up()
        indices = [index for leg in legs for index in came(leg)]
        (launch, batch_size, *_), start = run.legs[-1], run.starts()[-1]
        step = batch_size * LAUNCHES[launch]
        tail = (N - start) % step
        if run.drop_last:
            assert len(indices) == len(set(indices)) == N - tail
        elif run.pads(-1):
            assert set(indices) == set(range(N))
            assert len(indices) == N + (-tail % step)
        else:
            assert sorted(indices) == list(range(N))

    def test_each_rank_gets_the_batches_that_the_order_says(self, run):
        for leg, (ranks, start) in enumerate(zip(run.cut_up(), run.starts(), strict=True)):
            steps = run.legs[leg][3] if leg < len(run.legs) - 1 else None
            assert [one["batches"] for one in ranks] == [own[:steps] for own in run.due(EPOCH, start, leg)]

    def test_the_epochs_before_and_after_are_whole(self, run):
        for leg, epoch, number in ((0, EPOCH - 1, 0), (-1, EPOCH + 1, -1)):
            assert [passes[number]["batches"] for passes in run.results[leg]] == run.due(epoch, 0, leg)

    def test_the_state_is_the_same_on_every_rank_and_counts_what_was_delivered(self, run):
        for leg, (ranks, start) in enumerate(zip(run.cut_up(), run.starts(), strict=True)):
            launch, batch_size, *_ = run.legs[leg]
            step_size = batch_size * LAUNCHES[launch]
            for one in ranks:
                for step in range(1, len(one["batches"]) + 1):
                    position = min(N, start + step * step_size)
                    if run.drop_last and N - position < step_size:
                        position = N
                    assert one["states"][step - 1] == {
                        "algorithm": "v1",
                        "num_samples": N,
                        "seed": SEED,
                        "epoch": EPOCH,
                        "position": position,
                    }
            assert ranks[0]["states"][-1] == ranks[-1]["states"][-1]

    def test_only_the_last_batch_of_a_pass_is_the_end_of_the_dataloader(self, run):
        for ranks in run.results:
            for one in itertools.chain.from_iterable(ranks):
                assert not any(one["ends"][:-1])
        for passes in run.results[-1]:
            assert all(one["ends"][-1] for one in passes if one["batches"])

    def test_gather_for_metrics_gives_each_sample_of_the_pass_once_and_in_order(self, run):
        for leg, (ranks, start) in enumerate(zip(run.cut_up(), run.starts(), strict=True)):
            launch, batch_size, _, steps = run.legs[leg]
            if not run.job(leg)["gather"]:
                continue
            step = batch_size * LAUNCHES[launch]
            stop = start + steps * step if leg < len(run.legs) - 1 else N
            if run.drop_last:
                stop -= (stop - start) % step
            for one in ranks:
                assert one["gathered"] == shuffled(N, EPOCH)[start:stop]


def test_the_runs_are_what_the_names_say():
    assert len(RUNS) == 4 * 16 + 3
    assert len(HISTORIES) == 10
    for run in RUNS + HISTORIES:
        starts = run.starts()
        assert starts == sorted(set(starts))
        assert starts[-1] < N
    assert {len(run.legs) for run in HISTORIES} >= {3, 4}


def test_from_any_step_and_from_both_ends_the_rest_comes_and_then_the_next_epoch(launched):
    results = launched[3]["legs"]
    for number, job in enumerate(from_any_step_jobs()):
        step = int(job["load"].rpartition("any ")[2].partition("-")[2])
        done = step in (-1, STEPS_OF_2)
        epoch, start = (EPOCH + 1, 0) if done else (EPOCH, step * 8)
        for (epoch_due, start_due), at in (((epoch, start), 0), ((epoch + 1, 0), 1)):
            expected = laid_out(shuffled(N, epoch_due), start_due, 2, 3, drop_last=False, even_batches=True)
            assert [ranks[number][at]["batches"] for ranks in results] == expected, (job["name"], at)


# ---- the promises: as with accelerate's own loaders --------------------------------------------------


@pytest.mark.parametrize(("launch", "world_size"), [(0, 2), (1, 3), (4, 1)])
def test_everything_else_is_as_with_accelerates_own_loader(launched, launch, world_size):
    results = launched[launch]["beside_accelerates_own"]
    for rank, pairs in enumerate(results):
        for case, (own, theirs) in zip(cases_beside(world_size), pairs, strict=True):
            n, drop = case["loader"]["n"], case["loader"].get("drop_last", False)
            if case["config"].get("split_batches") and not case["config"]["even_batches"] and not drop and n:
                own.pop("len"), theirs.pop("len")  # accelerate counts a last batch on ranks that get none
            empty = not own["epoch 0"]
            if empty:  # accelerate does not count an epoch without a batch
                for name in ("after epoch 0", "after epoch 1"):
                    own.pop(name), theirs.pop(name)
            assert own == theirs, (case, rank)
            assert empty or own["epoch 0"] != own["epoch 1"] or n < 4


def test_gradient_accumulation_goes_on_in_step_on_a_new_rank_too(launched):
    saved, resumed = launched[0]["accumulate"], launched[3]["accumulate"]
    assert [one["synced"] for one in saved] == [[False, False, False]] * 2
    assert [one["synced"][:6] for one in resumed] == [[True, False, False, False, True, False]] * 3
    assert all(one["synced"][-1] for one in resumed)  # at the end of the dataloader
    assert len({one["weight"] for one in resumed}) == 1
    indices = [index for one in saved + resumed for index in one["seen"]]
    assert sorted(indices) == list(range(60))


def test_models_optimizers_and_schedulers_pass_through_in_their_order(launched):
    kinds = ["DistributedDataParallel", "AcceleratedOptimizer", "ElasticDataLoader", "AcceleratedScheduler"]
    assert [one["kinds"] for one in launched[0]["accumulate"]] == [kinds] * 2


def test_on_a_mesh_the_ranks_of_one_model_replica_get_the_same_batches(launched):
    results = launched[2]["on_meshes"]
    data_parallel = [(2, [0, 0, 1, 1]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3]), (4, [0, 1, 2, 3]), (1, [0, 0, 0, 0])]
    for number, (replicas, ranks) in enumerate(data_parallel):
        layout = {"drop_last": False, "even_batches": replicas > 1}
        walks = laid_out(shuffled(23, 0), 0, 2, replicas, **layout)
        rests = laid_out(shuffled(23, 0), 4 * replicas, 2, replicas, **layout)
        for process, rank in enumerate(ranks):
            found = results[process][number]
            assert found == {"walk": walks[rank], "rest": rests[rank], "total_batch_size": 2 * replicas}, MESHES[number]


def test_on_a_large_mesh_the_data_parallel_rank_is_the_one_that_accelerate_computes(launched):
    assert launched[4]["ranks_on_a_mesh"] == [[[4, process // 3] for process in range(12)]]


# ---- in this process: random histories, the ranks simulated ------------------------------------------


def rank_of(world_size: int, rank: int, n: int, batch_size: int, *, split: bool, even: bool, drop: bool) -> Any:
    """The loader that `prepare` makes on this rank."""
    plain = loader_of(n, batch_size * (world_size if split else 1), drop_last=drop)
    shard = prepare_data_loader(
        plain, num_processes=world_size, process_index=rank, split_batches=split, even_batches=even
    )
    return ElasticDataLoader(shard, _batches(plain.batch_sampler, plain.sampler, shard))


stages = st.lists(
    st.tuples(
        st.integers(1, 4),  # world size
        st.integers(1, 5),  # batch size of a rank
        st.integers(0, 5),  # steps until the next checkpoint
        st.booleans(),  # split_batches
        st.booleans(),  # even_batches
        st.sampled_from(["", "set_epoch", "twice", "peek"]),  # what the user does after load_state
    ),
    max_size=4,
)


@pytest.fixture
def quick_accelerate(monkeypatch):
    """For each loader accelerate looks for packages and parses their metadata: three quarters of the time."""
    for name in ("is_torchdata_stateful_dataloader_available", "is_datasets_available"):
        found = getattr(accelerate.data_loader, name)()
        monkeypatch.setattr(accelerate.data_loader, name, lambda found=found: found)


@pytest.mark.usefixtures("quick_accelerate")
@settings(
    max_examples=2_000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(1, 60),
    stages=stages,
    last=st.tuples(st.integers(1, 4), st.integers(1, 5), st.just(99), st.booleans(), st.booleans(), st.just("")),
)
def test_no_history_of_processes_batch_sizes_and_checkpoints_loses_or_repeats_a_sample(n, stages, last):
    state: dict[str, Any] = {**SeededEpochSampler(n, SEED).state_dict(), "epoch": EPOCH}
    got: list[int] = []
    for world_size, batch_size, steps, split, even, user in [*stages, last]:
        loaders = [rank_of(world_size, r, n, batch_size, split=split, even=even, drop=False) for r in range(world_size)]
        for loader in loaders:
            loader.load_state_dict(state)
            if user == "set_epoch":
                loader.set_epoch(state["epoch"])
            elif user == "twice":
                loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
            elif user == "peek":  # one look at a batch, then the checkpoint again
                next(iter(loader), None)
                loader.load_state_dict(state)
        passes = [iter(loader) for loader in loaders]
        arrived: list[int] = []
        for _ in range(steps):
            batches = [batch.tolist() for batch in (next(one, None) for one in passes) if batch is not None]
            arrived += itertools.chain(*batches)
            if not batches:
                break
        states = [loader.state_dict() for loader in loaders]
        start, step = state["position"], world_size * batch_size
        state = json.loads(json.dumps(states[0]))
        ended = state["epoch"] == EPOCH + 1 or state["position"] == n
        if not ended:
            assert states == [states[0]] * world_size
        fresh = (n if ended else state["position"]) - start
        got += arrived[:fresh]
        assert 0 <= len(arrived) - fresh < (step if ended and even and world_size > 1 else 1)
        if ended:
            break
    assert got == shuffled(n, EPOCH)  # nothing lost, nothing twice, and in the order of the epoch
    following = rank_of(1, 0, n, 7, split=False, even=False, drop=False)
    following.load_state_dict(state)
    assert list(itertools.chain(*walk(following))) == shuffled(n, EPOCH + 1)


# ---- in this process: one rank -----------------------------------------------------------------------


def prepared(n: int = 20, batch_size: int = 4, *, config: dict[str, bool] | None = None, **options: Any) -> Any:
    """An accelerator and a loader, as in a new run."""
    accelerator = accelerator_of(config or {})
    return accelerator, prepare(accelerator, loader_of(n, batch_size, **options))


def walk(loader: Any, steps: int | None = None) -> list[list[int]]:
    """The batches up to a break after `steps`."""
    batches = []
    for batch in loader:
        batches.append(batch.tolist())
        if len(batches) == steps:
            break
    return batches


def cut(n: int, epoch: int, start: int = 0, batch_size: int = 4) -> list[list[int]]:
    order = shuffled(n, epoch)
    return [order[i : i + batch_size] for i in range(start, n, batch_size)]


@pytest.fixture
def checkpoint(tmp_path):
    """Saved after 2 steps of epoch 1 of 20 samples in batches of 4: 12 are left."""
    accelerator, loader = prepared()
    walk(loader)
    walk(loader, 2)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    return str(tmp_path / "checkpoint")


def test_nothing_is_drawn_and_no_worker_started_before_the_first_batch_is_asked_for(checkpoint):
    class Watched(SeededEpochSampler):
        walks = 0

        def _sequence(self, place: Any) -> Any:
            Watched.walks += 1
            return super()._sequence(place)

    for workers in (0, 2):
        Watched.walks = 0
        accelerator = accelerator_of({"use_stateful_dataloader": True})
        data = Numbers(20)
        loader = prepare(accelerator, DataLoader(data, 4, sampler=Watched(data, SEED), num_workers=workers))
        accelerator.load_state(checkpoint)
        loader.set_epoch(1)
        iterator = iter(loader)
        loader.state_dict()
        assert (Watched.walks, multiprocessing.active_children()) == (0, [])
        assert next(iterator).tolist() == cut(20, 1, 8)[0]
        assert (Watched.walks, len(multiprocessing.active_children())) == (1, workers)
        del iterator


def test_a_resume_computes_what_is_left_and_replays_nothing(tmp_path):
    class Order(EpochOrder):
        __slots__ = ()
        computed = 0

        def _slice(self, positions: range) -> Any:
            Order.computed += len(positions)
            return super()._slice(positions)

    class Counting(SeededEpochSampler):
        def _sequence(self, place: Any) -> Any:
            return Order(place.data_length, seed=place.seed, epoch=place.epoch)

    n = 10**9
    accelerator = accelerator_of({})
    loader = prepare(accelerator, DataLoader(Numbers(n), 4, sampler=Counting(n, SEED)))
    accelerator.save_state(str(tmp_path))
    path = tmp_path / CHECKPOINT_FILE
    content = json.loads(path.read_text())
    content["dataloaders"][0] |= {"epoch": 3, "position": n - 4 * 1_000}
    path.write_text(json.dumps(content))
    accelerator.load_state(str(tmp_path))
    assert walk(loader) == EpochOrder(n, seed=SEED, epoch=3)[n - 4_000 :].reshape(-1, 4).tolist()
    assert Order.computed == 4_000


def test_the_checkpoint_holds_plain_types_in_one_json_file(checkpoint):
    content = json.loads(Path(checkpoint, CHECKPOINT_FILE).read_text())
    state = {"algorithm": "v1", "num_samples": 20, "seed": SEED, "epoch": 1, "position": 8}
    assert content == {"format": 1, "step": 0, "dataloaders": [state]}


def test_after_load_set_epoch_of_that_epoch_keeps_the_place_and_of_another_drops_it(checkpoint):
    for told in ([], [1], [1, 1], [5, 1], [5]):
        accelerator, loader = prepared()
        accelerator.load_state(checkpoint)
        for epoch in told:
            loader.set_epoch(epoch)
        rest = {(): cut(20, 1, 8), (1,): cut(20, 1, 8), (1, 1): cut(20, 1, 8), (5, 1): cut(20, 1), (5,): cut(20, 5)}
        assert walk(loader) == rest[tuple(told)]
        assert walk(loader) == cut(20, told[-1] + 1 if told else 2)


def test_what_the_sampler_is_told_directly_after_prepare_is_honoured(checkpoint):
    accelerator = accelerator_of({})
    data = Numbers(20)
    sampler = SeededEpochSampler(data, SEED)
    loader = prepare(accelerator, DataLoader(data, 4, sampler=sampler))
    sampler.set_epoch(3)
    assert loader.state_dict() == {**sampler.state_dict(), "epoch": 3, "position": 0}
    assert walk(loader) == cut(20, 3)
    assert walk(loader) == cut(20, 4)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 7, "position": 12})
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 12)
    assert walk(loader) == cut(20, 7, 12)
    assert walk(loader) == cut(20, 8)
    accelerator.load_state(checkpoint)
    sampler.set_epoch(1)  # the sampler's own drops a pending resume
    assert walk(loader) == cut(20, 1)


def test_what_the_sampler_was_told_before_prepare_is_honoured_too():
    data = Numbers(20)
    sampler = SeededEpochSampler(data, SEED)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 7, "position": 12})
    loader = prepare(accelerator_of({}), DataLoader(data, 4, sampler=sampler))
    assert [walk(loader), walk(loader)] == [cut(20, 7, 12), cut(20, 8)]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_told_during_a_pass_holds_for_the_next_one(checkpoint, workers):
    accelerator, loader = prepared(num_workers=workers)
    seen = []
    for step, batch in enumerate(loader):
        seen.append(batch.tolist())
        if step == 1:
            loader.set_epoch(5)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)
    assert seen == cut(20, 0)  # not disturbed
    assert [walk(loader), walk(loader)] == [cut(20, 5), cut(20, 6)]
    for step, _ in enumerate(loader):
        if step == 1:
            accelerator.load_state(checkpoint)
    assert [walk(loader), walk(loader)] == [cut(20, 1, 8), cut(20, 2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_peek_during_a_pass_changes_nothing(workers, tmp_path):
    accelerator, loader = prepared(num_workers=workers)
    for epoch in range(3):
        for step, batch in enumerate(loader):
            assert batch.tolist() == cut(20, epoch)[step]
            if step == 1:
                assert next(iter(loader)).tolist() == cut(20, epoch)[0]
            if step == 2:
                kept = iter(loader)  # as long as this lasts, it goes on beside the other
                assert next(kept).tolist() == cut(20, epoch)[0]
            if step != 2:
                assert (loader.iteration, loader.state_dict()["position"]) == (epoch, 4 * step + 4)
            accelerator.save_state(str(tmp_path / str(step)))
        assert loader.iteration == epoch + 1
        assert [batch.tolist() for batch in kept] == cut(20, epoch)[1:]
        assert (loader.iteration, loader.state_dict()["position"]) == (epoch + 1, 0)
    accelerator.load_state(str(tmp_path / "1"))
    assert [walk(loader), walk(loader)] == [cut(20, 2, 8), cut(20, 3)]


def test_a_whole_pass_beside_another_moves_on_once():
    _, loader = prepared()
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == list(
        zip(cut(20, 0), cut(20, 0), strict=True)
    )
    assert walk(loader) == cut(20, 1)


def test_an_iterator_from_before_that_ends_late_does_not_set_the_epoch_back():
    _, loader = prepared()
    early = iter(loader)
    next(early)
    assert [walk(loader), walk(loader)] == [cut(20, 0), cut(20, 1)]
    assert [batch.tolist() for batch in early] == cut(20, 0)[1:]
    assert walk(loader) == cut(20, 2)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_break_keeps_its_place_beside_an_iterator_that_was_begun_before(epoch):
    _, loader = prepared()
    kept = iter(loader)
    next(kept)
    for _ in range(epoch):
        walk(loader)
    walk(loader, 3)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch, 12)
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.state_dict() == loader.state_dict()
    next(kept)
    assert pickle.loads(pickle.dumps(loader)).state_dict() == loader.state_dict()
    with pytest.warns(UserWarning, match="stopped early"):
        assert walk(loader) == cut(20, epoch)


def test_what_the_sampler_and_then_the_loader_are_told_is_honoured_in_that_order():
    _, loader = prepared()
    sampler = loader.batches.sampler
    sampler.load_state_dict({**loader.state_dict(), "epoch": 7, "position": 12})
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 12)
    sampler.set_epoch(7)
    loader.set_epoch(7)
    assert loader.state_dict()["position"] == 0
    started = iter(loader)
    next(started)
    sampler.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 8})
    sampler.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 0)
    for step, _ in enumerate(loader):
        if step == 2:
            sampler.set_epoch(7)
            break
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (7, 12)


def test_a_peek_leaves_accelerates_marks_of_the_last_step_alone():
    _, loader = prepared()
    marks = []
    for _ in loader:
        next(iter(loader))
        marks.append((loader.end_of_dataloader, loader.gradient_state.end_of_dataloader))
    assert marks == [(False, False)] * 4 + [(True, True)]


def test_a_peek_during_a_resumed_pass_leaves_its_remainder_alone():
    _, loader = prepared(10)
    loader.load_state_dict({**loader.state_dict(), "position": 3})
    remainders = []
    for step, _ in enumerate(loader):
        remainders.append(loader.remainder)
        if step == 0:
            peek = iter(loader)
            next(peek)
            assert loader.remainder == 10 % 4
            del peek
            assert loader.remainder == 3
    assert remainders == [3, 3]


def test_persistent_workers_that_a_second_iterator_has_taken_are_an_error():
    _, loader = prepared(num_workers=2, persistent_workers=True)
    batches = iter(loader)
    assert next(batches).tolist() == cut(20, 0)[0]
    next(iter(loader))
    with pytest.raises(RuntimeError, match=r"the new iterator has taken this one's workers.*persistent_workers=False"):
        next(batches)
    loader.set_epoch(0)
    assert [walk(loader), walk(loader)] == [cut(20, 0), cut(20, 1)]


@pytest.mark.parametrize("told", ["loader", "sampler"])
def test_the_same_epoch_told_again_during_its_pass_changes_nothing(told, tmp_path):
    accelerator, loader = prepared()
    for epoch in range(2):
        for step, _ in enumerate(loader):
            (loader if told == "loader" else loader.batches.sampler).set_epoch(epoch)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch, 4 * step + 4)
            if step == 1:
                accelerator.save_state(str(tmp_path / str(epoch)))
    assert walk(loader) == cut(20, 2)
    accelerator.load_state(str(tmp_path / "1"))
    assert [walk(loader), walk(loader)] == [cut(20, 1, 8), cut(20, 2)]


def test_the_same_epoch_told_again_after_a_break_begins_it_anew():
    _, loader = prepared()
    walk(loader, 2)
    loader.set_epoch(0)
    assert loader.state_dict()["position"] == 0
    assert walk(loader) == cut(20, 0)


def test_peeks_of_one_rank_do_not_part_it_from_the_others(run_ranks):
    results = run_ranks(2, "elastic_runs:peek_on_one_rank", n=96, epochs=3)
    for epoch in range(3):
        expected = laid_out(shuffled(96, epoch), 0, 8, 2, drop_last=False, even_batches=True)
        assert [rank["epochs"][epoch] for rank in results] == expected
    assert [rank["state"] for rank in results] == [results[0]["state"]] * 2


def test_several_checkpoints_of_an_epoch_are_all_good_in_any_order(tmp_path):
    accelerator, loader = prepared(num_workers=2)
    for step, _ in enumerate(loader):
        accelerator.save_state(str(tmp_path / str(step)))
    for step in (3, 0, 4, 2, 2):
        accelerator.load_state(str(tmp_path / str(step)))
        assert walk(loader) == (cut(20, 0, 4 * step + 4) or cut(20, 1))
        assert loader.state_dict()["epoch"] == (1 if step < 4 else 2)


def test_an_early_break_keeps_the_place_for_the_checkpoint_and_the_same_epoch_comes_again(tmp_path):
    accelerator, loader = prepared()
    walk(loader, 3)
    assert loader.state_dict()["position"] == 12
    accelerator.save_state(str(tmp_path))
    with pytest.warns(UserWarning, match=r"a pass through epoch 0 stopped early.*set_epoch\(e\) before each") as caught:
        assert walk(loader) == cut(20, 0)  # as with accelerate's own
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():  # that once is enough
        warnings.simplefilter("error")
        assert [walk(loader, 1), walk(loader), walk(loader)] == [cut(20, 1)[:1], cut(20, 1), cut(20, 2)]
    accelerator.load_state(str(tmp_path))
    assert walk(loader) == cut(20, 0, 12)


def test_starting_an_epoch_again_after_an_early_break_of_its_resumed_rest_warns(checkpoint):
    accelerator, loader = prepared()
    accelerator.load_state(checkpoint)
    assert walk(loader, 1) == cut(20, 1, 8)[:1]
    assert loader.state_dict()["position"] == 12
    with pytest.warns(UserWarning, match=r"the 8 samples before the checkpoint come again.*set_epoch\(2\)") as caught:
        assert walk(loader) == cut(20, 1)
    assert caught[0].filename == __file__
    accelerator.load_state(checkpoint)
    walk(loader, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.set_epoch(1)  # told so: no warning
        assert walk(loader) == cut(20, 1)


def test_a_rest_that_drop_last_leaves_nothing_of_is_an_empty_pass_and_the_epoch_moves_on(checkpoint):
    accelerator, loader = prepared(batch_size=13, drop_last=True)
    accelerator.load_state(checkpoint)  # 12 are left
    assert walk(loader) == []
    assert loader.state_dict()["epoch"] == 2
    assert walk(loader) == [shuffled(20, 2)[:13]]


def test_with_drop_last_a_checkpoint_of_the_last_step_is_the_end_of_the_epoch(tmp_path):
    accelerator, loader = prepared(n=22, drop_last=True)
    for _ in loader:
        accelerator.save_state(str(tmp_path))
    assert json.loads((tmp_path / CHECKPOINT_FILE).read_text())["dataloaders"][0]["position"] == 22
    accelerator, loader = prepared(n=22, batch_size=1)
    accelerator.load_state(str(tmp_path))
    assert walk(loader) == cut(22, 1, batch_size=1)


def test_two_loaders_of_one_prepare_are_both_restored(tmp_path):
    def both() -> tuple[Any, Any, Any, Any]:
        accelerator = accelerator_of({})
        plain = DataLoader(Numbers(5), 2)
        return accelerator, *prepare(accelerator, loader_of(20, 4), plain, loader_of(9, 2, seed=8))

    accelerator, train, plain, evaluation = both()
    walk(evaluation)
    for step, _ in enumerate(train):
        if step == 1:
            for inner, _ in enumerate(evaluation):  # evaluation within training
                if inner == 2:
                    accelerator.save_state(str(tmp_path))
        assert accelerator.gradient_state.active_dataloader is train
    accelerator, train, plain, evaluation = both()
    accelerator.load_state(str(tmp_path))
    assert walk(train) == cut(20, 0, 8)
    rest = EpochOrder(9, seed=8, epoch=1)[6:].tolist()
    assert walk(evaluation) == [rest[:2], rest[2:]]
    assert walk(plain) == [[0, 1], [2, 3], [4]]
    accelerator = accelerator_of({})
    prepare(accelerator, loader_of(20, 4))
    with pytest.raises(ValueError, match="holds the states of 2 loaders, but 1 are prepared"):
        accelerator.load_state(str(tmp_path))


def test_loaders_of_two_prepares_are_both_restored(tmp_path):
    accelerator, train = prepared()
    other = prepare(accelerator, loader_of(9, 2, seed=8))
    walk(train, 1), walk(other, 2)
    accelerator.save_state(str(tmp_path))
    accelerator, train = prepared()
    other = prepare(accelerator, loader_of(9, 2, seed=8))
    accelerator.load_state(str(tmp_path))
    assert [len(walk(train)), len(walk(other))] == [4, 3]


def test_other_objects_pass_through_untouched():
    accelerator = accelerator_of({})
    plain, thing = DataLoader(Numbers(5), 2, shuffle=True), object()
    loader, same = prepare(accelerator, plain, thing)
    assert type(loader).__name__ == "DataLoaderShard"
    assert same is thing
    assert prepare(accelerator, loader) is loader
    assert accelerator._dataloaders == [loader]


def test_a_prepared_loader_comes_back_as_it_is():
    accelerator, loader = prepared()
    walk(loader, 2)
    assert prepare(accelerator, loader) is loader
    assert accelerator.prepare(loader) is loader
    assert accelerator._dataloaders == [loader]
    assert loader.state_dict()["position"] == 8


def test_a_loader_that_accelerate_prepared_is_refused():
    accelerator = accelerator_of({})
    for loader in (loader_of(20, 4), loader_of(20, 4, kind="batches")):
        theirs = accelerator.prepare(loader)
        with pytest.raises(ValueError, match=r"prepared by accelerator\.prepare already.*hand the DataLoader itself"):
            prepare(accelerator, theirs)
    usual = accelerator.prepare(DataLoader(Numbers(20), 4, shuffle=True))
    assert prepare(accelerator, usual) is usual


def test_a_StatefulDataLoader_that_waits_to_go_on_is_refused():  # noqa: N802
    def new() -> Any:
        return StatefulDataLoader(Numbers(20), batch_size=4, sampler=SeededEpochSampler(20, SEED))

    loader = new()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader = new()
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r"waits to go on from a loaded state.*sampler_state\(state\)"):
        prepare(accelerator_of({}), loader)
    loader = new()
    loader.sampler.load_state_dict(sampler_state(state))  # the way out
    loader = prepare(accelerator_of({}), loader)
    assert [walk(loader), walk(loader)] == [cut(20, 0, 4), cut(20, 1)]


def test_a_StatefulDataLoader_given_to_prepare_serves_too(checkpoint):  # noqa: N802
    data = Numbers(20)
    for options in ({"batch_size": 4}, {"batch_size": 4, "num_workers": 2, "snapshot_every_n_steps": 3}):
        accelerator = accelerator_of({"use_stateful_dataloader": True})
        loader = prepare(accelerator, StatefulDataLoader(data, sampler=SeededEpochSampler(data, SEED), **options))
        accelerator.load_state(checkpoint)
        assert [walk(loader), walk(loader)] == [cut(20, 1, 8), cut(20, 2)]


def test_device_placement_is_the_callers():
    for placement, expected in ((None, True), ([True], True), ([False], False)):
        accelerator = accelerator_of({})
        loader = prepare(accelerator, loader_of(20, 4), device_placement=placement)
        assert loader.device == (accelerator.device if expected else None)
    with pytest.raises(ValueError, match="device_placement must have one entry for each of 1 objects"):
        prepare(accelerator_of({}), loader_of(20, 4), device_placement=[True, False])


def test_a_pickled_loader_goes_on_where_the_original_would(checkpoint):
    accelerator, loader = prepared()
    accelerator.load_state(checkpoint)
    copies = [pickle.loads(pickle.dumps(loader))]
    walk(loader, 1)
    copies.append(pickle.loads(pickle.dumps(loader)))
    assert [copy.state_dict()["position"] for copy in copies] == [8, 12]
    assert walk(copies[0]) == cut(20, 1, 8)


def test_an_accelerator_and_its_loader_are_freed_at_once():
    accelerator, loader = prepared(num_workers=2, persistent_workers=True)
    walk(loader)
    references = [weakref.ref(accelerator), weakref.ref(loader)]
    gc.disable()  # a cycle would leave the workers to the garbage collector
    try:
        del accelerator, loader
        assert [reference() for reference in references] == [None, None]
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


def test_free_memory_lets_the_sampler_go():
    accelerator = accelerator_of({})
    plain = loader_of(20, 4)
    loader = prepare(accelerator, plain)
    (loader,) = accelerator.free_memory(loader)
    assert loader is None
    assert walk(prepare(accelerator, plain)) == cut(20, 0)


def test_the_seed_of_the_checkpoint_wins_with_a_warning(checkpoint):
    accelerator, loader = prepared(seed=9)
    with pytest.warns(UserWarning, match="seed=7 replaces this sampler's seed=9"):
        accelerator.load_state(checkpoint)
    assert [walk(loader), walk(loader)] == [cut(20, 1, 8), cut(20, 2)]


def test_a_dataset_that_has_set_epoch_is_told_too():
    data = Numbers(20)
    data.set_epoch = lambda epoch: told.append(epoch)  # type: ignore[attr-defined]
    told: list[int] = []
    loader = prepare(accelerator_of({}), DataLoader(data, 4, sampler=SeededEpochSampler(data, SEED)))
    walk(loader), walk(loader)
    assert told == [0, 1]


def test_even_batches_may_be_changed_later_as_join_uneven_inputs_does():
    loaders = [rank_of(2, rank, 9, 2, split=False, even=True, drop=False) for rank in range(2)]
    for loader in loaders:
        loader.batch_sampler.even_batches = False
    assert [walk(loader) for loader in loaders] == laid_out(
        shuffled(9, 0), 0, 2, 2, drop_last=False, even_batches=False
    )


def test_accelerates_own_naming_of_checkpoints_works(tmp_path):
    def run() -> tuple[Any, Any]:
        naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
        accelerator = Accelerator(cpu=True, project_config=naming)
        return accelerator, prepare(accelerator, loader_of(20, 4))

    accelerator, loader = run()
    for step, _ in enumerate(loader):
        if step < 3:
            folder = accelerator.save_state()
            assert folder == tmp_path / "checkpoints" / f"checkpoint_{step}"
    accelerator, loader = run()
    accelerator.load_state()
    assert walk(loader) == cut(20, 0, 12)
    accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_1"))
    assert walk(loader) == cut(20, 0, 8)


# ---- in this process: refusals -----------------------------------------------------------------------


def test_one_sampler_cannot_serve_two_loaders():
    accelerator = accelerator_of({})
    data = Numbers(20)
    sampler = SeededEpochSampler(data, SEED)
    loaders = [DataLoader(data, size, sampler=sampler) for size in (2, 4)]
    with pytest.raises(ValueError, match=r"this sampler serves another prepared loader.*give each its own"):
        prepare(accelerator, *loaders)
    assert accelerator._dataloaders == []
    loader = prepare(accelerator, loaders[0])
    with pytest.raises(ValueError, match="this sampler serves another prepared loader"):
        prepare(accelerator, loaders[1])
    assert accelerator._dataloaders == [loader]
    assert walk(loader) == cut(20, 0, batch_size=2)


class Grouped(BatchSampler):
    pass


def refused() -> dict[str, tuple[Any, dict[str, Any], str]]:
    data = Numbers(20)
    sampler = SeededEpochSampler(data, SEED)
    view = ShardedBatchSampler(sampler, 4, num_replicas=2, rank=1)
    config = {"dispatch_batches": True}
    return {
        "dispatch": (
            DataLoader(data, 4, sampler=sampler),
            config,
            r"dispatch_batches=True:.*set dispatch_batches=False",
        ),
        "distributed": (
            DataLoader(data, 4, sampler=SeededDistributedSampler(data, 2, 0)),
            {},
            r"has its rank's part already.*give it SeededEpochSampler",
        ),
        "single": (DataLoader(data, batch_size=None, sampler=sampler), {}, "batch_size=None.*give it a batch_size"),
        "custom": (
            DataLoader(data, batch_sampler=Grouped(sampler, 4, False)),
            {},
            "cannot tell how Grouped makes batches: use BatchSampler, or batch_size=",
        ),
        "view": (DataLoader(data, batch_sampler=view), {}, r"is rank 1 of 2, but .* is 0 of 1: pass num_replicas=1"),
    }


@pytest.mark.parametrize("name", ["dispatch", "distributed", "single", "custom", "view"])
def test_what_cannot_be_exact_is_refused_with_the_way_out_and_changes_nothing(name):
    loader, config, message = refused()[name]
    accelerator = accelerator_of(config | {"use_stateful_dataloader": not config})
    with pytest.raises(ValueError, match=message):
        prepare(accelerator, loader_of(20, 4) if not config else object(), loader)
    assert accelerator._dataloaders == []
    assert accelerator.dataloader_config.use_stateful_dataloader == (not config)


def test_a_checkpoint_of_plain_accelerate_is_refused_with_the_way_out(tmp_path):
    accelerator = accelerator_of({"use_stateful_dataloader": True})
    loader = accelerator.prepare(loader_of(20, 4))
    walk(loader, 2)
    accelerator.save_state(str(tmp_path))
    accelerator, loader = prepared()
    walk(loader, 1)
    with pytest.raises(
        ValueError, match=r"rankless_sampler\.json is missing.*load_state before the loader is prepared"
    ):
        accelerator.load_state(str(tmp_path))
    assert loader.state_dict()["position"] == 4
    accelerator = accelerator_of({})  # the way out
    accelerator.load_state(str(tmp_path))
    loader = prepare(accelerator, loader_of(20, 4))
    loader.set_epoch(3)
    assert walk(loader) == cut(20, 3)


GOOD = {"algorithm": "v1", "num_samples": 20, "seed": SEED, "epoch": 1, "position": 8}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[]",
        "17",
        '"text"',
        "{}",
        '{"format": 1}',
        '{"format": 1, "step": 0, "dataloaders": 3}',
        '{"format": 1, "step": 0, "dataloaders": {}}',
        '{"format": 1, "step": 0, "dataloaders": [17, {}]}',
        '{"format": 1, "step": 0, "dataloaders": [{}, {}]}',
        json.dumps({"format": 2, "step": 0, "dataloaders": [GOOD, GOOD]}),
        json.dumps({"format": 1, "step": -1, "dataloaders": [GOOD, GOOD]}),
        json.dumps({"format": 1, "step": "0", "dataloaders": [GOOD, GOOD]}),
        json.dumps({"format": 1, "dataloaders": [GOOD, GOOD]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, GOOD, GOOD]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, GOOD | {"num_samples": 21}]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, GOOD | {"position": 21}]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, GOOD | {"position": 8.0}]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, GOOD | {"algorithm": "v9"}]}),
        json.dumps({"format": 1, "step": 0, "dataloaders": [GOOD, None]}),
        "\x00\ufffe",
    ],
)
def test_a_damaged_checkpoint_is_refused_and_nothing_is_changed(tmp_path, content):
    accelerator = accelerator_of({})
    loaders = prepare(accelerator, loader_of(20, 4), loader_of(20, 5))
    walk(loaders[0], 2), walk(loaders[1])
    accelerator.save_state(str(tmp_path))
    before = [loader.state_dict() for loader in loaders]
    accelerator.step = 5
    (tmp_path / CHECKPOINT_FILE).write_text(content)
    with pytest.raises(ValueError, match=r"rankless_sampler\.json|state"):
        accelerator.load_state(str(tmp_path))
    assert [loader.state_dict() for loader in loaders] == before
    assert accelerator.step == 5
    assert walk(loaders[1]) == cut(20, 1, batch_size=5)


def test_a_cut_short_checkpoint_is_refused_at_every_length(checkpoint):
    path = Path(checkpoint, CHECKPOINT_FILE)
    whole = path.read_bytes()
    accelerator, loader = prepared()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged.*Load the checkpoint before it"):
            accelerator.load_state(checkpoint)
    assert walk(loader) == cut(20, 0)


def test_skip_first_batches_serves_where_nothing_was_loaded_and_is_refused_where_it_would_skip_twice(checkpoint):
    accelerator, loader = prepared()
    loader.set_epoch(1)
    assert walk(accelerator.skip_first_batches(loader, 2)) == cut(20, 1, 8)
    accelerator, loader = prepared()
    accelerator.load_state(checkpoint)
    with pytest.raises(RuntimeError, match="would skip a second time"):
        walk(accelerator.skip_first_batches(loader, 2))
    assert walk(loader) == cut(20, 1, 8)


def test_save_state_inside_a_skipping_loop_is_refused_and_leaves_the_folder_alone(tmp_path):
    accelerator, loader = prepared()
    evaluation = prepare(accelerator, loader_of(8, 4, seed=8))
    for batch in accelerator.skip_first_batches(loader, 1):
        assert batch.tolist() == cut(20, 0, 4)[0]
        with pytest.raises(RuntimeError, match=r"save_state inside a loop over skip_first_batches"):
            accelerator.save_state(str(tmp_path / "checkpoint"))
        for _ in evaluation:
            with pytest.raises(RuntimeError, match=r"save_state inside a loop over skip_first_batches"):
                accelerator.save_state(str(tmp_path / "checkpoint"))
        break
    assert not (tmp_path / "checkpoint").exists()


def test_bad_epochs_are_refused_and_change_nothing(checkpoint):
    accelerator, loader = prepared()
    accelerator.load_state(checkpoint)
    for epoch, kind in ((-1, ValueError), (1.5, TypeError), ("1", TypeError), (None, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="epoch must be"):
            loader.set_epoch(epoch)
    with pytest.raises(ValueError, match="this dataset has 20"):
        loader.load_state_dict({**loader.state_dict(), "num_samples": 30})
    assert walk(loader) == cut(20, 1, 8)


def test_a_dataset_that_grew_after_load_state_is_refused_at_the_first_batch(checkpoint):
    accelerator, loader = prepared()
    accelerator.load_state(checkpoint)
    loader.dataset.n = loader.get_sampler().data_source = 24
    for _ in range(2):
        with pytest.raises(ValueError, match=r"num_samples=20, but this dataset has 24.*set_epoch\(2\)"):
            walk(loader)
        with pytest.raises(ValueError, match="this dataset has 24"):
            loader.set_epoch(1)
    loader.set_epoch(2)
    assert walk(loader) == cut(24, 2)


def test_one_process_of_several_whose_accelerator_knows_nothing_of_them_is_refused(monkeypatch):
    accelerator = accelerator_of({})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"one of WORLD_SIZE=2, .*Accelerator\(cpu=True\)"):
        prepare(accelerator, loader_of(20, 4))


def test_configuration_objects_are_left_as_they_were():
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    prepare(accelerator, loader_of(20, 4))
    assert config.use_stateful_dataloader is True
