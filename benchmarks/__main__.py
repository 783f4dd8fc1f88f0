"""Speed, memory and state of our samplers beside their peers, in one run.

python -m benchmarks                    everything, about 25 minutes; writes benchmarks/results/speed.*
python -m benchmarks --quick            a part of it, under a minute; writes nothing without --output
python -m benchmarks --quick --check    and compares its ratios with the committed ones: exit status 3 if slower
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import report, speed

RESULTS = Path(__file__).parent / "results"
SLOWER = 3


def main(arguments: Sequence[str] | None = None, *, plan: speed.Plan | None = None) -> int:
    """Measure and report. Returns 0, or SLOWER where `--check` found one of ours slower than committed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a part of it, under a minute")
    parser.add_argument("--check", action="store_true", help="compare ratios with the committed ones")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to write (default: benchmarks/results/)")
    options = parser.parse_args(arguments)
    committed = (RESULTS / "speed.json").read_text(encoding="utf-8") if options.check else None
    folder = options.output or (None if options.quick else RESULTS)
    chosen = plan or (speed.QUICK if options.quick else speed.FULL)

    results = speed.run(chosen, _progress)
    text = report.markdown(results, speed.machine())
    print(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "speed.json").write_text(speed.as_json(results), encoding="utf-8")
        (folder / "speed.md").write_text(text, encoding="utf-8")
        report.draw(results, folder)
    if committed is None:
        return 0
    slower = report.slower(results, speed.from_json(committed)[1])
    print("\n".join(slower) or f"no ratio of ours is more than {report.SLACK} times the committed one")
    return SLOWER if slower else 0


def _progress(parts: Iterable[Any], total: int) -> Iterator[Any]:
    yield from tqdm(parts, total=total, unit="part")


if __name__ == "__main__":
    sys.exit(main())
