"""Policies in the styles of Isaac Lab Arena's documents and users, from its first release to its newest."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

# pyright: reportIncompatibleMethodOverride=false
# Arena's classes define static methods where the base has class methods, and one here returns an array for a tensor:
# that they run all the same is what is tested.
import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces.dict import Dict as GymSpacesDict

from isaaclab_arena.policies import PolicyBase, PolicyCfg, PolicyTraits, register_policy
from isaaclab_arena.policy.action_chunking import ActionChunkingState


def constant(env: Any, value: float) -> torch.Tensor:
    return torch.full(env.action_space.shape, value, device=torch.device(env.unwrapped.device))


class Pushes:
    """The half of most of them that is no matter of style."""

    config: Any

    def get_action(self, env, observation):
        return constant(env, self.config.push)


@dataclass
class NudgeCfg(PolicyCfg):
    """Plain, as Arena's own are: what is below it need not be frozen."""

    push: float = 0.1
    device: str = "cuda"


@register_policy
class NudgePolicy(PolicyBase[NudgeCfg]):
    """The style of the newest documents, which name the options twice."""

    name = "outsider_nudge"
    config_class = NudgeCfg

    def __init__(self, config: NudgeCfg):
        super().__init__(config)
        self.network_device = torch.empty(0, device=config.device).device

    def get_action(self, env: gym.Env, observation: GymSpacesDict) -> torch.Tensor:
        return constant(env, self.config.push)


@dataclass(frozen=True)
class StillCfg(PolicyCfg):
    """Frozen, as this project's own are."""

    push: float


@register_policy
class GenericPolicy(Pushes, PolicyBase[StillCfg]):
    """Says what its options are as a parameter of its base only."""

    name = "outsider_generic"


@register_policy(cfg_type=NudgeCfg)
class RegisteredWithCfgPolicy(Pushes, PolicyBase):
    """Says what its options are where it is registered."""

    name = "outsider_registered_with_cfg"


@dataclass
class SweepArgs:
    """Options that derive from nothing."""

    reach_m: float = 0.05
    mirrored: bool = False

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "SweepArgs":
        return cls(reach_m=args.sweep_reach_m, mirrored=args.sweep_mirrored)


@register_policy
class SweepPolicy(PolicyBase):
    """Has a dataclass for job files and, under other names, arguments for the command line."""

    name = "outsider_sweep"
    config_class = SweepArgs

    def __init__(self, config: SweepArgs):
        super().__init__(config)

    def get_action(self, env, observation):
        return constant(env, -self.config.reach_m if self.config.mirrored else self.config.reach_m)

    @staticmethod
    def add_args_to_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        group = parser.add_argument_group("Sweep", "Arguments of the sweep")
        group.add_argument("--sweep_reach_m", type=float, default=0.05)
        group.add_argument("--sweep_mirrored", action="store_true")
        return parser

    @staticmethod
    def from_args(args: argparse.Namespace) -> "SweepPolicy":
        return SweepPolicy(SweepArgs.from_cli_args(args))


class StretchPolicy(Pushes, PolicyBase[NudgeCfg]):
    """Has an argument for the command line beside those of its options."""

    @staticmethod
    def add_args_to_parser(parser):
        parser.add_argument("--push", type=float, default=0.1)
        parser.add_argument("--stretch", type=float, default=1.0)
        return parser

    @staticmethod
    def from_args(args):
        return StretchPolicy(NudgeCfg(push=args.push * args.stretch, device=args.device))


class ParserPolicy(PolicyBase):
    """The style of the first release: nothing but a parser, and a constructor of its own."""

    def __init__(self, push: float, weights: list[float], num_envs: int, device: str):
        super().__init__()
        self.push = push
        self.weights = weights
        self.num_envs = num_envs
        self.device = device

    @staticmethod
    def add_args_to_parser(parser):
        parser.add_argument("--push", type=float, required=True)
        parser.add_argument("--weights", type=float, nargs="+", default=[1.0])
        parser.add_argument("--mode", choices=["slow", "fast"], default="slow")
        parser.add_argument("--no_gripper", dest="gripper", action="store_false")
        return parser

    @staticmethod
    def from_args(args):
        push = args.push if args.gripper else 0.0
        return ParserPolicy(push=push, weights=args.weights, num_envs=args.num_envs, device=args.device)

    def get_action(self, env, observation):
        assert self.num_envs == env.num_envs
        return constant(env, self.push * sum(self.weights)).to(self.device)


class NumpyPolicy(PolicyBase):
    """Answers with what its model gives, an array of double precision in an order of its own."""

    def get_action(self, env, observation):
        return np.full(env.action_space.shape[::-1], 0.125).T


