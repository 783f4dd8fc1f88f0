"""The benchmarks measure what they say, and their guard speaks where it must."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import report, speed
from benchmarks.speed import Plan, Result

ROOT = Path(__file__).parents[1]
TINY = Plan(repetitions=5, lengths=(10, 100), huge=(10**12,), growth=(100,), resume=1_000, loader=64, fresh=False)
RESULTS = ROOT / "benchmarks" / "results"


def result(entry: str, *values: float, group: str = "bare") -> Result:
    return Result(group, "n = 10", entry, "ns an index", ("RandomSampler",), list(values))


@pytest.mark.parametrize("name", speed.SAMPLERS)
def test_every_entry_of_a_walk_gives_each_index_once(name):
    assert sorted(speed.SAMPLERS[name](100)) == list(range(100))
    for way in ("BatchSampler(32)", "BatchSampler(256)", "torchdata BatchSampler(32)"):
        batches = list(speed.WAYS[way](speed.SAMPLERS[name](100)))
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(100))


def test_every_resume_goes_on_where_it_should():
    for name in speed.SAMPLERS:
        first, after = (speed._resumptions(1_000, done)[name]() for done in (0, 10))
        assert 0 <= first < 1_000
        if name == "SequentialSampler" or name in speed.OURS:
            assert after == list(itertools.islice(speed.SAMPLERS[name](1_000), 11))[10]


def test_entries_take_turns_and_short_ones_repeat_until_a_turn_lasts_long_enough():
    calls = []
    entries = {"short": lambda: calls.append("short"), "long": lambda: calls.append("long") or time.sleep(0.003)}
    seconds = speed.interleaved(entries, 3)
    assert {name: len(values) for name, values in seconds.items()} == {"short": 3, "long": 3}
    turns = [name for name, _ in itertools.groupby(calls)]
    assert turns[-6:] == ["short", "long"] * 3
    assert calls.count("long") == 4
    assert calls.count("short") > 100
    assert all(second >= 0.003 for second in seconds["long"])


def test_a_run_answers_every_case_and_reads_back_what_it_wrote(tmp_path, capsys):
    assert command.main(["--output", str(tmp_path)], plan=TINY) == 0
    machine, results = speed.from_json((tmp_path / "speed.json").read_text())
    assert machine["torch"]
    groups = {r.group for r in results}
    assert {"bare", "BatchSampler(32)", "first index", "resume", "state size", "state_dict", "DataLoader"} <= groups
    assert all(value > 0 for r in results for value in r.values)
    assert all(len(r.values) == 5 for r in results if r.group != "state size")
    assert (tmp_path / "speed.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "speed.scaling.png").stat().st_size > 1_000
    assert (tmp_path / "speed.ratios.png").stat().st_size > 1_000


def test_ratios_are_of_medians_within_one_case():
    results = [result("RandomSampler", 2, 4, 9), result("SeededEpochSampler", 1, 2, 3), result("RandomSampler", 1)]
    results[2] = replace(results[2], group="first index")
    key = ("bare", "n = 10", "SeededEpochSampler")
    assert report.ratios(results) == {(key, "RandomSampler"): 0.5}


def test_the_guard_names_what_of_ours_became_slower_and_nothing_else():
    before = [result("RandomSampler", 10), result("SeededEpochSampler", 5), result("DistributedSampler", 5)]
    assert report.slower(before, before) == []
    machine_half_as_fast = [replace(r, values=[20 * r.values[0]]) for r in before]
    assert report.slower(machine_half_as_fast, before) == []
    peer_slower = [before[0], before[1], result("DistributedSampler", 50)]
    assert report.slower(peer_slower, before) == []
    (line,) = report.slower([before[0], result("SeededEpochSampler", 8)], before)
    assert line == "bare, n = 10: SeededEpochSampler is 0.80x RandomSampler, was 0.50x"


def test_repetitions_far_apart_are_marked():
    assert result("RandomSampler", 1, 1, 1, 2, 2).wide
    assert not result("RandomSampler", 1, 1, 1.1, 1.1, 5).wide


def test_peak_memory_is_that_of_the_walk():
    """A list of 10^6 ints takes 36 MiB and more; our walk of as many of 10^12 less than a tenth of it."""
    code = "from benchmarks import speed; print(speed.peak_memory({!r}, {!r}))"
    assert speed.in_fresh_process(code.format("RandomSampler", 10**6)) > 30
    assert speed.in_fresh_process(code.format("SeededEpochSampler", 10**12)) < 8


def test_the_readme_shows_the_committed_results():
    _, results = speed.from_json((RESULTS / "speed.json").read_text(encoding="utf-8"))
    assert report.summary(results) in (ROOT / "README.md").read_text(encoding="utf-8")
