from typing import Any, Self, final

from shmenv._memory import Mapping

@final
class Loop:
    def __new__(
        cls,
        worker: Any,
        segment: Mapping,
        at: dict[str, int],
        *,
        num_envs: int,
        planes: int,
        autoreset: int,
        note_bytes: int,
        waits: tuple[int, int, int, int],
        timed: bool,
        retries: bool,
    ) -> Self: ...
    def run(self) -> None: ...
    def doing(self, number: int, env_id: int, phase: int) -> None: ...
    def set_over(self, env_id: int, over: bool) -> None: ...
    def write_row(self, env_id: int, plane: int, obs: Any, info: Any, keep: bool) -> None: ...
    def write_error(self, env_id: int, plane: int, record: bytes, keep: bool) -> None: ...