class NumpyReproduciblePolicy(PolicyBase):
    """Answers with an array that follows from each env slot alone, and says so."""

    traits = PolicyTraits(reproducible=True)

    def get_action(self, env, observation):
        return np.tanh(sum(term.numpy()[:, :1] for term in observation["policy"].values()))


class UndeclaredPolicy(PolicyBase):
    """Takes options and does not say which."""

    def __init__(self, config):
        super().__init__(config)
        self.push = config.get("push", 0.0)  # pyright: ignore[reportOptionalMemberAccess]  inferred from the base

    def get_action(self, env, observation):
        return constant(env, self.push)


class NothingToSayPolicy(PolicyBase[PolicyCfg]):
    """Has no options and names Arena's base for them."""

    def get_action(self, env, observation):
        assert isinstance(self.config, PolicyCfg)
        return constant(env, 0.0)


class Kit:
    """Options in a class that is no dataclass."""

    def __init__(self, push: float, *, sign: int = 1):
        if push < 0:
            raise ValueError("push with a positive number")
        self.push = push * sign


class KitPolicy(Pushes, PolicyBase):
    """Takes them by keyword."""

    config_class = Kit


class PathPolicy(Pushes, PolicyBase):
    """Takes a path that no option gives."""

    def __init__(self, checkpoint: Path):
        super().__init__()


class AnnotatedPolicy(Pushes, PolicyBase):
    """Says what its options are in its constructor only."""

    def __init__(self, config: NudgeCfg):
        super().__init__(config)


class BarePolicy(PolicyBase):
    """The oldest form, which calls no constructor of its base."""

    def __init__(self):
        self.push = 0.0

    def get_action(self, env, observation):
        return constant(env, self.push)


class RecordedPolicy(PolicyBase):
    """Says in the old words how long it is."""

    def is_recording(self) -> bool:
        return True

    def length(self) -> int | None:
        return 7

    def get_action(self, env, observation):
        return constant(env, 0.0)


class ChunkedPolicy(PolicyBase):
    """Plays chunks of a network's answers with Arena's helper."""

    config_class = NudgeCfg
    num_calls: ClassVar[int] = 0

    def __init__(self, config: NudgeCfg):
        super().__init__(config)
        self.chunks: ActionChunkingState | None = None

    def get_action(self, env, observation):
        if self.chunks is None:
            sizes = {"action_chunk_length": 4, "action_horizon": 8, "action_dim": env.action_space.shape[1]}
            self.chunks = ActionChunkingState(
                num_envs=env.num_envs, device=env.unwrapped.device, dtype=torch.float, **sizes
            )
        return self.chunks.get_action(lambda: self.chunk(env))

    def chunk(self, env: Any) -> torch.Tensor:
        type(self).num_calls += 1
        return torch.full((env.num_envs, 8, env.action_space.shape[1]), 0.01)

    def reset(self, env_ids=None):
        if self.chunks is not None:
            self.chunks.reset(env_ids)


class AttributePolicy(PolicyBase):
    """Takes options, does not say which, and reads them as attributes."""

    def __init__(self, config):
        super().__init__(config)
        self.push = config.push  # pyright: ignore[reportOptionalMemberAccess]  inferred from the base

    def get_action(self, env, observation):
        return constant(env, self.push)


class InconstructiblePolicy(Pushes, PolicyBase):
    """Needs what nothing declares."""

    def __init__(self, model: Any, rate: float):
        super().__init__()


class ForgetfulPolicy(ParserPolicy):
    """Reads an argument that nobody defines."""

    @staticmethod
    def from_args(args):
        return ParserPolicy(args.remote_host, [], args.num_envs, args.device)


class InheritingPolicy(ParserPolicy):
    """Inherits what builds its base."""


class PositionalPolicy(ParserPolicy):
    """Defines an argument without hyphens."""

    @staticmethod
    def add_args_to_parser(parser):
        parser.add_argument("push", type=float)
        return parser


class ConstantPolicy(ParserPolicy):
    """Defines flags that stand for numbers, repetitions, truth that is typed, and something no file can hold."""

    @staticmethod
    def add_args_to_parser(parser):
        parser.add_argument("--far", dest="push", action="store_const", const=0.5, default=0.25)
        parser.add_argument("-s", "--stronger", action="count", default=0)
        parser.add_argument("--weight", action="append", type=float, default=[])
        parser.add_argument("--mirrored", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--on", type=bool, default=True)
        parser.add_argument("--at_once", dest="when", action="store_const", const=object())
        return parser

    @staticmethod
    def from_args(args):
        push = args.push * args.on * (-1 if args.mirrored else 1) * 2**args.stronger
        return ConstantPolicy(push, args.weight or [1.0], args.num_envs, args.device)


class BrokenParserPolicy(ParserPolicy):
    """Defines an argument twice."""

    @staticmethod
    def add_args_to_parser(parser):
        parser.add_argument("--push")
        parser.add_argument("--push")
        return parser
