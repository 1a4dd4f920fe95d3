"""A question that is asked while its asker does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Later(threading.Thread):
    """The question, on its way from the start."""

    def __init__(self, ask: Callable[[], tuple[Any, ...]]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Ask. Called by: the thread."""
        try:
            self._results = self._ask()
        except BaseException as error:
            self._error = error

    def result(self) -> tuple[Any, ...]:
        """What was answered, or raised; once the thread has ended."""
        if self._error is not None:
            raise self._error
        return self._results
