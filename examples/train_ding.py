"""DI-engine's DQN learns CartPole by DI-engine's own pipeline; only the type of the env managers is not its own.

    python examples/train_ding.py

Trains until the mean return of an evaluation is the config's stop value, 195, and fails if that is not reached.
"""

import contextlib
import sys
import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
from ding.entry import serial_pipeline
from ding.envs import DingEnvWrapper
from ding.utils import ENV_REGISTRY
from ding.worker import InteractionSerialEvaluator
from easydict import EasyDict

STOP_VALUE = 195
COLLECTORS, EVALUATORS = 8, 5


@ENV_REGISTRY.register("example_cartpole")
class CartPole(DingEnvWrapper):  # type: ignore[misc]
    def __init__(self, cfg: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1"), cfg)


def configs() -> tuple[EasyDict, EasyDict]:
    """DI-engine's config for DQN on CartPole."""
    main = EasyDict(
        exp_name="cartpole",
        env={
            "collector_env_num": COLLECTORS,
            "evaluator_env_num": EVALUATORS,
            "n_evaluator_episode": EVALUATORS,
            "stop_value": STOP_VALUE,
            "manager": {"num_workers": 2},  # CartPole is cheap: several envs a process
        },
        policy={
            "cuda": False,
            "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128, 64], "dueling": True},
            "nstep": 1,
            "discount_factor": 0.97,
            "learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.001},
            "collect": {"n_sample": 8},
            "eval": {"evaluator": {"eval_freq": 40}},
            "other": {
                "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10000},
                "replay_buffer": {"replay_buffer_size": 20000},
            },
        },
    )
    create = EasyDict(
        env={"type": "example_cartpole"},
        env_manager={"type": "shmenv_subprocess", "import_names": ["shmenv.adapters.ding"]},  # was "subprocess"
        policy={"type": "dqn"},
        replay_buffer={"type": "deque", "import_names": ["ding.data.buffer.deque_buffer_wrapper"]},
    )
    return main, create


def main() -> None:
    returns: list[float] = []
    evaluate = InteractionSerialEvaluator.eval

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        stop, info = evaluate(self, *args, **kwargs)
        returns.append(float(np.mean(info["eval_episode_return"])))
        return stop, info

    InteractionSerialEvaluator.eval = recorded
    start = time.monotonic()
    env_cfg = EasyDict()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # where DI-engine puts its logs
        settings = [CartPole, [env_cfg] * COLLECTORS, [env_cfg] * EVALUATORS]
        serial_pipeline(configs(), seed=0, env_setting=settings, max_env_step=60_000)
    print(f"mean return of the last evaluation: {returns[-1]:.1f}, after {time.monotonic() - start:.0f} s")
    if returns[-1] < STOP_VALUE:
        sys.exit(f"it should have reached {STOP_VALUE}")


if __name__ == "__main__":
    main()
