"""The `rankless` command, run as a user runs it: real processes, nothing replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rankless_sampler
from rankless_sampler.cli import main

PACKAGE_ROOT = str(Path(rankless_sampler.__file__).parents[1])
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")


def rankless(*arguments: str, python: tuple[str, ...] = (sys.executable,), path: str = PACKAGE_ROOT):
    environment = os.environ | {"PYTHONPATH": path}
    command = [*python, "-m", "rankless_sampler", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def ranks_of(marker: str) -> list[int]:
    """The pids of the ranks, and of their workers, that were started with `marker` among their options."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if b"import _rank" in command and marker.encode() in command:
                found.append(int(entry.name))
    return found


def all_gone(marker: str) -> bool:
    end = time.monotonic() + 10
    while ranks_of(marker) and time.monotonic() < end:
        time.sleep(0.05)
    return not ranks_of(marker)


def test_demo_shows_the_fault_and_that_the_sampler_is_exact():
    done = rankless("demo")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +(\d) +(\d+)/96 +(\d+) +(\d+) +(\d+)/96 +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    (_, union, missing, duplicates, *exact), second = ([int(cell) for cell in row] for row in rows)
    assert exact == second[4:] == [96, 0, 0]
    assert union < 96
    assert missing == duplicates == 96 - union
    assert "came out right" not in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "What fixed it: DataLoader(dataset, sampler=SeededEpochSampler(dataset, seed=0), ...) in place of shuffle=True"
    )


def test_demo_counts_padding_as_exact_and_admits_where_shuffle_came_out_right():
    done = rankless("demo", "--workers", "0", "--samples", "13", "--batch-size", "3", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +0 +13/13 +0 +5 +13/13 +0 +5$", done.stdout, re.MULTILINE)
    assert "5 duplicates are accelerate's padding" in done.stdout
    assert "shuffle=True came out right in this run" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--ranks", "0"], "--ranks: must be an int >= 1, got '0'"),
        (["demo", "--workers", "-1"], "--workers: must be an int >= 0, got '-1'"),
        (["demo", "--samples", "many"], "--samples: must be an int >= 1, got 'many'"),
        (["demo", "--batch-size", "0"], "--batch-size: must be an int >= 1, got '0'"),
        (["demo", "--epochs", "1.5"], "--epochs: must be an int >= 1, got '1.5'"),
        (["demo", "--timeout", "0"], "--timeout: must be an int >= 1, got '0'"),
        ([], "COMMAND"),
        (["dance"], "dance"),
    ],
)
def test_bad_arguments_are_named_with_what_is_allowed(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_version_is_the_packages():
    done = rankless("--version")
    assert (done.returncode, done.stdout) == (0, f"rankless-sampler {rankless_sampler.__version__}\n")


def test_without_accelerate_the_demo_names_the_extra(tmp_path):
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):  # a Python (-S: without its site-packages) that has numpy and nothing else
        if (site / name).exists():
            (tmp_path / name).symlink_to(site / name)
    done = rankless("demo", python=(sys.executable, "-S"), path=os.pathsep.join([PACKAGE_ROOT, str(tmp_path)]))
    if "No module named 'numpy" in done.stderr:
        pytest.skip("numpy cannot be had alone here")
    assert done.returncode == 1
    assert done.stderr == "rankless demo: needs accelerate: pip install 'rankless-sampler[accelerate]'\n"


@needs_proc
def test_a_failed_rank_is_reported_with_its_stderr_and_the_others_are_ended():
    too_many = str(2**63 + int(time.time()))  # more than a range can count
    done = rankless("demo", "--samples", too_many, "--ranks", "3")
    assert done.returncode == 1
    assert re.match(r"rankless demo: rank \d: exit status 1; all ranks are ended\n", done.stderr)
    assert "OverflowError" in done.stderr
    assert all_gone(too_many)


@needs_proc
def test_a_run_out_of_time_is_ended_and_reported():
    epochs = str(10**6 + os.getpid())
    done = rankless("demo", "--timeout", "4", "--workers", "1", "--epochs", epochs)
    assert done.returncode == 1
    assert done.stderr.startswith("rankless demo: rank 0: no end within --timeout 4 s; all ranks are ended\n")
    assert all_gone(epochs)


@needs_proc
def test_ctrl_c_ends_every_rank():
    epochs = str(2 * 10**6 + os.getpid())
    demo = subprocess.Popen(
        [sys.executable, "-m", "rankless_sampler", "demo", "--workers", "1", "--epochs", epochs],
        env=os.environ | {"PYTHONPATH": PACKAGE_ROOT},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # some shells let background jobs ignore it
    )
    try:
        end = time.monotonic() + 60
        while (most := len(ranks_of(epochs))) < 4 and time.monotonic() < end:  # two ranks, a worker of each
            time.sleep(0.05)
        assert most >= 4
        demo.send_signal(signal.SIGINT)
        _, stderr = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert (demo.returncode, stderr) == (130, "rankless demo: interrupted, all ranks are ended\n")
    assert all_gone(epochs)
