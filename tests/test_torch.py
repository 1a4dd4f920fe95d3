"""Batches as torch tensors. torch comes with the frameworks' own environments: `make frameworks`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from envs import ScriptedEnv, actions

import shmenv

torch = pytest.importorskip("torch", reason="needs torch, which `make frameworks` installs beside the frameworks")


@pytest.mark.parametrize("convert", [torch.from_numpy, torch.from_dlpack], ids=["from_numpy", "from_dlpack"])
def test_a_batch_is_a_tensor_without_a_copy(
    make_pool: Callable[..., shmenv.Pool], convert: Callable[..., object]
) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    batch = pool.step(actions(3))
    for array in (batch.obs, batch.reward, batch.terminated):
        tensor = convert(array)
        assert tensor.data_ptr() == array.ctypes.data and tensor.shape == array.shape  # type: ignore[attr-defined]
    obs = convert(batch.obs)
    pool.step(actions(3))
    pool.step(actions(3))
    assert np.array_equal(obs.numpy(), batch.obs)  # type: ignore[attr-defined]  # the rows of the third step, as `batch`'s
    assert batch.obs[:, 1].tolist() == [3] * 3


def test_pinned_or_other_memory_of_torch_takes_a_batch(make_pool: Callable[..., shmenv.Pool]) -> None:
    pool = make_pool([ScriptedEnv] * 3)
    pool.reset()
    pool.send(actions(3))
    out = pool.recv(min_envs=3).copy()
    own = torch.zeros(out.obs.shape, dtype=torch.from_numpy(out.obs).dtype)
    out.obs = own.numpy()
    pool.send(actions(2), env_id=[0, 2])
    pool.recv(min_envs=2)
    pool.send(actions(3))
    assert pool.recv(min_envs=3, out=out) is out
    assert own[:, 1].tolist() == [3, 2, 3]
