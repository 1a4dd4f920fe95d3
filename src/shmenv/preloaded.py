"""What a fork server imports before it forks: the worker. Then Ctrl-C, held back at its start, may come again."""

import signal

import shmenv.worker  # noqa: F401

_before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has come meanwhile is dropped
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, _before)  # the user's own children of this server shall have it
