"""The wrappers of single functions."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from typing import Any

import pytest
from support import eventually

from shmenv import CloudPickleWrapper, UsageError, retry_wrapper, timeout_wrapper


@pytest.fixture(autouse=True)
def _threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmenv.wrappers.IDLE_SECONDS", 0.02)


def test_a_wrapped_lambda_travels_through_plain_pickle() -> None:
    offset = 3
    wrapper = pickle.loads(pickle.dumps(CloudPickleWrapper(lambda x: x + offset)))
    assert wrapper.data(4) == 7


class Flaky:
    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.failures, self.calls, self.error = failures, 0, error or ValueError("not yet")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return args, kwargs


def test_a_function_is_tried_again_until_it_succeeds() -> None:
    flaky = Flaky(2)
    assert retry_wrapper(flaky, max_retry=3, waiting_time=0)(1, b=2) == ((1,), {"b": 2})
    assert flaky.calls == 3


def test_the_last_error_is_told_when_all_attempts_failed() -> None:
    flaky = Flaky(9)
    with pytest.raises(RuntimeError, match=r"failed 2 times.*ValueError: not yet") as caught:
        retry_wrapper(flaky, max_retry=2, waiting_time=0)()
    assert caught.value.__cause__ is flaky.error
    assert flaky.calls == 2


def test_the_waiting_time_counts_also_in_a_decorator() -> None:
    flaky = Flaky(2)

    @retry_wrapper(max_retry=3, waiting_time=0.05)  # type: ignore[untyped-decorator]
    def call() -> Any:
        """Says so."""
        return flaky()

    start = time.monotonic()
    call()
    assert time.monotonic() - start >= 0.1
    assert call.__doc__ == "Says so."


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_an_order_to_stop_is_not_retried(error: BaseException) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        retry_wrapper(flaky, max_retry=3, waiting_time=0)()
    assert flaky.calls == 1


def test_a_function_in_time_returns_and_raises_as_ever() -> None:
    flaky = Flaky(1)
    limited = timeout_wrapper(flaky, timeout=30.0)
    with pytest.raises(ValueError, match="not yet"):
        limited()
    assert limited(5, x=6) == ((5,), {"x": 6})


def test_a_function_is_given_up_after_a_fraction_of_a_second_even_in_native_code() -> None:
    handler = signal.getsignal(signal.SIGALRM)  # pytest's own

    @timeout_wrapper(timeout=0.05)  # type: ignore[untyped-decorator]
    def sleep() -> None:
        time.sleep(0.5)

    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"sleep did not return within 0\.05 s"):
        sleep()
    assert time.monotonic() - start < 0.4
    assert signal.getsignal(signal.SIGALRM) is handler


def test_what_was_given_up_ends_once_it_runs_python_code() -> None:
    seen: list[str] = []

    def spin() -> None:
        try:
            while True:
                time.sleep(0.001)
        except TimeoutError:
            seen.append("ended")
            raise

    with pytest.raises(TimeoutError):
        timeout_wrapper(spin, 0.02)()
    assert eventually(lambda: seen) == ["ended"]


def test_calls_share_a_thread_and_none_is_left() -> None:
    threads = {timeout_wrapper(threading.get_ident, timeout=30.0)() for _ in range(200)}
    assert len(threads) == 1
    eventually(lambda: all(thread.name != "shmenv-timeout" for thread in threading.enumerate()))


def test_calls_within_calls_and_from_several_threads_do_not_wait_for_each_other() -> None:
    barrier = threading.Barrier(3)
    inner = timeout_wrapper(lambda: barrier.wait(10), timeout=20.0)
    outer = timeout_wrapper(inner, timeout=20.0)
    callers = [threading.Thread(target=outer) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert not barrier.broken and not any(caller.is_alive() for caller in callers)


def test_without_a_timeout_the_function_itself_comes_back() -> None:
    assert timeout_wrapper(len) is len


@pytest.mark.parametrize("timeout", [0, -1, "1", True, float("nan")])
def test_a_wrong_timeout_is_refused_at_once(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        timeout_wrapper(len, timeout)


@pytest.mark.parametrize("arguments", [{"max_retry": 0}, {"max_retry": 1.5}, {"waiting_time": -1}])
def test_wrong_attempts_are_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="retry_wrapper"):
        retry_wrapper(len, **arguments)
