"""accelerate.prepare: exact, elastic resume through real save_state and load_state, and nothing else changed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rankless_sampler import EpochOrder

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
        walks = laid_out(shuffled(23, 0), 0, 2, replicas, drop_last=False, even_batches=True)
        rests = laid_out(shuffled(23, 0), 4 * replicas, 2, replicas, drop_last=False, even_batches=True)
        for process, rank in enumerate(ranks):
            found = results[process][number]
            assert found == {"walk": walks[rank], "rest": rests[rank], "total_batch_size": 2 * replicas}, MESHES[number]


def test_on_a_large_mesh_the_data_parallel_rank_is_the_one_that_accelerate_computes(launched):
    assert launched[4]["ranks_on_a_mesh"] == [[[4, process // 3] for process in range(12)]]
