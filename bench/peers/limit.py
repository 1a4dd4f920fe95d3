"""Processes that never talk, one a core; where envs wait instead of computing, one an env."""

import os
from typing import Any, Literal

from free import Limit
from workloads import Workload


def settings(workload: Workload, kind: Literal["plain", "copies"]) -> list[dict[str, Any]]:
    if workload.pause or (kind == "copies" and not workload.frames):
        return []
    if workload.waits:
        return [{"num_workers": workload.num_envs}]
    return [{"num_workers": min(len(os.sched_getaffinity(0)), workload.num_envs)}]


def start(workload: Workload, kind: Literal["plain", "copies"], num_workers: int) -> Limit:
    return Limit(workload.case, num_workers, copies=kind == "copies")
