"""The README's examples run as they stand, each in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def run_example(code: str, folder: Path) -> None:
    script = folder / "example.py"
    script.write_text(code, encoding="utf-8")
    # One process by itself: accelerate must not take the variables of an outer launch for its own.
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(README.parent)}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("code", EXAMPLES, ids=[code.strip().splitlines()[0][:60] for code in EXAMPLES])
def test_an_example_of_the_readme_runs_as_it_stands(code: str, tmp_path: Path) -> None:
    run_example(code, tmp_path)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 8
