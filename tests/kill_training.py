"""What runs on the ranks of test_training_kill.py: a small training that is killed, and checkpoints that are torn."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from elastic_runs import accelerator_of, loader_of
from torch.utils.data import DataLoader, Dataset

import rankless_sampler.accelerate
from rankless_sampler import SeededEpochSampler

SAVE_EVERY = 6  # steps


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DieInside:
    """A context in which the process is killed at the `at`-th call or return, of Python or of C."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.events = 0

    def __enter__(self) -> DieInside:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, *_: object) -> None:
        self.events += 1
        if self.events == self.at:
            die()


# ---- a training that is killed -----------------------------------------------------------------------


class Digits(Dataset[Any]):
    def __init__(self, file: str) -> None:
        arrays = np.load(file)
        self.pixels = torch.from_numpy(arrays["pixels"]).float() / 16
        self.digits = torch.from_numpy(arrays["digits"]).long()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        return index, self.pixels[index], self.digits[index]


class TrainedOn:
    """How often each sample has gone into the model, over all ranks; saved and loaded with it."""

    def __init__(self, n: int) -> None:
        self.counts = torch.zeros(n, dtype=torch.long)
        self.steps = 0

    def add(self, indices: torch.Tensor) -> None:
        self.counts += torch.bincount(indices, minlength=len(self.counts))
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.steps = state["counts"], state["steps"]


def train(digits: str, folder: str, epochs: int, kills: int, seed: int) -> dict[str, Any]:
    """Train to the end; in each of the first `kills` lives, one rank is killed at a random step, or in a save_state."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    data = Digits(digits)
    trained = TrainedOn(len(data))
    accelerator.register_for_checkpointing(trained)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, 32, sampler=SeededEpochSampler(data, seed), num_workers=life % 3)
    model, optimizer, loader = rankless_sampler.accelerate.prepare(accelerator, model, optimizer, loader)
    refused = _load_latest(accelerator, Path(folder))

    chance = random.Random(f"{seed} {life}")  # the same on both ranks
    victim, doomed_step = chance.randrange(2), trained.steps + chance.randint(1, 2 * SAVE_EVERY)
    doomed_save = life % 3 == 2  # rank 0, in its first save_state of this life
    event = chance.randint(1, 4_000)
    doomed = life < kills

    while loader.state_dict()["epoch"] < epochs:
        for indices, pixels, classes in loader:
            loss = torch.nn.functional.cross_entropy(model(pixels), classes)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            trained.add(accelerator.gather(indices))
            if trained.steps % SAVE_EVERY == 0:
                checkpoint = str(Path(folder, f"step{trained.steps:04}"))
                if doomed and doomed_save and accelerator.is_main_process:
                    _log(folder, life, "inside save_state", trained.steps, refused)
                    with DieInside(event):
                        accelerator.save_state(checkpoint)
                    die()
                accelerator.save_state(checkpoint)
            if doomed and not doomed_save and trained.steps == doomed_step:
                if accelerator.process_index == victim:
                    _log(folder, life, f"rank {victim}", trained.steps, refused)
                    die()
                accelerator.wait_for_everyone()  # nothing happens on this rank either before torchrun ends it
    with torch.no_grad():
        accuracy = (model(data.pixels).argmax(1) == data.digits).float().mean().item()
    return {
        "life": life,
        "counts": trained.counts.tolist(),
        "steps": trained.steps,
        "accuracy": accuracy,
        "weights": [parameter.detach().flatten().tolist() for parameter in model.parameters()],
    }


def _load_latest(accelerator: Any, folder: Path) -> list[str]:
    """Load the latest whole checkpoint, if there is one; the names of those that were refused."""
    refused = []
    for checkpoint in sorted(folder.glob("step*"), reverse=True):
        try:
            accelerator.load_state(str(checkpoint))
            break
        except ValueError:
            refused.append(checkpoint.name)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:  # so that they can be written again
        for name in refused:
            shutil.rmtree(folder / name)
    accelerator.wait_for_everyone()
    return refused


def _log(folder: str, life: int, who: str, step: int, refused: list[str]) -> None:
    with Path(folder, "kills").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"life": life, "who": who, "step": step, "refused": refused}) + "\n")


# ---- torn checkpoints --------------------------------------------------------------------------------


class Note:
    text = ""

    def state_dict(self) -> dict[str, Any]:
        return {"text": self.text}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.text = state["text"]


def tear(folder: str, points: int) -> dict[str, Any]:
    """Kill a child at `points` moments of a save_state, in a new folder and over an old checkpoint.

    Returns how many kills came before the end of the save and, by moment, what load_state then did: "refused", "old" or
    "new", or what else is there to see.
    """
    accelerator = accelerator_of({})
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note = Note()
    accelerator.register_for_checkpointing(note)
    model, optimizer, loader = rankless_sampler.accelerate.prepare(accelerator, model, optimizer, loader_of(20, 4))

    def be(what: str, number: int) -> None:
        """Another model, another note, another epoch."""
        for parameter in model.parameters():
            parameter.data.fill_(number)
        note.text = what
        loader.set_epoch(number)

    def walk(steps: int) -> None:
        for step, _ in enumerate(loader, start=1):
            if step == steps:
                break

    def seen() -> list[Any]:
        weights = {value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()}
        return [sorted(weights), note.text, loader.state_dict()["epoch"], loader.state_dict()["position"]]

    be("old", 1)
    walk(1)
    old = seen()
    whole = Path(folder, "whole")
    accelerator.save_state(str(whole))
    new = [[2.0], "new", 2, 8]
    mine = [[3.0], "mine", 3, 0]

    def save_and_die(event: int, target: Path) -> bool:
        """Save the new state into `target` in a child that dies at this event; whether it came to that."""
        child = os.fork()
        if child == 0:
            be("new", 2)
            walk(2)  # in the parent, each break would leave accelerate another loader to look at in save_state
            with DieInside(event) as inside:
                accelerator.save_state(str(target))
            Path(folder, "events").write_text(str(inside.events), encoding="utf-8")
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert died or status == 0
        return died

    accelerator.load_state(str(whole))  # as before each kill: what was loaded is more to save
    assert not save_and_die(-1, Path(folder, "counted"))
    events = int(Path(folder, "events").read_text(encoding="utf-8"))
    # As many near the end, where it is decided; where that is differs by some events from one save to the next.
    moments = sorted({*range(1, events, max(1, events // points)), *range(events - points, events + 10)})
    deaths = 0
    outcomes: dict[str, list[Any]] = {"new folder": [], "over an old one": []}
    for number, event in enumerate(moments):
        for where, found in outcomes.items():
            target = Path(folder, f"{where} {number}")
            if where == "over an old one":
                shutil.copytree(whole, target)
            deaths += save_and_die(event, target)
            be("mine", 3)
            try:
                if target.exists():
                    accelerator.load_state(str(target))
                    found.append({repr(old): "old", repr(new): "new"}.get(repr(seen()), seen()))
                else:
                    found.append("nothing there")
            except ValueError as error:
                found.append("refused" if seen() == mine and "is missing" in str(error) else [str(error), seen()])
            accelerator.load_state(str(whole))
            assert seen() == old
            shutil.rmtree(target, ignore_errors=True)
    return {"deaths": deaths, "outcomes": outcomes}
