"""The comparison as a person reads it: tables on the terminal, docs/performance.md and its plots."""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table

from contestants import ROOT
from figures import (
    NAMES,
    Result,
    Row,
    env_series,
    figure_table,
    foreign,
    loop_table,
    share_table,
    shares,
    short,
    speeds,
)
from shmenv.cli.cores import words
from workloads import WORKLOADS

DOCS = ROOT / "docs"
STORED = {False: DOCS / "performance.json", True: DOCS / "performance-loops.json"}  # by whether it is the loops
PAGE = DOCS / "performance.md"
MARKS = {
    False: ("<!-- written by make compare -->", "<!-- until here -->"),
    True: ("<!-- the loops, written by make compare -->", "<!-- until here the loops -->"),
}
WIDE = 6  # columns that fit a terminal

console = Console(highlight=False, width=max(110, Console().width))


def compact(result: Result) -> str:
    """As JSON that a diff can be read of, with no more digits than are known."""

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: rounded(one) for key, one in value.items()}
        return [rounded(one) for one in value] if isinstance(value, list) else value

    head = {key: value for key, value in result.items() if key != "workloads"}
    lines = [f"{json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in head.items()]
    for name, entries in result["workloads"].items():
        told = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(rounded(entry))}" for key, entry in entries.items())
        lines.append(f"{json.dumps('workloads/' + name)}: {{\n  {told}}}")
    return "{" + ",\n".join(lines) + "}\n"


def load(text: str) -> Result:
    """The reverse of `compact`."""
    stored = json.loads(text)
    result = {key: value for key, value in stored.items() if not key.startswith("workloads/")}
    prefix = len("workloads/")
    result["workloads"] = {key[prefix:]: value for key, value in stored.items() if key.startswith("workloads/")}
    return result


def print_missing(result: Result) -> None:
    """Those that are not installed, and why."""
    for name, told in result["contestants"].items():
        if "missing" in told:
            console.print(f"missing: {name}: {told['missing']}", markup=False)


def print_workload(result: Result, name: str) -> None:
    """One workload in detail."""
    workload = WORKLOADS[name]
    table = Table(title=workload.title, title_justify="left", box=None)
    for head in ("", "of the limit", "low-high", "env steps/s", "settings"):
        table.add_column(head, justify="left" if head in ("", "settings") else "right", no_wrap=head != "settings")
    for contestant, entry in result["workloads"][name].items():
        if "failed" in entry:
            table.add_row(contestant, "failed", "", "", entry["failed"])
        elif "rounds" in entry:
            own, raw = shares(result, name, contestant), speeds(result, name, contestant)
            share = [short(statistics.median(own)), f"{short(min(own))}-{short(max(own))}"] if own else ["", ""]
            settings = " ".join(f"{key}={value}" for key, value in entry["settings"].items())
            table.add_row(contestant, *share, f"{statistics.median(raw):,.0f}", settings)
        elif "pauses" in entry:
            firsts = ", ".join(f"{1000 * one['first']:.2f} ms" for one in entry["pauses"])
            used = max(one["cpu"] for one in entry["pauses"])
            table.add_row(contestant, "", "", "", f"first batches {firsts}; {100 * used:.1f} % of a core meanwhile")
    console.print(table)


def cores_line(result: Result) -> str:
    """Whether the run's figures count: two processes beside one, between any two workloads."""
    found = sorted(result["cores"])
    low, high = found[0], found[-1]
    return f"{words(statistics.median(found))} ({len(found)} times, {low:.2f} to {high:.2f}.)"


def print_all(result: Result) -> None:
    """All tables at the end."""
    console.print(cores_line(result))
    console.print(f"Other programs used {100 * foreign(result):.0f} % of the machine meanwhile.")
    _print_loops(result)
    for title, rows in (("share of the limit", share_table(result)), ("ratios and costs", figure_table(result))):
        for begin in range(0, len(rows), WIDE):
            some = rows[begin : begin + WIDE]
            table = Table(title=f"{title}" if not begin else None, title_justify="left")
            table.add_column("", no_wrap=True)
            for row in some:
                table.add_column(row.label, justify="right")
            for name in NAMES:
                cells = [row.cells.get(name, "-").partition(" ")[0] for row in some]
                if any(cell != "-" for cell in cells):
                    table.add_row(name, *cells)
            console.print(table)


def _print_loops(result: Result) -> None:
    """Shares of the limit of a training loop, and ratios to Gymnasium's vector envs."""
    if not (rows := loop_table(result)):
        return
    names = [name for name in WORKLOADS if any(name in row.cells for row in rows)]
    table = Table(
        title="loops with a policy: share of two that never talk, and times Gymnasium's", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name.removeprefix("loop-"), justify="right")
    for row in rows:
        table.add_row(row.label, *(row.cells.get(name, "-").partition(" ")[0] for name in names))
    console.print(table)


