"""docs/reference/broker-cpu.png and broker-latency.png, of the last full run of this bench."""

import statistics
from pathlib import Path
from typing import Any

from report import Result

COLOURS = {
    "Penstock disk": "#1f5fa8", "Penstock os": "#6fa3d8", "Penstock disk, pure": "#3a7d44",
    "Penstock os, pure": "#9ccfa3", "RabbitMQ": "#b3362c",
}  # fmt: skip


def draw(found: Result, docs: Path) -> None:
    """Both, as far as there are figures for them."""
    import matplotlib as mpl

    mpl.use("Agg")
    figures = found["figures"]
    rows = [
        (row["what"] if group == "shapes" else f"{group}, {row['what']}", row["peers"])
        for group in ("transient", "persistent", "shapes")
        for row in figures.get(group, [])
    ]
    if rows:
        draw_cpu(rows, docs / "broker-cpu.png")
    if "latency" in figures:
        draw_latency(figures["latency"], docs / "broker-latency.png")


def draw_cpu(rows: list[tuple[str, Result]], out: Path) -> None:
    """A bar per row and broker: the median, with least and most."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.62 * len(rows) + 1.2), layout="constrained")
    named: set[str] = set()
    for at, (_, peers) in enumerate(rows):
        there = [(name, p["server_us_per_msg"]) for name, p in peers.items()
                 if "server_us_per_msg" in p]  # fmt: skip
        height = 0.84 / max(1, len(there))
        for place, (name, values) in enumerate(there):
            y = at - 0.42 + (place + 0.5) * height
            middle = statistics.median(values)
            error = [[middle - min(values)], [max(values) - middle]]
            axes.barh(y, middle, height * 0.92, color=COLOURS.get(name, "grey"), xerr=error,
                      error_kw={"lw": 0.7, "ecolor": "#444444"},
                      label=None if name in named else name)  # fmt: skip
            named.add(name)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", which="both", lw=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel("CPU of the server's process tree, µs per message (logarithmic)")
    figure.legend(fontsize=8, loc="outside upper right", ncols=5, frameon=False)
    save(figure, out)


def draw_latency(rows: list[Result], out: Path) -> None:
    """p50, p99, p99.9 per situation and broker: the median of the runs."""
    from matplotlib import pyplot

    keys = ("p50", "p99", "p99_9")
    figure, panels = pyplot.subplots(
        1, len(rows), figsize=(2.9 * len(rows), 3.2), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes, row in zip(panels[0], rows, strict=True):
        width = 0.8 / max(1, len(row["peers"]))
        for place, (name, runs) in enumerate(row["peers"].items()):
            told = [run["latency_us"] for run in runs if "latency_us" in run]
            if told:
                heights = [statistics.median(one[k] for one in told) / 1000 for k in keys]
                xs = [i - 0.4 + (place + 0.5) * width for i in range(len(keys))]
                axes.bar(xs, heights, width * 0.92, color=COLOURS.get(name, "grey"), label=name)
        axes.set_xticks(range(len(keys)), ["p50", "p99", "p99.9"], fontsize=8)
        axes.set_title(row["what"], fontsize=8)
        axes.set_yscale("log")
        axes.grid(axis="y", lw=0.3)
        axes.set_axisbelow(True)
    panels[0][0].set_ylabel("ms at 5,000 messages per s")
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=8, loc="outside upper right", ncols=5, frameon=False)
    save(figure, out)


def save(figure: Any, out: Path) -> None:
    figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"drawn to {out}")
