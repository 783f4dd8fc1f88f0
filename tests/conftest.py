"""Fixtures that start real processes: torchrun over loopback, gloo, CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

TESTS = Path(__file__).parent
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


class RunRanks(Protocol):
    def __call__(
        self,
        world_size: int,
        function: str,
        *,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        max_restarts: int = 0,
        **kwargs: Any,
    ) -> list[Any]: ...


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Call a function on every rank of a new torchrun launch; its results, by rank.

    Args:
        world_size: processes.
        function: the name of one in tests/ranks.py, or ``"module:function"`` of another module in tests/.
        timeout: seconds after which a hung rank prints where it stands and the test fails.
        env: environment variables for the ranks, beside the current ones.
        max_restarts: how often torchrun starts all ranks again after one has died; the last life's results count.
        kwargs: arguments of the function; they and its results travel as JSON (keys become strings).
    """

    def run(
        world_size: int,
        function: str,
        *,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        max_restarts: int = 0,
        **kwargs: Any,
    ) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launch += ["--nproc-per-node", str(world_size), "--max-restarts", str(max_restarts)]
        launch += [str(TESTS / "ranks.py"), function, str(folder), json.dumps(kwargs), str(timeout)]
        log = folder / "log"
        with log.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                launch, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=_environment() | dict(env or {})
            )
            try:
                status: object = process.wait(timeout * (1 + max_restarts) + 60)  # each rank watches the time itself
            except subprocess.TimeoutExpired as error:
                status = error
            finally:
                if process.poll() is None:
                    process.terminate()  # torchrun ends its ranks
                    process.wait(60)
        results = [folder / f"rank{rank}.json" for rank in range(world_size)]
        if status != 0 or not all(path.exists() for path in results):
            text = log.read_text(encoding="utf-8", errors="replace")
            pytest.fail(f"{function} on {world_size} ranks: torchrun exited with {status}\n{text}", pytrace=False)
        return [json.loads(path.read_text(encoding="utf-8")) for path in results]

    return run


def _environment() -> dict[str, str]:
    """That of the ranks: the same package as in this process, one thread each, loopback only, no GPU."""
    package = importlib.util.find_spec("rankless_sampler")
    assert package is not None
    assert package.origin is not None
    path = [str(Path(package.origin).parents[1]), os.environ.get("PYTHONPATH", "")]
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "TORCHELASTIC_"))}
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        # torchrun 2.13 keeps its store over a restart: gloo would find the addresses of the ranks that died.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if sys.platform in _LOOPBACK:
        own["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    return outer | own
