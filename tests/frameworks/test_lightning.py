"""Lightning's own Trainer and Fabric, a real (tiny) model, checkpoints, and new processes that go on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

from frameworks.layouts import Batches, dealt_by_batch, dealt_by_sample

N, SEED, SIZE = 53, 7, 4
EPOCHS = 3
BATCHES = {1: 14, 2: 7}  # of a rank in an epoch

# ---- on the ranks ------------------------------------------------------------------------------------


def new_loader(kind: str, workers: int, epoch: int | None = None) -> Any:
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    from rankless_sampler import SeededDistributedSampler, SeededEpochSampler, ShardedBatchSampler
    from rankless_sampler.lightning import ResumableDataLoader

    data: Any = range(N)
    if kind == "batches":
        batches = ShardedBatchSampler(SeededEpochSampler(data, SEED), SIZE)
        return ResumableDataLoader(data, batch_sampler=batches, num_workers=workers)
    sampler: Any = SeededEpochSampler(data, SEED) if kind == "covered" else SeededDistributedSampler(data, seed=SEED)
    if epoch is not None:
        sampler.set_epoch(epoch)
    classes: dict[str, Any] = {"stateful": StatefulDataLoader, "resumable": ResumableDataLoader}
    return classes.get(kind, DataLoader)(data, batch_size=SIZE, sampler=sampler, num_workers=workers)


def fit(runs: list[dict[str, Any]], folder: str) -> list[Any]:
    """By run: the batches that the model saw on this rank, and its weights afterwards; or the error's text.

    A run's settings: "name" (of its folder), "loader", "workers", "resume" (which checkpoint), "callback".
    """
    import os

    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rankless_sampler.lightning import SeededOrderCallback

    class Model(lightning.LightningModule):
        def __init__(self, kind: str, workers: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(1, 1)
            self.seen: Batches = []
            self.kind, self.workers = kind, workers

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.append(batch.tolist())
            x = batch.float().unsqueeze(1) / N
            return torch.nn.functional.mse_loss(self.layer(x), x.sin())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self) -> Any:
            return new_loader(self.kind, self.workers)

    results: list[Any] = []
    for run in runs:
        place, resume = Path(folder, run["name"]), run.get("resume")
        callbacks: list[Any] = [SeededOrderCallback()] if run.get("callback", True) else []
        if resume is None:
            every = ModelCheckpoint(place, filename="{step}", every_n_train_steps=1, save_top_k=-1)
            callbacks += [every, ModelCheckpoint(place, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)]
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=int(os.environ["WORLD_SIZE"]),
            strategy="ddp",
            max_epochs=EPOCHS,
            callbacks=callbacks,
            enable_checkpointing=resume is None,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=run["loader"] != "batches",
        )
        model = Model(run["loader"], run["workers"])
        try:
            trainer.fit(model, ckpt_path=None if resume is None else str(place / f"{resume}.ckpt"))
        except ValueError as error:
            results.append(str(error))
        else:
            results.append([model.seen, [parameter.flatten().tolist() for parameter in model.parameters()]])
    return results


def fabric_fit(folder: str, resume: bool) -> dict[str, Any]:
    """With Fabric: a loader that it does not set up, with 0 and 2 workers; and what its own counter does to another."""
    import os

    import torch
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    results: dict[str, Any] = {}
    for kind, workers in [("stateful", 0), ("stateful", 2), ("resumable", 0), ("resumable", 2)]:
        model = fabric.setup(torch.nn.Linear(1, 1))
        loader = new_loader(kind, workers)
        path = str(Path(folder, f"{kind}{workers}.ckpt"))
        first = 0
        if resume:
            remainder = fabric.load(path, {"model": model})
            first = remainder["epoch"]
            loader.load_state_dict(remainder["loader"])
        seen: Batches = []
        for epoch in range(first, EPOCHS):
            if epoch > first or not resume:  # a restored loader knows its epoch
                loader.sampler.set_epoch(epoch)
            for step, batch in enumerate(loader, start=1):
                seen.append(fabric.to_device(batch).tolist())
                if not resume and (epoch, step) == (1, 3):
                    fabric.save(path, {"model": model, "loader": loader.state_dict(), "epoch": epoch})
        results[f"{kind}{workers}"] = seen
    for name, distributed in [("own counter", True), ("told not to replace", False)]:
        loader = fabric.setup_dataloaders(new_loader("plain", 0), use_distributed_sampler=distributed)
        results[name] = []
        for epoch in (2, 1):
            loader.sampler.set_epoch(epoch)
            results[name] += [batch.tolist() for batch in loader]
    return results


# ---- the tests ---------------------------------------------------------------------------------------


def epochs(world_size: int, rank: int, kind: str = "resumable") -> list[Batches]:
    if kind == "batches" and world_size > 1:
        return [dealt_by_batch(N, SEED, epoch, SIZE, world_size, rank) for epoch in range(EPOCHS)]
    layout = [dealt_by_sample(N, SEED, epoch, SIZE, world_size, rank) for epoch in range(EPOCHS)]
    if kind == "batches":  # even_batches: of one process too
        layout = [[*epoch[:-1], epoch[-1] + epoch[0][: SIZE - len(epoch[-1])]] for epoch in layout]
    return layout


def joined(parts: list[Batches]) -> Batches:
    return [batch for part in parts for batch in part]


WHOLE: dict[str, dict[str, Any]] = {
    f"{loader}{workers}": {"loader": loader, "workers": workers}
    for loader in ("plain", "stateful", "resumable", "batches")
    for workers in (0, 2)
    if (loader, workers) != ("batches", 0)
}
PLACES = {  # what is left of which epoch, for a checkpoint of which name
    world_size: {
        "step=3": (0, 3),
        f"step={size + 3}": (1, 3),
        f"step={2 * size}": (2, 0),  # of the last step of epoch 1
        "epoch=0": (1, 0),  # of the end of epoch 0
    }
    for world_size, size in BATCHES.items()
}
LATER: dict[int, dict[str, dict[str, Any]]] = {
    world_size: {
        f"{run} {place}": {**settings, "resume": place}
        for run, settings in WHOLE.items()
        for place, (_, step) in places.items()
        if not (settings["loader"] == "plain" and step)
    }
    for world_size, places in PLACES.items()
}
for _world_size, _size in BATCHES.items():
    within, end = f"step={_size + 3}", f"step={2 * _size}"
    LATER[_world_size] |= {
        "plain2 within": {**WHOLE["plain2"], "resume": within},
        "plain2 uncured": {**WHOLE["plain2"], "resume": within, "callback": False},
        "plain2 uncured end": {**WHOLE["plain2"], "resume": "epoch=0", "callback": False},
        "stateful2 uncured": {**WHOLE["stateful2"], "resume": end, "callback": False},
        "stateful2 uncured end": {**WHOLE["stateful2"], "resume": "epoch=0", "callback": False},
        "resumable2 other workers": {**WHOLE["resumable2"], "workers": 0, "resume": within},
    }
FIRST: dict[int, dict[str, dict[str, Any]]] = {
    1: WHOLE,
    2: {**WHOLE, "covered": {"loader": "covered", "workers": 0}},
}


@pytest.fixture(scope="module")
def ran(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(number of processes, name) -> what `fit` gave, by rank. A launch costs many seconds: four do it all."""
    results: dict[tuple[int, str], list[Any]] = {}
    folders = {world_size: tmp_path_factory.mktemp(f"processes{world_size}") for world_size in FIRST}

    def launch(world_size: int, runs: dict[str, Any]) -> None:
        named = [{"name": name.split(" ")[0], **run} for name, run in runs.items()]
        folder = str(folders[world_size])
        ranks = run_ranks(world_size, "frameworks.test_lightning:fit", runs=named, folder=folder, timeout=400)
        for number, name in enumerate(runs):
            results[world_size, name] = [rank[number] for rank in ranks]

    for world_size in (2, 1):
        launch(world_size, FIRST[world_size])
        later = dict(LATER[world_size])
        if world_size == 1:  # what two processes began
            name = str(folders[2] / "resumable2")
            later["begun by two, end"] = {**WHOLE["resumable2"], "name": name, "resume": "epoch=0"}
            later["begun by two, last"] = {**WHOLE["resumable2"], "name": name, "resume": "step=14"}
            later["begun by two"] = {**WHOLE["resumable2"], "name": name, "resume": "step=10"}
        launch(world_size, later)
    return results


