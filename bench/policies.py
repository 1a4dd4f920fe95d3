"""The policies of the loops: each takes observations, and gives actions, their log-probabilities and values."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Policy = Callable[[Array], tuple[Array, Array, Array]]
HIDDEN = 64


class NumpyMLP:
    """An actor and a critic of 2 x 64 tanh, in numpy; actions are sampled by Gumbel's trick."""

    def __init__(self, obs_dim: int = 4, actions: int = 2) -> None:
        self.random = np.random.default_rng(1)
        self.actor, self.critic = self._net(obs_dim, actions), self._net(obs_dim, 1)

    def __call__(self, obs: Array) -> tuple[Array, Array, Array]:
        logits, value = self._through(self.actor, obs), self._through(self.critic, obs)
        action = (logits + self.random.gumbel(size=logits.shape)).argmax(1)
        shifted = logits - logits.max(1, keepdims=True)
        logprob = shifted[np.arange(len(obs)), action] - np.log(np.exp(shifted).sum(1))
        return action, logprob, value[:, 0]

    def _net(self, inputs: int, outputs: int) -> list[Array]:
        sizes = (inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)
        return [(self.random.standard_normal(size) / np.sqrt(size[0])).astype(np.float32) for size in sizes]

    @staticmethod
    def _through(net: list[Array], obs: Array) -> Array:
        return np.asarray(np.tanh(np.tanh(obs @ net[0]) @ net[1]) @ net[2])


def mlp(inputs: int, outputs: int) -> Any:
    """CleanRL's net for CartPole."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    )


def lean() -> Policy:
    """One torch net for actor and critic."""
    return _sampled(mlp(4, 3), 2, lambda obs: obs)


def cnn() -> Policy:
    """A small convolutional net for (4, 84, 84) bytes."""
    from torch import nn

    body = [nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*body, nn.Linear(2592, 256), nn.ReLU(), nn.Linear(256, 7))
    return _sampled(net, 6, lambda obs: obs.float().mul_(1 / 255))


def _sampled(net: Any, actions: int, prepared: Callable[[Any], Any]) -> Policy:
    """No distributions: Gumbel's trick by hand."""
    import torch

    def act(obs: Array) -> tuple[Array, Array, Array]:
        with torch.inference_mode():
            out = net(prepared(torch.from_numpy(obs)))
            logits, value = out[:, :actions], out[:, actions]
            logprob = torch.log_softmax(logits, 1)
            action = (logits - torch.empty_like(logits).exponential_().log_()).argmax(1, keepdim=True)
            return action.squeeze(1).numpy(), logprob.gather(1, action).squeeze(1).numpy(), value.numpy()

    return act


POLICIES: dict[str, Callable[[], Policy]] = {"numpy": NumpyMLP, "lean": lean, "cnn": cnn}
