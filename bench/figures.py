"""What the rounds of compare.py amount to: shares of the limit, and the ratios that its workloads are made for."""

import statistics
from dataclasses import dataclass
from typing import Any

from contestants import ASYNC, ASYNC_DING, CONTESTANTS, COPYING, DING, LIMIT, LOOP_ASYNC, LOOP_SYNC, LOOPERS, SYNC
from workloads import WORKLOADS

Result = dict[str, Any]  # what compare.py writes
NAMES = [contestant.name for contestant in CONTESTANTS]
LOOP_NAMES = [contestant.name for contestant in LOOPERS]


@dataclass(frozen=True)
class Row:
    """One figure of each contestant that has it.

    Attributes:
        label: what the figure is.
        cells: texts by contestant.
    """

    label: str
    cells: dict[str, str]


def short(share: float) -> str:
    """Two digits behind the point, three where those would say little."""
    return f"{share:.2f}" if share >= 0.095 else f"{share:.3f}"


def speeds(result: Result, workload: str, contestant: str) -> list[float]:
    """Env steps a second, one a round; [] if there is no such measurement."""
    entry = result["workloads"].get(workload, {}).get(contestant, {})
    return [] if "failed" in entry else [one["speed"] for one in entry.get("rounds", [])]


def speed(result: Result, workload: str, contestant: str) -> float | None:
    """The median."""
    own = speeds(result, workload, contestant)
    return statistics.median(own) if own else None


def foreign(result: Result) -> float:
    """The part of the machine that others than the contestant at its turn used, 0 to 1: the median of all turns."""
    entries = [entry for workload in result["workloads"].values() for entry in workload.values()]
    parts = [one["foreign"] for entry in entries for one in entry.get("rounds", [])]
    return statistics.median(parts) if parts else 0.0


def ideal(result: Result, workload: str, contestant: str) -> float | None:
    """What the contestant is measured by: its environment's limit and, in turn with that, the policy's work."""
    limit = speed(result, workload, result["contestants"].get(contestant, {}).get("limit", LIMIT))
    think, n = WORKLOADS[workload].think, WORKLOADS[workload].num_envs
    return limit and n / (n / limit + think)


def shares(result: Result, workload: str, contestant: str) -> list[float]:
    """Of the limit, one a round: the round's speed over the limit's median."""
    own, whole = speeds(result, workload, contestant), ideal(result, workload, contestant)
    if contestant.startswith(LIMIT) and WORKLOADS[workload].think:
        return []  # it has no policy to wait for
    return [one / whole for one in own] if whole else []


def share_table(result: Result) -> list[Row]:
    """Shares of the limit, with lowest and highest round; a row a workload."""
    rows = []
    for name, workload in WORKLOADS.items():
        if name not in result["workloads"] or workload.pause or workload.grid or workload.loop:
            continue
        cells = {}
        for contestant in NAMES:
            own = shares(result, name, contestant)
            if own:
                cells[contestant] = f"{short(statistics.median(own))} ({short(min(own))}-{short(max(own))})"
            elif "missing" in result["contestants"].get(contestant, {}):
                cells[contestant] = "missing"
            elif "failed" in result["workloads"][name].get(contestant, {}):
                cells[contestant] = "failed"
        rows.append(Row(workload.title, cells))
    return rows


def loop_table(result: Result) -> list[Row]:
    """Of the loops with a policy: shares with lowest and highest round, then times Gymnasium's; a row a contestant."""
    names = [name for name in result["workloads"] if WORKLOADS[name].loop]
    rows = []
    for contestant in LOOP_NAMES:
        cells = {}
        for name in names:
            own = shares(result, name, contestant)
            if own:
                cells[name] = f"{short(statistics.median(own))} ({short(min(own))}-{short(max(own))})"
            elif "failed" in result["workloads"][name].get(contestant, {}):
                cells[name] = "failed"
        rows.append(Row(contestant, cells))
    for base in (LOOP_SYNC, LOOP_ASYNC):
        for contestant in LOOP_NAMES:
            pairs = {name: (speed(result, name, contestant), speed(result, name, base)) for name in names}
            cells = {name: short(own / other) for name, (own, other) in pairs.items() if own and other}
            if contestant != base:
                rows.append(Row(f"{contestant}, x {base}", cells))
    return [row for row in rows if row.cells]