@pytest.mark.parametrize("run", WHOLE)
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_sampler_is_kept_and_told_its_epochs(world_size: int, run: str, ran: Any) -> None:
    for rank, (seen, _) in enumerate(ran[world_size, run]):
        assert seen == joined(epochs(world_size, rank, WHOLE[run]["loader"]))


@pytest.mark.parametrize(
    ("world_size", "run", "place"),
    [
        (world_size, run, place)
        for world_size, places in PLACES.items()
        for run in WHOLE
        for place in places
        if f"{run} {place}" in LATER[world_size]
    ],
)
def test_a_resumed_run_gets_the_rest_and_ends_with_the_same_weights(
    world_size: int, run: str, place: str, ran: Any
) -> None:
    epoch, step = PLACES[world_size][place]
    for rank, (seen, weights) in enumerate(ran[world_size, f"{run} {place}"]):
        expected = epochs(world_size, rank, WHOLE[run]["loader"])
        assert seen == joined([expected[epoch][step:], *expected[epoch + 1 :]])
        assert weights == ran[world_size, run][rank][1]


@pytest.mark.parametrize("world_size", [1, 2])
def test_workers_may_change(world_size: int, ran: Any) -> None:
    for rank, (seen, _) in enumerate(ran[world_size, "resumable2 other workers"]):
        expected = epochs(world_size, rank)
        assert seen == expected[1][3:] + expected[2]


