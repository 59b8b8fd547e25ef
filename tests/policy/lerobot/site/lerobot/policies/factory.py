import json
import os
import time
import typing
from collections import deque
from pathlib import Path

import torch

from lerobot.datasets import Dataset
from lerobot.policies.groot import GrootConfig


class Policy(torch.nn.Module):
    """Acts on its last states and pictures, its instruction and its noise.

    It keeps its last states, and the actions that it has still to play, in the way of LeRobot's policies. With the
    settings of ACT and TD-MPC by which these remember, it remembers too.
    """

    def __init__(self, directory, config):
        super().__init__()
        self.directory, self.config, self.queries = Path(directory), config, 0
        self.averages = getattr(config, "temporal_ensemble_coeff", None) is not None
        self.plans = getattr(config, "use_mpc", False)
        self.averager = Averager()

    @classmethod
    def from_pretrained(cls, directory, config):
        if getattr(config, "misbehaviour", None) == "no weights":
            raise RuntimeError("Missing key(s) in state_dict: model.weight")
        if "start slowly" in str(getattr(config, "misbehaviour", None)) and (Path(directory) / ".died").exists():
            time.sleep(3600)
        if getattr(config, "needs_datasets", False):
            assert issubclass(Dataset, object)
        return cls(directory, config)

    def reset(self):
        self._queues = {
            "observation.state": deque(maxlen=self.config.n_obs_steps),
            "action": deque(maxlen=self.config.n_action_steps),
        }
        self.averager.reset()
        self._prev_mean: typing.Any = torch.rand(()) if self.plans else None

    def select_action(self, batch):
        seen = self._queues["observation.state"]
        seen.extend([batch["observation.state"]] * (1 if seen else self.config.n_obs_steps))
        if self.averages:
            return self.averager.update(self.predict_action_chunk(batch))
        if self.plans:
            mean = self.predict_action_chunk(batch)[:, 0] + 0.1 * torch.randn(())
            self._prev_mean = (mean + self._prev_mean) / 2
            return self._prev_mean
        if not self._queues["action"]:
            self._queues["action"].extend(self.predict_action_chunk(batch).transpose(0, 1))
        return self._queues["action"].popleft()

    def predict_action_chunk(self, batch):
        self.queries += 1
        states = torch.stack(list(self._queues["observation.state"]), dim=1)
        past = torch.arange(1.0, states.shape[1] + 1)
        base = (states.mean(-1) * past).sum(1) + torch.tensor([float(len(words)) for words in batch["task"]])
        if "tokens" in batch:
            # Like last digits that change with the padding of instructions.
            base = base + 0.01 * batch["tokens"].shape[1]
        for name in self.config.input_features:
            if "image" in name:
                assert batch[name].shape[1] == 3
                assert batch[name].max() <= 1
                base = base + batch[name].flatten(1).mean(1)
        size, num_actions = len(base), self.config.n_action_steps
        (action_dim,) = self.config.output_features["action"]["shape"]
        actions = base[:, None, None] + torch.arange(float(num_actions))[:, None] + torch.arange(float(action_dim))
        return self._misbehaved(torch.tanh(actions / 10) + self._noise(size, num_actions, action_dim))

    def _noise(self, size, num_actions, action_dim):
        if self.config.type == "diffusion":
            noise = torch.randn((size, num_actions, action_dim), device="cpu")
            return 0.1 * noise + 0.1 * torch.randn_like(noise) + torch.normal(mean=0.0, std=0.1, size=noise.shape)
        if self.config.type == "pi0":
            return torch.randn((num_actions, size, action_dim)).transpose(0, 1)
        if self.config.type == "unheard_of":
            assert size == 1
            return torch.rand(1)
        return 0

    def _misbehaved(self, actions):
        # To say what it is like it acts a few times.
        few = 6 if self.averages or self.plans else 1
        misbehaviour = getattr(self.config, "misbehaviour", None) if self.queries > few else None
        if str(misbehaviour).startswith("die once") and not (self.directory / ".died").exists():
            (self.directory / ".died").touch()
            os._exit(3)
        if misbehaviour == "grow":
            self.averager.trail += [0.5] * 1000
        if misbehaviour == "die":
            os._exit(3)
        if misbehaviour == "hang":
            time.sleep(3600)
        if misbehaviour == "raise":
            raise ValueError("a tensor is on the wrong shelf")
        if misbehaviour == "hang once" and not (self.directory / ".hung").exists():
            (self.directory / ".hung").touch()
            time.sleep(3600)
        if misbehaviour == "tell size":
            return torch.full_like(actions, 2.0 * len(actions))
        if misbehaviour == "tell settings":
            told = 2 * torch.get_num_threads() + torch.are_deterministic_algorithms_enabled()
            return torch.full_like(actions, 2.0 * told)
        if misbehaviour == "nan":
            return actions * float("nan")
        return actions[:, :-1] if misbehaviour == "few" else actions


class Averager:
    """Averages what was predicted for a step, as long as that was ahead."""

    def __init__(self):
        self.weight = 0.5
        self.reset()

    def reset(self):
        self.ahead = None
        self.trail = []

    def update(self, chunk):
        self.trail.append(chunk[0, 0, 0].item())
        if self.ahead is not None:
            kept = self.ahead.shape[1]
            chunk = torch.cat([self.weight * self.ahead + (1 - self.weight) * chunk[:, :kept], chunk[:, kept:]], dim=1)
        self.ahead = chunk[:, 1:]
        return chunk[:, 0] + 0.01 * len(self.trail)


def get_policy_class(name):
    return Policy


def make_pre_post_processors(config, pretrained_path, preprocessor_overrides):
    assert preprocessor_overrides == {"device_processor": {"device": "cpu"}}
    assert not isinstance(config, GrootConfig)

    steps = json.loads((Path(pretrained_path) / "policy_preprocessor.json").read_text())["steps"]
    pads = any(step["registry_name"] == "tokenizer_processor" for step in steps)

    def before(batch):
        doubled = {**batch, "observation.state": 2 * batch["observation.state"]}
        if pads:
            doubled["tokens"] = torch.zeros(len(batch["task"]), max(map(len, batch["task"])))
        return doubled

    return before, _Halved(pretrained_path)


class _Halved:
    """Halves actions; with a step that remembers, each is one further on than the one before."""

    def __init__(self, directory):
        steps = json.loads((Path(directory) / "policy_postprocessor.json").read_text())["steps"]
        self.remembers = any(step["registry_name"] == "delta_action_processor" for step in steps)
        self.calls = 0

    def __call__(self, action):
        self.calls += 1
        return action / 2 + (self.calls if self.remembers else 0)
