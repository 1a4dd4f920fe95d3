"""The config of the managers: every key with its default and its check."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from numbers import Integral, Real
from typing import Any

from shmenv.arguments import check_pause
from shmenv.cpu import pin_plan
from shmenv.errors import UsageError

IGNORED = ("cfg_type", "type", "import_names")  # DI-engine's own: of the registry, not of the manager


class Config(dict[str, Any]):
    """A dict whose keys can also be read and set as attributes, which takes ten times as long."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no key {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        return Config({key: copy.deepcopy(value, memo) for key, value in self.items()})


ASYNC: dict[str, Any] = {
    # DI-engine's keys, with the meaning that its newest version gives them
    "episode_num": math.inf,  # episodes of each env; then it is DONE
    "max_retry": 1,  # attempts of a reset in total
    "retry_type": "reset",  # "reset": in the same process; "renew": in a new one
    "retry_waiting_time": 0.1,  # seconds between two attempts
    "step_timeout": None,  # seconds for a step; None: no limit
    "reset_timeout": None,  # seconds for a reset
    "connect_timeout": 60.0,  # seconds for a reset, too: the smaller one counts
    "auto_reset": True,  # False: an env whose episode ended waits for reset()
    "reset_inplace": False,  # step() waits for the resets and returns their observations in place of the last ones
    "shared_memory": True,  # False pickles observations whole
    "copy_on_get": True,  # False hands out views, valid until the env's second next step or reset
    "context": "forkserver",  # start method of the workers, or a multiprocessing context
    "wait_num": 2,  # results that step() waits for, at most as many as it was given actions
    "step_wait_timeout": 0.0,  # seconds from its start that step() lingers for more; None: for all it was asked for
    # shmenv's own
    "num_workers": None,  # processes, at most one an env; None: one an env
    "on_error": "raise",  # "raise", "restart" or "close"
    "retry_step": False,  # whether a step that raised is tried again, too
    "strict_dtype": False,  # refuse observations whose dtype is not exactly the declared one
    "ready_timeout": None,  # seconds that ready_obs waits at most
    "start_timeout": 300.0,  # seconds for the workers to build the envs
    "close_timeout": 2.0,  # seconds that close() gives the workers before they are killed
    "affinity": None,  # None, "spread" or a list of cores
    "worker_init": None,  # called with the worker's number in each worker, before its envs are built
    "max_restarts": 10,  # how often a worker is replaced within restart_period; then its envs are lost
    "restart_period": 60.0,  # seconds
    "recycle_after": None,  # episodes after which a worker is replaced; None: never
    "on_restart": None,  # called with env id and reason when an env got a new process
}
SYNC: dict[str, Any] = {**ASYNC, "wait_num": math.inf, "step_wait_timeout": None}


def checked(defaults: Mapping[str, Any], cfg: Any) -> Config:
    """The defaults, updated by what the user gave.

    Args:
        defaults: every key that exists.
        cfg: a dict or EasyDict of some or all keys, or None.

    Raises:
        UsageError: a key is unknown or a value is of the wrong kind. The text names the nearest key.
    """
    if cfg is not None and not isinstance(cfg, Mapping):
        raise UsageError(f"cfg must be a dict, not a {type(cfg).__name__}")
    full = Config({**ASYNC, **defaults})
    for key, value in (cfg or {}).items():
        if key in IGNORED:
            continue
        if key not in full:
            raise UsageError(f"the config has no key {key!r}{nearest(key, full)}")
        full[key] = value
    for key, (is_right, what) in _CHECKS.items():
        if not is_right(full[key]):
            raise UsageError(f"config key {key!r} must be {what}, not {full[key]!r}")
    if full.reset_inplace and not full.auto_reset:
        raise UsageError("config key 'reset_inplace' needs 'auto_reset'")
    return full


def nearest(name: Any, known: Any) -> str:
    """A hint at the known name that was perhaps meant, or at all of them."""
    close = difflib.get_close_matches(str(name), list(known), 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(str, known))}"


_Check = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: Any, low: int = 0) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= 2**31


def _is_context(value: Any) -> bool:
    return isinstance(value, BaseContext) or (isinstance(value, str) and value in get_all_start_methods())


def _passes(check: Callable[[Any], object]) -> Callable[[Any], bool]:
    """Whether a value passes what the pool checks it by."""

    def is_right(value: Any) -> bool:
        try:
            check(value)
        except (UsageError, TypeError):  # complex numbers have no order
            return False
        return True

    return is_right


def _count_from(low: int) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return _is_number(value) and value >= low and (value == math.inf or value == int(value))

    return check


def _optional(check: _Check) -> _Check:
    return lambda value: value is None or check[0](value), f"{check[1]}, or None"


def _one_of(*names: str) -> _Check:
    return lambda value: isinstance(value, str) and value in names, " or ".join(map(repr, names))


_SECONDS: _Check = (lambda value: _is_number(value) and value >= 0, "seconds, 0 or more")
_PAUSE: _Check = (_passes(partial(check_pause, "")), "seconds, 0 or more, at most 1e6 (twelve days)")
_LIMIT: _Check = (lambda value: _is_number(value) and value > 0, "seconds, more than 0")
_FLAG: _Check = (lambda value: isinstance(value, bool), "True or False")
_COUNT: _Check = (_count_from(1), "a whole number from 1 on, or inf")
_FUNCTION: _Check = (callable, "a function")

_CHECKS: dict[str, _Check] = {
    "episode_num": _COUNT,
    "max_retry": (_is_count, "an int, 0 or more"),
    "retry_type": _one_of("reset", "renew"),
    "retry_waiting_time": _PAUSE,
    "step_timeout": _optional(_LIMIT),
    "reset_timeout": _optional(_LIMIT),
    "connect_timeout": _optional(_LIMIT),
    "auto_reset": _FLAG,
    "reset_inplace": _FLAG,
    "shared_memory": _FLAG,
    "copy_on_get": _FLAG,
    "wait_num": _COUNT,
    "step_wait_timeout": _optional(_SECONDS),
    "on_error": _one_of("raise", "restart", "close"),
    "retry_step": _FLAG,
    "strict_dtype": _FLAG,
    "ready_timeout": _optional(_SECONDS),
    "context": (_is_context, "a start method or a multiprocessing context"),
    "num_workers": _optional((lambda value: _is_count(value, 1), "an int, 1 or more")),
    "max_restarts": (_is_count, "an int, 0 or more"),
    "restart_period": _SECONDS,
    "recycle_after": _optional((lambda value: _is_count(value, 1), "an int, 1 or more")),
    "start_timeout": _optional(_PAUSE),
    "close_timeout": _PAUSE,
    "affinity": _optional(
        (_passes(lambda value: pin_plan(value, 1)), "'spread' or a list of cores that this process may use")
    ),
    "on_restart": _optional(_FUNCTION),
    "worker_init": _optional(_FUNCTION),
}