@pytest.mark.parametrize("world_size", [1, 2])
def test_without_the_callback_resumed_runs_would_be_others(world_size: int, ran: Any) -> None:
    # The faults that the callback is for; if this fails, Lightning has been mended.
    for rank in range(world_size):
        expected = epochs(world_size, rank)
        left = BATCHES[world_size] - 3
        assert ran[world_size, "plain2 uncured"][rank][0] == expected[0][:left] + expected[2]
        for run in ("plain2", "stateful2"):
            assert ran[world_size, f"{run} uncured end"][rank][0] == expected[0] + expected[2]
        assert ran[world_size, "stateful2 uncured"][rank][0] == []


def test_ranks_may_change_at_an_epochs_end(ran: Any) -> None:
    expected = epochs(1, 0)
    assert ran[1, "begun by two, end"][0][0] == expected[1] + expected[2]


@pytest.mark.parametrize("run", ["begun by two", "begun by two, last"])
def test_ranks_that_changed_within_an_epoch_are_an_error(run: str, ran: Any) -> None:
    assert "made with [8] samples in a step over all ranks, but this run has [4]" in ran[1, run][0]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_plain_loader_within_an_epoch_is_an_error(world_size: int, ran: Any) -> None:
    for message in ran[world_size, "plain2 within"]:
        assert "cannot fast-forward a DataLoader: samples would come twice. Use rankless_sampler.lightning" in message


def test_an_order_that_lightning_shuffles_again_is_an_error(ran: Any) -> None:
    for message in ran[2, "covered"]:
        assert "Lightning shuffles the order of SeededEpochSampler(53, seed=7) once more" in message


@pytest.fixture(scope="module")
def fabric(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp("fabric"))
    return [
        run_ranks(2, "frameworks.test_lightning:fabric_fit", folder=folder, resume=resume) for resume in (False, True)
    ]


@pytest.mark.parametrize("loader", ["stateful0", "stateful2", "resumable0", "resumable2"])
def test_under_fabric_a_loader_of_your_own_is_exact(loader: str, fabric: Any) -> None:
    first, later = fabric
    for rank in range(2):
        expected = epochs(2, rank)
        assert first[rank][loader] == joined(expected)
        assert later[rank][loader] == expected[1][3:] + expected[2]


@pytest.mark.parametrize("loader", ["own counter", "told not to replace"])
def test_fabrics_own_counter_overrides_the_user(loader: str, fabric: Any) -> None:
    # If this fails, Fabric has been mended, and setup_dataloaders may be used.
    for rank in range(2):
        expected = epochs(2, rank)
        assert fabric[0][rank][loader] == expected[0] + expected[1]


# ---- ResumableDataLoader by itself ---------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_state_of_a_pass_leads_to_its_rest(workers: int, drop_last: bool) -> None:
    import torch

    from rankless_sampler import SeededDistributedSampler
    from rankless_sampler.lightning import ResumableDataLoader

    def build(number: int) -> ResumableDataLoader[Any]:
        sampler = SeededDistributedSampler(range(N), 2, 0, seed=SEED, drop_last=drop_last)
        sampler.set_epoch(1)
        data: Any = range(N)
        return ResumableDataLoader(data, batch_size=SIZE, sampler=sampler, drop_last=drop_last, num_workers=number)

    loader = build(workers)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    assert states[0]["position"] == 0
    assert states[2]["position"] == 2 * 2 * SIZE
    assert states[-1]["position"] == N
    loader.sampler.set_epoch(2)
    following = [batch.tolist() for batch in loader]
    for done, state in enumerate(states):
        resumed = build(0)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = [batch.tolist() for batch in resumed]
        assert rest == (batches[done:] or following)
    resumed = build(0)
    resumed.load_state_dict(states[2])
    resumed.sampler.set_epoch(1)  # of the same epoch: as Lightning calls it
    assert [batch.tolist() for batch in resumed] == batches[2:]
    resumed.load_state_dict(states[2])
    resumed.sampler.set_epoch(2)
    assert [batch.tolist() for batch in resumed] == following
    assert isinstance(next(iter(resumed)), torch.Tensor)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_that_of_the_pass_that_goes_on(workers: int) -> None:
    loader = new_loader("resumable", workers, epoch=1)
    for step, _ in enumerate(loader, start=1):
        if step % 2:
            next(iter(loader))  # a peek
        loader.sampler.set_epoch(1)  # as it is
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, min(step * SIZE, N))
    loader.sampler.set_epoch(2)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_state_wins_over_passes_that_were_begun_before(workers: int) -> None:
    loader = new_loader("resumable", workers, epoch=0)
    kept = iter(loader)
    next(kept)
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    resumed = iter(loader)
    next(resumed)
    next(kept)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 12)
    loader.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 8})
    loader.sampler.set_epoch(5)  # drops it
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (5, 0)


def test_persistent_workers_that_a_second_iterator_has_taken_are_an_error() -> None:
    from rankless_sampler import SeededEpochSampler
    from rankless_sampler.lightning import ResumableDataLoader

    data: Any = range(N)
    sampler = SeededEpochSampler(data, SEED)
    sampler.set_epoch(0)
    loader: Any = ResumableDataLoader(data, SIZE, sampler=sampler, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="persistent_workers=False"):
        next(batches)


def test_a_sampler_without_a_place_is_refused() -> None:
    from rankless_sampler.lightning import ResumableDataLoader

    data: Any = range(N)
    with pytest.raises(ValueError, match=r"a sampler whose place is known, got RandomSampler: give it"):
        ResumableDataLoader(data, shuffle=True)
    loader: Any = new_loader("resumable", 0)
    with pytest.raises(ValueError, match="num_samples=10, but this dataset has 53"):
        loader.load_state_dict({"algorithm": "v1", "num_samples": 10, "seed": 7, "epoch": 0, "position": 0})
    assert loader.state_dict()["position"] == 0


def test_the_examples_in_the_docstrings_are_right() -> None:
    import doctest

    import rankless_sampler.lightning

    failed, tried = doctest.testmod(rankless_sampler.lightning)
    assert (failed, tried > 0) == (0, True)