def figure_table(result: Result) -> list[Row]:
    """The ratios and costs that the workloads are made for."""

    def ratio(label: str, workload: str, base: str) -> Row:
        """Of each contestant's speed in a workload to its own in another."""
        cells = {}
        for name in NAMES:
            own, other = speed(result, workload, name), speed(result, base, name)
            if own and other:
                cells[name] = short(own / other)
        return Row(label, cells)

    def times(label: str, workload: str, *others: str) -> Row:
        """Of each contestant's speed to the fastest of some others'."""
        fastest = max((speed(result, workload, other) or 0.0 for other in others), default=0.0)
        cells = {name: short(own / fastest) for name in NAMES if fastest and (own := speed(result, workload, name))}
        return Row(label, cells)

    rows = [
        times("64 CartPole, x Gymnasium Async", "cartpole64", ASYNC),
        times("64 CartPole, x Gymnasium Sync", "cartpole64", SYNC),
        times("64 CartPole, x DI-engine's faster manager", "cartpole64", DING, ASYNC_DING),
        times("64 do-nothing, x Gymnasium Async", "idle64", ASYNC),
        times("64 do-nothing, x Gymnasium Sync", "idle64", SYNC),
        _per_step("64 do-nothing, CPU time an env step beyond the env's, us", result, "idle64"),
        times("210x160x3, x Gymnasium Async", "frames64", ASYNC),
        times("210x160x3, of the limit that copies", "frames64", COPYING),
        ratio("first 8 of 16 / lock-step", "uneven16-first8", "uneven16"),
        ratio("16 workers / 2 workers", "workers16", "cartpole64"),
        ratio("beside a CPU hog / alone", "hog", "cartpole64"),
        ratio("twice at once, each / alone", "two", "cartpole64"),
        ratio("10-step episodes / the same, untold", "short", "short-untold"),
        ratio("10-step episodes / endless ones", "short", "idle64"),
        ratio("infos of 5 numbers / made and not told", "infos", "infos-untold"),
        ratio("infos of 5 numbers / none", "infos", "idle64"),
        *(_late(f"p99 / median batch time, {count} CartPole", result, f"cartpole{count}") for count in (64, 8)),
        *_pauses(result),
        _evenness("cost of an env step, dearest / cheapest of 16 to 1024 CartPole", result),
        ratio("64 workers / 2 workers", "workers-64", "cartpole64"),
        _starts("64 workers, start and first reset, s", result, "workers-64"),
    ]
    return [row for row in rows if row.cells]


def _entries(result: Result, workload: str) -> dict[str, dict[str, Any]]:
    """Of those that were measured."""
    entries = result["workloads"].get(workload, {})
    return {name: entries[name] for name in NAMES if name in entries and "failed" not in entries[name]}


def _per_step(label: str, result: Result, workload: str) -> Row:
    def cost(name: str) -> float | None:
        rounds = result["workloads"].get(workload, {}).get(name, {}).get("rounds")
        return sum(one["cpu"] for one in rounds) / sum(one["steps"] for one in rounds) * 1e6 if rounds else None

    cells = {}
    for name in _entries(result, workload):
        own, envs = cost(name), cost(result["contestants"][name].get("limit", LIMIT))
        if own and envs and not name.startswith(LIMIT):
            cells[name] = f"{own - envs:.2f}"
    return Row(label, cells)


def _late(label: str, result: Result, workload: str) -> Row:
    cells = {}
    for name, entry in _entries(result, workload).items():
        rounds = [one for one in entry.get("rounds", []) if "p99" in one]
        if rounds:
            cells[name] = f"{statistics.median(one['p99'] / one['median'] for one in rounds):.1f}"
    return Row(label, cells)


def _pauses(result: Result) -> list[Row]:
    cpu, first = {}, {}
    for name, entry in _entries(result, "pause").items():
        if "pauses" in entry:
            cpu[name] = f"{100 * statistics.median(one['cpu'] for one in entry['pauses']):.1f}"
            first[name] = f"{1000 * statistics.median(one['first'] for one in entry['pauses']):.2f}"
    seconds = f"{result['pause']:g} s"
    return [
        Row(f"pause of {seconds}, CPU used meanwhile, % of a core", cpu),
        Row(f"64 CartPole, first batch after {seconds}, ms", first),
    ]


def env_series(result: Result, contestant: str) -> dict[int, float]:
    """Env steps a second by number of CartPole envs."""
    series = {}
    for name, workload in WORKLOADS.items():
        if workload.grid == "envs" or name in ("cartpole8", "cartpole64"):
            own = speed(result, name, contestant)
            if own:
                series[workload.num_envs] = own
    return dict(sorted(series.items()))


def _evenness(label: str, result: Result) -> Row:
    cells = {}
    for name in NAMES:
        series = [own for count, own in env_series(result, name).items() if count >= 16]
        if len(series) > 2:
            cells[name] = f"{max(series) / min(series):.2f}"
    return Row(label, cells)


def _starts(label: str, result: Result, workload: str) -> Row:
    entries = _entries(result, workload)
    return Row(label, {name: f"{entry['start']:.2f}" for name, entry in entries.items() if "start" in entry})
