"""Ctrl-C, held back while a manager's books are between two states."""

from __future__ import annotations

# What `signal` wraps: that looks each handler up in an enum, which takes ten times as long as all else here.
import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from shmenv._turn import Turn


class Unbroken:
    """`with unbroken:` ends by KeyboardInterrupt only where nothing is lost: while its pool waits, or at its end.

    A pool mends what an interrupt leaves half done. A manager knows more than its pool, so it does not let itself be
    interrupted: whatever the user's handler of SIGINT does, it does it once the books are whole again. May be nested.

    Called by: the manager's methods; does nothing in threads other than the main one, which signals never interrupt.
    """

    def __init__(self, turn: Callable[[], Turn | None]) -> None:
        """Prepare for one manager.

        Args:
            turn: finds its pool's.
        """
        self._turn = turn
        self._mine = self._hold_back  # one object, which is known again
        self._handler: Any = None
        self._depth = 0

    def __enter__(self) -> None:
        if not _is_main():
            return
        handler = _signal.getsignal(_signal.SIGINT)
        if handler is self._mine:
            self._depth += 1
        elif callable(handler):
            self._handler, self._depth = handler, 1
            _signal.signal(_signal.SIGINT, self._mine)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if not _is_main() or _signal.getsignal(_signal.SIGINT) is not self._mine:
            return
        self._depth -= 1
        if self._depth:
            return
        turn = self._turn()
        call = None if turn is None else turn.held_back
        if turn is not None:
            turn.held_back = None
        _signal.signal(_signal.SIGINT, self._handler)
        if call is not None and (kind is None or issubclass(kind, Exception)):
            call()

    def _hold_back(self, number: int, frame: Any) -> None:
        turn = self._turn()
        if turn is None or (turn.waits and turn.owner == threading.get_ident()):
            self._handler(number, frame)
        else:
            turn.held_back = partial(self._handler, number, frame)


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident
