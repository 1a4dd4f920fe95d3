"""Steps real games by random actions through Pool and through Gymnasium's vector envs, in turn, and compares them."""

from __future__ import annotations

import math
import os
import platform
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import shmenv
from shmenv.cli.acts import kill_a_worker, loop_of_a_manager
from shmenv.cli.cores import two_against_one, words
from shmenv.cpu import usable_cores

ROUNDS = 3
CHECKED_STEPS = 200  # ends every CartPole a few times
SLICE = 0.25  # seconds between two updates of the display, which happen with the clock stopped
BUSY = 0.5  # load a core from which on other programs change the ratios

Values = tuple[Any, Any, Any, Any]  # obs, reward, terminated, truncated of all envs


class Player(Protocol):
    """Something that steps all envs of a game."""

    def reset(self, seed: int) -> Any:
        """Reset env i with seed + i; the observations."""

    def step(self, action: np.ndarray[Any, Any]) -> Values:
        """One step of every env."""

    def close(self) -> None:
        """End it, also in the midst of a step that was interrupted."""


class PoolPlayer:
    """`shmenv.Pool` as it comes, unless options say otherwise."""

    def __init__(self, env_fns: list[Callable[[], Any]], **options: Any) -> None:
        self.pool = shmenv.Pool(env_fns, **options)
        self.close = self.pool.close

    def reset(self, seed: int) -> Any:
        """Reset env i with seed + i; the observations."""
        return self.pool.reset(seed=seed).obs

    def step(self, action: np.ndarray[Any, Any]) -> Values:
        """One step of every env."""
        batch = self.pool.step(action)
        return batch.obs, batch.reward, batch.terminated, batch.truncated


class GymnasiumPlayer:
    """One of Gymnasium's vector envs, as it comes, but that an ended episode is reset in the same step as in Pool."""

    def __init__(self, kind: Callable[..., Any], env_fns: list[Callable[[], Any]]) -> None:
        # A blocked signal stays blocked in the processes that are started: Ctrl-C is for this one, and waits till then.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.envs = kind(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.answered = True

    def reset(self, seed: int) -> Any:
        """Reset env i with seed + i; the observations."""
        self.answered = False
        obs = self.envs.reset(seed=seed)[0]
        self.answered = True
        return obs

    def step(self, action: np.ndarray[Any, Any]) -> Values:
        """One step of every env."""
        self.answered = False
        obs, reward, terminated, truncated, _ = self.envs.step(action)
        self.answered = True
        return obs, reward, terminated, truncated

    def close(self) -> None:
        """End it; by force in the midst of a step, for half an answer in a pipe may be waited for without end."""
        if not self.answered and isinstance(self.envs, AsyncVectorEnv):
            for process in self.envs.processes:
                process.kill()
                process.join()
            self.envs.closed = True
        self.envs.close()


PLAYERS: dict[str, Callable[[list[Callable[[], Any]]], Player]] = {
    # Gymnasium's first: it forks, which is right only while there are no threads.
    "AsyncVectorEnv": partial(GymnasiumPlayer, partial(AsyncVectorEnv, shared_memory=True)),
    "SyncVectorEnv": partial(GymnasiumPlayer, SyncVectorEnv),
    "shmenv.Pool": PoolPlayer,
}


@dataclass
class Game:
    """What is stepped, and how many env steps a second each player made of it, a number a round."""

    title: str
    make: Callable[[], Any]
    num_envs: int
    speeds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PLAYERS})


def make_pong() -> Any:
    """Pong as ale-py brings it, without its greeting on stderr."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5")


class Display:
    """A bar and a table that fill up on a terminal; plain lines elsewhere."""

    def __init__(self, console: Console, games: list[Game]) -> None:
        self.console = console
        self.games = games
        self.lines: list[str] = []  # what was seen after the table
        self.progress = Progress(
            BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, auto_refresh=False
        )
        self.task = self.progress.add_task("", total=1.0)
        self.live = Live(console=console, auto_refresh=False)  # no thread of its own: Gymnasium forks

    @contextmanager
    def running(self) -> Iterator[None]:
        """Shows the bar and the table while the block runs."""
        if not self.console.is_terminal:
            yield
            return
        with self.live:
            yield
            self.live.update(Group(table(self.games), *self.lines), refresh=True)

    def show(self, what: str, done: float = 0.0) -> None:
        """Name what happens now; `done` is how much of everything that finishes, 0 to 1."""
        self.progress.update(self.task, description=what, advance=done)
        if self.console.is_terminal:
            self.live.update(Group(table(self.games), *self.lines, self.progress), refresh=True)

    def add(self, line: str) -> None:
        """A line that stays."""
        self.lines.append(line)
        self.show(line)

    def note(self, line: str) -> None:
        """A line for those who see no bar."""
        if not self.console.is_terminal:
            self.console.print(line, highlight=False, soft_wrap=True)


def table(games: list[Game]) -> Table:
    """Medians of the rounds so far, their lowest and highest, and the ratios of the medians."""
    result = Table(title=f"env steps/s by random actions: medians of {ROUNDS} rounds in turn")
    for head in ("envs", "stepped by", "steps/s", "low-high", "x Async", "x Sync"):
        result.add_column(head, justify="left" if head in ("envs", "stepped by") else "right", no_wrap=True)
    for game in games:
        medians = {name: statistics.median(speeds) for name, speeds in game.speeds.items() if speeds}
        for name in reversed(PLAYERS):
            own, speeds = medians.get(name), game.speeds[name]
            ratios = [own / medians[other] if own and other in medians else None for other in list(PLAYERS)[:2]]
            spread = f"{short(min(speeds))}-{short(max(speeds))}" if speeds else ""
            cells = [f"{own:,.0f}" if own else "", spread, *(f"{ratio:.2f}" if ratio else "" for ratio in ratios)]
            result.add_row(game.title if name == "shmenv.Pool" else "", name, *cells)
        result.add_section()
    return result


def short(number: float) -> str:
    """Three digits and a unit: 1.23M, 412k, 61.2k."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if number >= unit:
            number /= unit
            return f"{number:.{2 - min(2, int(math.log10(number)))}f}{name}"
    return f"{number:.0f}"


