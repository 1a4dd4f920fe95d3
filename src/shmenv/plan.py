"""Where everything of a pool lies in its segment: one plan, made by the manager, read by every worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmenv import _port
from shmenv._mail import Mail
from shmenv.layout import ArrayNode, Layout, Node, leaves

NOTE_BYTES = 1024  # side area of a row: an info of some twenty numbers fits; longer ones go to the spill
AUTORESET_MODES = ("same_step", "next_step", "disabled")  # their positions are the numbers that _loop knows


@dataclass(frozen=True)
class Plan:
    """The fields of a pool's segment, and how they are split among its workers.

    Attributes:
        num_envs: n, the number of envs.
        ranges: for each worker the ids of its envs.
        planes: K, how many rows an env has for its observations.
        autoreset: one of AUTORESET_MODES.
        obs_node, action_node: what one observation and one action are.
        reward_shape: () for numbers, else the shape of a vector reward.
    """

    num_envs: int
    ranges: tuple[range, ...]
    planes: int
    autoreset: str
    obs_node: Node
    action_node: Node
    reward_shape: tuple[int, ...]
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        add, n, planes = self.layout.add, self.num_envs, self.planes
        add("semaphore", "u1", (_port.SEMAPHORE_BYTES,))
        for worker_id, ids in enumerate(self.ranges):
            add(f"worker/{worker_id}", "u1", (_port.WORKER_BYTES,))
            # Each on cache lines of its own: cmd and op are the manager's, the others the worker's.
            for name in ("cmd", "op", "rsp", "ended", "episode_step"):
                add(f"{name}/{worker_id}", "u4", (len(ids),))
        for k, leaf in enumerate(array_leaves(self.action_node)):
            add(f"action/{k}", leaf.dtype, (n, *leaf.shape))
        for k, leaf in enumerate(array_leaves(self.obs_node)):
            add(f"obs/{k}", leaf.dtype, (planes, n, *leaf.shape))
            if self.has_final_rows:
                add(f"final_obs/{k}", leaf.dtype, (planes, n, *leaf.shape))
        add("reward", "f8", (planes, n, *self.reward_shape))
        add("terminated", "?", (planes, n))
        add("truncated", "?", (planes, n))
        add("flags", "u4", (planes, n))
        for prefix in ("", "final_") if self.has_final_rows else ("",):
            add(f"{prefix}heads", "u4", (planes, n, 2))
            add(f"{prefix}notes", "u1", (planes, n, NOTE_BYTES))
        for name in ("inbound", "call"):  # payloads to an env, answers of calls from it
            add(f"{name}_heads", "u4", (n, 2))
            add(f"{name}_notes", "u1", (n, NOTE_BYTES))

    @property
    def has_final_rows(self) -> bool:
        """Whether an ended step's observation needs a row beside the one that the reset fills."""
        return self.autoreset == "same_step"

    @staticmethod
    def regions_for(num_envs: int, planes: int) -> int:
        """Regions of the spill: for each env two a row (info, final info), one for its payloads, one for its calls."""
        return num_envs * (2 * planes + 2)

    def note_region(self, env_id: int, plane: int, final: bool) -> int:
        """The region of a row's side area."""
        return self.regions_for(env_id, self.planes) + 2 * plane + final

    def mail(self, name: str, buffer: Any, spill: Any) -> Mail:
        """The "inbound" payloads to the envs, or the answers to a "call" from them."""
        behind_notes = 2 * self.planes + (name == "call")
        regions = [self.regions_for(env_id, self.planes) + behind_notes for env_id in range(self.num_envs)]
        heads, notes = (self.layout.offset(f"{name}_{part}") for part in ("heads", "notes"))
        return Mail(buffer, heads, notes, regions, spill, note_bytes=NOTE_BYTES)

    def places(self, worker_id: int | None = None) -> dict[str, int]:
        """Offsets, for the compiled modules: of the fields all share, or of one worker's own too."""
        names = (
            "semaphore",
            "reward",
            "terminated",
            "truncated",
            "flags",
            "heads",
            "notes",
            "final_heads",
            "final_notes",
        )
        at = {name: self.layout.offset(name) for name in names if name in self.layout}
        if worker_id is not None:
            for name in ("worker", "cmd", "op", "rsp", "ended", "episode_step"):
                at[name] = self.layout.offset(f"{name}/{worker_id}")
            at["first"], at["count"] = self.ranges[worker_id].start, len(self.ranges[worker_id])
        return at

    def rows(self, name: str, buffer: Any) -> list[np.ndarray[Any, Any]]:
        """The arrays of "action", "obs" or "final_obs", one for each array leaf."""
        node = self.action_node if name == "action" else self.obs_node
        return [self.layout.view(f"{name}/{k}", buffer) for k in range(len(array_leaves(node)))]

    def array(self, name: str, buffer: Any) -> np.ndarray[Any, Any]:
        """The array of one field."""
        return self.layout.view(name, buffer)

    def purpose(self) -> str:
        """What the memory is for, in words, for the error that says there is too little of it."""
        largest = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in self.layout.largest(3))
        return f"{self.num_envs} envs with slots={self.planes} (largest: {largest})"


def array_leaves(node: Node) -> list[ArrayNode]:
    """The leaves that are arrays, in the space's order."""
    return [leaf for _, leaf in leaves(node) if isinstance(leaf, ArrayNode)]


def split(num_envs: int, num_workers: int) -> tuple[range, ...]:
    """Consecutive ids for each worker, as even as can be."""
    bounds: Sequence[int] = [num_envs * k // num_workers for k in range(num_workers + 1)]
    return tuple(range(bounds[k], bounds[k + 1]) for k in range(num_workers))
