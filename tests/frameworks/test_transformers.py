"""transformers' own Trainer, a real (tiny) model, checkpoints, and new processes that go on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from frameworks.layouts import Batches, dealt_by_batch

N, SEED, SIZE = 53, 7, 4
EPOCHS = 3

# ---- on the ranks ------------------------------------------------------------------------------------


def train(runs: list[dict[str, Any]], folder: str) -> list[Any]:
    """By run: the batches that the model saw on this rank, and its weights afterwards; or the error's text.

    A run's settings: "name" (of its folder), "resume" (from which step; None: from the beginning), "stop" (after which
    step), "callback", "own_seed" (of a sampler by the user's own `_get_train_sampler`), and TrainingArguments.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from rankless_sampler import SeededEpochSampler
    from rankless_sampler.transformers import SeededOrderCallback

    class OwnTrainer(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SeededEpochSampler(self.train_dataset, seed=own_seed)

    class Stop(TrainerCallback):
        def __init__(self, step: int) -> None:
            self.step = step

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step >= self.step

    results: list[Any] = []
    for settings in runs:
        options = dict(settings)
        output = str(Path(folder, options.pop("name")))  # an absolute one stays
        resume, stop, callback = options.pop("resume", None), options.pop("stop", None), options.pop("callback", True)
        samples, own_seed = options.pop("samples", N), options.pop("own_seed", None)
        torch.manual_seed(0)
        size = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 4, "vocab_size": 128}
        model = GPT2LMHeadModel(GPT2Config(**size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        seen: Batches = []
        model.register_forward_pre_hook(
            lambda module, inputs, named, seen=seen: seen.append(named["input_ids"][:, 0].tolist()), with_kwargs=True
        )
        arguments = {
            "per_device_train_batch_size": SIZE,
            "num_train_epochs": EPOCHS,
            "data_seed": SEED,
            "save_strategy": "steps",
            "save_steps": 1,
            "logging_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "learning_rate": 0.1,
            **options,
        }
        callbacks: list[Any] = [SeededOrderCallback()] if callback else []
        trainer = (Trainer if own_seed is None else OwnTrainer)(
            model,
            TrainingArguments(output, **arguments),
            train_dataset=[{"input_ids": [i, 1], "labels": [i, 1]} for i in range(samples)],
            callbacks=callbacks + ([Stop(stop)] if stop is not None else []),
        )
        try:
            trainer.train(resume_from_checkpoint=None if resume is None else f"{output}/checkpoint-{resume}")
        except ValueError as error:
            results.append(str(error))
        else:
            results.append([seen, [parameter.flatten().tolist() for parameter in model.parameters()]])
    return results


# ---- the tests ---------------------------------------------------------------------------------------


def epochs(world_size: int, rank: int = 0, seed: int = SEED) -> list[Batches]:
    return [dealt_by_batch(N, seed, epoch, SIZE, world_size, rank) for epoch in range(EPOCHS)]


def joined(parts: list[Batches]) -> Batches:
    return [batch for part in parts for batch in part]


BATCHES = {1: 14, 2: 7}  # of a rank in an epoch
WHOLE: dict[str, Any] = {
    "plain": {},
    "accumulating": {"dataloader_num_workers": 2, "gradient_accumulation_steps": 2},
}
IN_EPOCH = {  # steps done in which epoch; of the accumulating run, half as many (rounded up) make an epoch
    1: {"plain": [(0, 5), (1, 5), (2, 0)], "accumulating": [(0, 3), (1, 3), (2, 0)]},
    2: {"plain": [(0, 3), (1, 3), (2, 0)], "accumulating": [(0, 2), (1, 2), (2, 0)]},
}


def steps(world_size: int, run: str, epoch: int, step: int) -> int:
    accumulation = WHOLE[run].get("gradient_accumulation_steps", 1)
    return epoch * -(-BATCHES[world_size] // accumulation) + step


FIRST: dict[int, dict[str, Any]] = {  # by number of processes and name
    1: {
        **WHOLE,
        "seed 3": {"seed": 3, "data_seed": None, "save_strategy": "no"},
        "deterministic": {"seed": 3, "full_determinism": True, "save_strategy": "no"},
        "bare": {"callback": False},
        "sequential": {"train_sampling_strategy": "sequential"},
        "grouped": {"train_sampling_strategy": "group_by_length"},
    },
    2: {**WHOLE, "own": {"own_seed": 5, "stop": 10}},
}
LATER: dict[int, dict[str, Any]] = {  # in new processes; the first word is the name of the run that is gone on with
    world_size: {
        f"{run} from {epoch}:{step}": {**WHOLE[run], "resume": steps(world_size, run, epoch, step)}
        for run, places in runs.items()
        for epoch, step in places
    }
    for world_size, runs in IN_EPOCH.items()
}
LATER[2] |= {"own uncured": {"own_seed": 5, "resume": 10, "callback": False}, "own": {"own_seed": 5, "resume": 10}}
LATER[1] |= {
    f"plain {name}": {"resume": 14 + 3, **settings}
    for name, settings in {
        "anew": {"ignore_data_skip": True},
        "anew, seed 8": {"ignore_data_skip": True, "data_seed": 8},
        "seed 8": {"data_seed": 8},
        "callbacks restored": {"restore_callback_states_from_checkpoint": True},
        "halves": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "batch size": {"per_device_train_batch_size": 2},
        "samples": {"samples": N + 1},
        "drop_last": {"dataloader_drop_last": True},
    }.items()
}
LATER[1] |= {"bare within": {"resume": 14 + 3}, "bare end": {"resume": 2 * 14}}


@pytest.fixture(scope="module")
def ran(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(number of processes, name) -> what `train` gave, by rank. A launch costs many seconds: four do it all."""
    results: dict[tuple[int, str], list[Any]] = {}
    folders = {world_size: str(tmp_path_factory.mktemp(f"processes{world_size}")) for world_size in FIRST}

    def launch(world_size: int, runs: dict[str, Any], folder: str) -> None:
        named = [{"name": name.split(" ")[0], **run} for name, run in runs.items()]
        ranks = run_ranks(world_size, "frameworks.test_transformers:train", runs=named, folder=folder, timeout=400)
        for number, name in enumerate(runs):
            results[world_size, name] = [rank[number] for rank in ranks]

    for world_size in (2, 1):
        launch(world_size, FIRST[world_size], folders[world_size])
        later = {name: {"save_strategy": "no", **run} for name, run in LATER[world_size].items()}
        if world_size == 1:  # what two processes began
            half = {"name": str(Path(folders[2], "plain")), "resume": 7 + 3, "gradient_accumulation_steps": 2}
            later["begun by two"] = {**half, "save_strategy": "no"}
        launch(world_size, later, folders[world_size])
    return results


def test_layouts_are_what_they_say() -> None:
    ranks = [dealt_by_batch(N, SEED, 0, SIZE, 2, rank) for rank in range(2)]
    assert [len(batches) for batches in ranks] == [7, 7]
    samples = [index for step in zip(*ranks, strict=True) for batch in step for index in batch]
    assert sorted(samples[:N]) == list(range(N))
    assert samples[N:] == samples[:3]


@pytest.mark.parametrize("run", WHOLE)
@pytest.mark.parametrize("world_size", [1, 2])
def test_epochs_come_in_their_orders(world_size: int, run: str, ran: Any) -> None:
    for rank, (seen, _) in enumerate(ran[world_size, run]):
        assert seen == joined(epochs(world_size, rank))


@pytest.mark.parametrize(
    ("world_size", "run", "epoch", "step"),
    [(w, run, *place) for w, runs in IN_EPOCH.items() for run, places in runs.items() for place in places],
)
def test_a_resumed_run_gets_the_rest_and_ends_with_the_same_weights(
    world_size: int, run: str, epoch: int, step: int, ran: Any
) -> None:
    done = step * WHOLE[run].get("gradient_accumulation_steps", 1)
    for rank, (seen, weights) in enumerate(ran[world_size, f"{run} from {epoch}:{step}"]):
        expected = epochs(world_size, rank)
        assert seen == joined([expected[epoch][done:], *expected[epoch + 1 :]])
        assert weights == ran[world_size, run][rank][1]


def test_without_the_callback_the_resumed_epoch_would_be_another_one(ran: Any) -> None:
    # The fault that the callback is for; if this fails, the Trainer has been mended.
    for rank in range(2):
        expected = epochs(2, rank, seed=5)
        assert ran[2, "own uncured"][rank][0] == expected[0][3:] + expected[2]


def test_a_sampler_of_the_users_own_is_kept_and_cured(ran: Any) -> None:
    for rank in range(2):
        expected = epochs(2, rank, seed=5)
        assert ran[2, "own"][rank][0] == expected[1][3:] + expected[2]


def test_data_seed_decides_or_else_seed(ran: Any) -> None:
    assert ran[1, "seed 3"][0][0] == joined(epochs(1, seed=3))
    assert ran[1, "deterministic"][0][0] == joined(epochs(1))
    assert sorted(index for batch in ran[1, "bare"][0][0][:14] for index in batch) == list(range(N))


def test_ignore_data_skip_begins_the_epoch_anew(ran: Any) -> None:
    _, second, third = epochs(1)
    # The Trainer ends it where the steps of the run do.
    assert ran[1, "plain anew"][0][0][:14] == second
    assert ran[1, "plain anew"][0][0][14:] == third[: len(ran[1, "plain anew"][0][0]) - 14]
    assert ran[1, "plain anew, seed 8"] == ran[1, "plain anew"]  # the checkpoint's seed wins


def test_the_seed_and_the_callbacks_may_come_from_the_checkpoint(ran: Any) -> None:
    _, second, third = epochs(1)
    assert ran[1, "plain seed 8"][0][0] == second[3:] + third
    assert ran[1, "plain callbacks restored"][0][0] == second[3:] + third


def test_processes_and_batches_may_change_while_a_step_has_as_many_samples(ran: Any) -> None:
    _, second, third = epochs(1)
    halves = [index for batch in ran[1, "plain halves"][0][0] for index in batch]
    assert halves == [index for batch in second[3:] + third for index in batch]
    assert ran[1, "begun by two"][0][0] == second[6:] + third


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("plain batch size", "samples_per_step=2, was 4; steps_per_epoch=27, was 14"),
        ("plain samples", "a dataset with 53 samples, but this one has 54"),
        ("plain drop_last", "steps_per_epoch=13, was 14"),
        ("bare within", "made without SeededOrderCallback: the rest of that epoch is in another order"),
        ("sequential", "walks a SequentialSampler, whose meaning would be lost (train_sampling_strategy='sequential')"),
        ("grouped", "walks a LengthGroupedSampler, whose meaning would be lost"),
    ],
)
def test_what_would_be_another_order_is_an_error(run: str, message: str, ran: Any) -> None:
    assert message in ran[1, run][0]


def test_a_refused_checkpoint_leaves_the_sampler_as_it_was() -> None:
    from rankless_sampler import SeededEpochSampler
    from rankless_sampler.transformers import _go_on

    sampler = SeededEpochSampler(N, SEED)
    before = sampler.state_dict()
    step = {"samples_per_step": 4, "steps_per_epoch": 14}
    saved = {"sampler": SeededEpochSampler(N, 8).state_dict(), **step, "samples_per_step": 2}
    with pytest.raises(ValueError, match="samples_per_step=4, was 2"):
        _go_on(sampler, step, 17, {"attributes": {"saved": saved}}, skip=True)
    assert sampler.state_dict() == before


def test_at_an_epochs_end_any_checkpoint_will_do(ran: Any) -> None:
    assert ran[1, "bare end"][0][0] == epochs(1)[2]
