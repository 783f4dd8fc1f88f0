"""What the measurements say: tables, pictures, and a comparison with committed ones.

Everything is told as ratios within one run: machines differ, and this one may be busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.speed import OURS, SAMPLERS, Result

SLACK = 1.5
"""A ratio may be so many times the committed one before `--check` speaks: repetitions differ by up to a third."""

Key = tuple[str, str, str]


def by_key(results: Iterable[Result]) -> dict[Key, Result]:
    """Results by (group, name, entry)."""
    return {(r.group, r.name, r.entry): r for r in results}


def ratios(results: Iterable[Result]) -> dict[tuple[Key, str], float]:
    """By (result, baseline): how many times the baseline's median, of every result that has one."""
    found = by_key(results)
    return {
        (key, baseline): r.median / base.median
        for key, r in found.items()
        for baseline in r.baselines
        if baseline != r.entry and (base := found.get((r.group, r.name, baseline))) is not None and base.median > 0
    }


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# ---- tables ------------------------------------------------------------------------------------------


def markdown(results: list[Result], machine: dict[str, str]) -> str:
    """The whole report."""
    lines = [
        "# Speed, memory and state",
        "",
        "Written by `python -m benchmarks`. Entries of a table took turns in one process (peak memory and import: a "
        "fresh process each). Median of the repetitions, lowest and highest; ratios of medians, lower is better. "
        "`~` marks repetitions whose quartiles lie more than 30 % of the median apart: read those with care.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
    ]
    relative = ratios(results)
    group = ""
    for case in dict.fromkeys((r.group, r.name) for r in results):
        members = [r for r in results if (r.group, r.name) == case]
        if case[0] != group:
            group = case[0]
            lines += [f"## {group[0].upper()}{group[1:]}", ""]
        baselines = members[0].baselines
        lines += [
            f"| {case[1]} | {members[0].unit} | lowest | highest | {' | '.join(f'/ {b}' for b in baselines)} |",
            f"|---|---:|---:|---:|{'---:|' * max(1, len(baselines))}",
        ]
        for r in members:
            to = [relative.get(((*case, r.entry), baseline)) for baseline in baselines]
            cells = [number(r.median) + " ~" * r.wide, number(min(r.values)), number(max(r.values))]
            cells += ["-" if ratio is None else f"{ratio:.2f}x" for ratio in to] or [""]
            lines.append(f"| {r.entry} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["![scaling](speed.scaling.png)", "", "![ratios](speed.ratios.png)", ""]
    return "\n".join(lines)


COLUMNS: dict[str, tuple[str, str]] = {
    "ns an index, batches of 32, n = 10^6": ("BatchSampler(32)", "n = 1,000,000"),
    "n = 10^7": ("BatchSampler(32)", "n = 10,000,000"),
    "us to the first index, n = 10^7": ("first index", "n = 10,000,000"),
    "us to resume at 50 %": ("resume", "at 50 % of n = 10,000,000"),
    "MiB for the first 10^6 of 10^7": ("peak memory", "n = 10,000,000"),
    "bytes of state": ("state size", "pickled"),
}


def summary(results: list[Result]) -> str:
    """The README's table: one line for each sampler, in one full run."""
    found = by_key(results)
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for entry in [*SAMPLERS, "ShardedBatchSampler"]:
        cells = []
        for group, name in COLUMNS.values():
            r = found.get((group, name, entry)) or found.get((group, name, f"{entry}(32)"))
            cells.append("-" if r is None else number(r.median) if r.unit != "bytes" else f"{r.median:,.0f}")
        own = entry in OURS or entry == "ShardedBatchSampler"
        lines.append(f"| {f'**{entry}**' if own else entry} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# ---- a guard -----------------------------------------------------------------------------------------


def slower(results: list[Result], committed: list[Result]) -> list[str]:
    """Where one of ours takes more than SLACK times the committed ratio to its baseline."""
    now, before = ratios(results), ratios(committed)
    found = by_key(results)
    lines = []
    for (key, baseline), ratio in now.items():
        group, name, entry = key
        if not entry.startswith(("Seeded", "Sharded", "EpochOrder", "from rankless", "import rankless")):
            continue
        old = before.get((key, baseline))
        if old is not None and ratio > SLACK * old:
            wide = " (repetitions far apart)" if found[key].wide else ""
            lines.append(f"{group}, {name}: {entry} is {ratio:.2f}x {baseline}, was {old:.2f}x{wide}")
    return lines


# ---- pictures ----------------------------------------------------------------------------------------


def draw(results: list[Result], folder: Path) -> None:
    """Scaling of the first index and of memory against n; ratios to SequentialSampler at n = 10^6."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    colours = {name: f"C{i}" for i, name in enumerate([*SAMPLERS, "ShardedBatchSampler"])}
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, (group, label) in zip(
        axes, (("first index", "us to the first index"), ("peak memory", "MiB of peak memory")), strict=True
    ):
        for entry in SAMPLERS:
            points = sorted(
                (int(r.name.removeprefix("n = ").replace(",", "")), max(r.median, 0.01))
                for r in results
                if r.group == group and r.entry == entry
            )
            if points:
                style = "o-" if entry in OURS else "s--"
                axis.loglog(*zip(*points, strict=True), style, label=entry, color=colours[entry], markersize=4)
        axis.set_xlabel("samples in the dataset")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.savefig(folder / "speed.scaling.png", dpi=110)
    plt.close(figure)

    found = by_key(results)
    ways = [("BatchSampler(32)", "n = 1,000,000"), ("BatchSampler(256)", "n = 1,000,000"), ("bare", "n = 1,000,000")]
    figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
    height = 0.8 / len(ways)
    for i, (group, name) in enumerate(ways):
        base = found.get((group, name, "SequentialSampler"))
        for j, entry in enumerate(colours):
            r = found.get((group, name, entry))
            if r is not None and base is not None:
                bar = axis.barh(j + i * height, r.median / base.median, height, color=f"C{i}")
                axis.bar_label(bar, fmt="%.2f", fontsize=6, padding=2)
    axis.set_yticks([j + height for j in range(len(colours))], list(colours), fontsize=8)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("time of an index, in SequentialSampler's (n = 1,000,000)")
    handles = [Patch(color=f"C{i}") for i in range(len(ways))]
    axis.legend(handles, [group for group, _ in ways], fontsize=8)
    figure.savefig(folder / "speed.ratios.png", dpi=110)
    plt.close(figure)