def publish(result: Result, loops: bool) -> None:
    """Writes what is between two marks of docs/performance.md, with its plots."""
    if not loops:
        _draw_scaling(result, DOCS / "performance-envs.svg")
        _draw_shares(result, DOCS / "performance-shares.svg")
    begin, end = MARKS[loops]
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n\n{_loops(result) if loops else _section(result)}\n{end}{after}")
    console.print(f"wrote {PAGE} from {STORED[loops].name}")


def _head(result: Result) -> list[str]:
    """What was run, where, and whether it counts."""
    lines = [cores_line(result), ""] if "cores" in result else []
    return [
        *lines,
        f"`{result['command']}`, {result['date']}, {result['minutes']} minutes: medians of {result['rounds']} rounds of"
        f" {result['seconds']:g} s in turn.",
        f"{result['machine']}. Other programs used {100 * foreign(result):.0f} % of the machine meanwhile.",
        "",
    ]


def _loops(result: Result) -> str:
    titles = {name: WORKLOADS[name].title for name in WORKLOADS}
    return "\n".join([*_head(result), *_markdown(loop_table(result), WORKLOADS, titles), ""])


def _section(result: Result) -> str:
    lines = [
        *_head(result),
        "| contestant | version | numpy | Gymnasium | settings for 64 CartPole | first values |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    entries = result["workloads"].get("cartpole64", {})
    for name, told in result["contestants"].items():
        if "missing" in told:
            lines.append(f"| {name} | missing: {told['missing']} | | | | |")
            continue
        entry = entries.get(name, {})
        own = entry.get("settings")
        settings = "-" if own is None else ", ".join(f"`{key}={value}`" for key, value in own.items()) or "default"
        values = "equal" if entry.get("checked") else "-"
        version = f"{told['package']} {told[told['package']]}"
        lines.append(f"| {name} | {version} | {told['numpy']} | {told['gymnasium']} | {settings} | {values} |")
    lines += ["", "Share of the limit, with the lowest and the highest round:", "", *_markdown(share_table(result))]
    lines += ["", "![Share of the limit by workload](performance-shares.svg)"]
    lines += ["", "Ratios and costs:", "", *_markdown(figure_table(result))]
    lines += ["", "![Env steps a second by number of envs](performance-envs.svg)", ""]
    return "\n".join(lines)


def _is_share(name: str) -> bool:
    workload = WORKLOADS[name]
    return not (workload.pause or workload.grid or workload.loop)


def _markdown(rows: list[Row], columns: Iterable[str] = NAMES, titles: Mapping[str, str] = {}) -> list[str]:
    """A column each for those that have a figure at all."""
    heads = [name for name in columns if any(name in row.cells for row in rows)]
    lines = [f"| | {' | '.join(titles.get(name, name) for name in heads)} |", f"| --- |{' --- |' * len(heads)}"]
    return lines + [f"| {row.label} | {' | '.join(row.cells.get(name, '-') for name in heads)} |" for row in rows]


def _style() -> None:
    matplotlib.use("svg")
    # Text stays text, and the same numbers give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "shmenv", "font.size": 9, "axes.grid": True})


def _look(name: str) -> dict[str, object]:
    """The same color and marker for a contestant in every plot: the limit black, shmenv in blues."""
    number = NAMES.index(name)
    rest = [f"tab:{color}" for color in ("red", "orange", "green", "olive", "brown", "pink", "purple", "gray")]
    colors = ["black", "black", "navy", "blue", "deepskyblue", "cadetblue", *rest]
    return {"color": colors[number], "marker": "os^Dvp*X<>hd8P"[number], "label": name}


def _draw_scaling(result: Result, path: Path) -> None:
    from matplotlib.figure import Figure

    _style()
    axes = (figure := Figure(figsize=(8, 5), layout="constrained")).add_subplot()
    for name in NAMES:
        series = env_series(result, name)
        if len(series) > 1:
            axes.plot(list(series), list(series.values()), markersize=4, linewidth=1, **_look(name))  # type: ignore[arg-type]
    axes.set(xscale="log", yscale="log", xlabel="CartPole envs", ylabel="env steps a second")
    counts = sorted({count for name in NAMES for count in env_series(result, name)})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _draw_shares(result: Result, path: Path) -> None:
    from matplotlib.figure import Figure

    _style()
    axes = (figure := Figure(figsize=(8, 5), layout="constrained")).add_subplot()
    names = [name for name in result["workloads"] if _is_share(name)]
    for contestant in NAMES[1:]:
        medians = [(shares(result, name, contestant), place) for place, name in enumerate(names)]
        points = [(statistics.median(own), place) for own, place in medians if own]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle="", markersize=5, **_look(contestant))  # type: ignore[arg-type]
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="share of the limit")
    axes.set_yticks(range(len(names)), [WORKLOADS[name].title for name in names])
    axes.invert_yaxis()
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, metadata={"Date": None})