def header(games: list[Game], load: float) -> list[str]:
    """Where and by how many processes is measured, and what that means if others use the machine at the same time.

    Args:
        games: what will be played.
        load: the machine's load average of the last minute, in processes.
    """
    cores = usable_cores()
    workers = " and ".join(str(min(game.num_envs, cores)) for game in games)
    envs = " and ".join(str(game.num_envs) for game in games)
    lines = [
        f"shmenv {shmenv.__version__}, Linux {os.uname().release} on {platform.machine()}, Python"
        f" {platform.python_version()}, {cores} usable cores, load average {load:.1f}",
        f"worker processes: shmenv.Pool {workers} (one a usable core), AsyncVectorEnv {envs} (one an env),"
        " SyncVectorEnv none",
    ]
    if load > BUSY * (os.cpu_count() or 1):  # the load is the whole machine's, whatever part of it is ours
        lines.append(
            "Other programs are using this machine: the ratios below are shares of a busy machine, and the fewer"
            " processes something has, the smaller is its share."
        )
    return lines


def check_values(players: dict[str, Player], title: str, actions: list[np.ndarray[Any, Any]]) -> None:
    """Step all players by the same seeds and actions.

    Raises:
        AssertionError: the values of two of them differ.
    """
    wanted_obs = players["SyncVectorEnv"].reset(seed=0)
    others = {name: player for name, player in players.items() if name != "SyncVectorEnv"}
    for name, player in others.items():
        np.testing.assert_array_equal(player.reset(seed=0), wanted_obs, err_msg=f"{title}, {name}, reset")
    for step in range(CHECKED_STEPS):
        action = actions[step % len(actions)]
        wanted = players["SyncVectorEnv"].step(action)
        for name, player in others.items():
            for what, got, want in zip(
                ("obs", "reward", "terminated", "truncated"), player.step(action), wanted, strict=True
            ):
                np.testing.assert_array_equal(got, want, err_msg=f"{title}, {name}, step {step}, {what}")


def measure(
    player: Player, num_envs: int, actions: list[np.ndarray[Any, Any]], seconds: float, tick: Callable[[float], None]
) -> float:
    """Env steps per second over `seconds`. Calls tick with the seconds just spent, now and then, off the clock."""
    steps, spent, now = 0, 0.0, 0.0
    while spent < seconds:
        start = time.perf_counter()
        end = start + min(SLICE, seconds - spent)
        while (now := time.perf_counter()) < end:
            player.step(actions[steps % len(actions)])
            steps += 1
        spent += now - start
        tick(now - start)
    return steps * num_envs / spent


def play(game: Game, seconds: float, display: Display, share: float) -> None:
    """All rounds of one game, which is `share` of the bar."""
    env_fns = [game.make] * game.num_envs
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for name, start in PLAYERS.items():
            display.show(f"{game.title}: starting {name}")
            players[name] = start(env_fns)
            stack.callback(players[name].close)
        display.show(f"{game.title}: comparing values")
        with closing(game.make()) as env:
            env.action_space.seed(0)
            actions = [np.array([env.action_space.sample() for _ in range(game.num_envs)]) for _ in range(64)]
        check_values(players, game.title, actions)
        display.note(f"{game.title}: {CHECKED_STEPS} steps by the same seeds and actions give the same values")
        for number in range(1, ROUNDS + 1):
            for name in reversed(PLAYERS):
                what = f"{game.title}: round {number} of {ROUNDS}, {name}"
                unit = share / (ROUNDS * len(PLAYERS) * seconds)
                tick = partial(lambda text, one, spent: display.show(text, spent * one), what, unit)
                speed = measure(players[name], game.num_envs, actions, seconds, tick)
                game.speeds[name].append(speed)
                display.note(f"{what}: {speed:,.0f} env steps/s")


def run(seconds: float) -> None:
    """The demo.

    Args:
        seconds: length of one measurement, of 18.

    Raises:
        AssertionError: Pool's values differ from those of Gymnasium's SyncVectorEnv.
    """
    console = Console()
    games = [
        Game("64 CartPole-v1", partial(gymnasium.make, "CartPole-v1"), 64),
        Game("8 ALE/Pong-v5", make_pong, 8),
    ]
    for line in header(games, os.getloadavg()[0]):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(words(two_against_one()), highlight=False, soft_wrap=True)
    display = Display(console, games)
    with display.running():
        for game in games:
            play(game, seconds, display, 0.8 / len(games))
        display.add(kill_a_worker(make_pong, 8, seconds, display.show))
        display.add(loop_of_a_manager(games[0].make, games[0].num_envs, min(10.0, 10 * seconds), display.show))
    if not console.is_terminal:
        console.print(table(games))
        for line in display.lines:
            console.print(line, highlight=False, soft_wrap=True)
    console.print(
        f"Each line stepped the same envs by the same actions; the first {CHECKED_STEPS} steps of all three were"
        " compared value for value, and are equal.",
        soft_wrap=True,
    )
