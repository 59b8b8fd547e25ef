"""A plant whose delay margin is known, and policies that answer with chunks."""

import torch

from isaaclab_arena.interfaces.environment import Environment, HoldAction, Step
from isaaclab_arena.interfaces.policy import ChunkTraits, PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import ArraySpec

POLE = 1.2
GAIN = 1.0
NUM_STEPS = 60
CLOSE = 0.2


class UnstablePlant(Environment):
    """``x[t + 1] = POLE * x[t] + u[t]``, solved if it is close to 0 after `NUM_STEPS` steps."""

    def __init__(self, num_envs: int, hold_action: HoldAction) -> None:
        self.num_envs, self.device, self.hold_action = num_envs, torch.device("cpu"), hold_action
        self.observation_spec = {"policy": {"x": ArraySpec(shape=(1,))}}
        self.action_spec = ArraySpec(shape=(1,))
        self.task_description, self.max_episode_length, self.control_dt = "balance", NUM_STEPS, 0.05
        self._x = torch.zeros(num_envs, 1)
        self._clock = torch.zeros(num_envs, dtype=torch.int64)

    def draw_conditions(self, generator):
        return {"start": float(generator.uniform(0.5, 1.0))}

    def reset(self, env_ids, conditions):
        self._x[env_ids, 0] = torch.tensor([each["start"] for each in conditions])
        self._clock[env_ids] = 0
        return self._observe()

    def step(self, action):
        self._x = (POLE * self._x + action).clamp(-1e6, 1e6)
        self._clock += 1
        over = self._clock >= NUM_STEPS
        return Step(
            observation=self._observe(),
            reward=torch.zeros(self.num_envs),
            terminated=torch.zeros_like(over),
            truncated=over,
            success=over & (self._x[:, 0].abs() < CLOSE),
            diverged=torch.zeros_like(over),
        )

    def _observe(self):
        return {"policy": {"x": self._x.clone()}}


class Proportional(PolicyBase[None]):
    """Acts against what it sees."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env, observation):
        return -GAIN * observation["policy"]["x"]


class ConstantChunks(Proportional):
    """Acts against what it sees for a whole chunk, of which one action is played."""

    def chunk_traits(self) -> ChunkTraits:
        return ChunkTraits(played=1, predicted=16, picture_steps=())

    def look(self, env, observation, env_ids) -> None:
        pass

    def get_action(self, env, observation):
        return self.chunks(env, observation, range(env.num_envs))[:, 0]

    def chunks(self, env, observation, env_ids, going_on=None):
        return -GAIN * observation["policy"]["x"][list(env_ids), None].expand(-1, 16, 1)


class CommittedChunks(ConstantChunks):
    """So too, and keeps what is committed of what it goes on from. It is free to choose all other actions."""

    def chunk_traits(self) -> ChunkTraits:
        return ChunkTraits(played=1, predicted=16, can_continue=True, picture_steps=())

    def chunks(self, env, observation, env_ids, going_on=None):
        answer = super().chunks(env, observation, env_ids)
        return answer if going_on is None else torch.where(going_on.weights[..., None] >= 1, going_on.actions, answer)


class NoisyChunks(PolicyBase[None]):
    """Answers with what it sees and noise of the episode's own stream, and goes on from what it is given."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)
    PLAYED, PREDICTED, TERM = 3, 8, "position"

    def __init__(self) -> None:
        super().__init__()
        self.generators = {}
        self.asked: list[tuple[int, ...]] = []
        self.plans: dict[int, list[torch.Tensor]] = {}

    def start_episodes(self, env, starts) -> None:
        for start in starts:
            self.generators[start.env_id] = start.episode.policy_generator()
            self.plans[start.env_id] = []

    def chunk_traits(self) -> ChunkTraits:
        return ChunkTraits(played=self.PLAYED, predicted=self.PREDICTED, can_continue=True)

    def pictures_to_see(self, env, starting):
        return [*starting, *(env_id for env_id, plan in self.plans.items() if not plan)]

    def look(self, env, observation, env_ids) -> None:
        pass

    def get_action(self, env, observation):
        used_up = [env_id for env_id in range(env.num_envs) if env_id in self.generators and not self.plans[env_id]]
        if used_up:
            for env_id, chunk in zip(used_up, self.chunks(env, observation, used_up), strict=True):
                self.plans[env_id] = list(chunk[: self.PLAYED])
        nothing = torch.zeros(env.action_spec.shape)
        return torch.stack(
            [self.plans[slot].pop(0) if self.plans.get(slot) else nothing for slot in range(env.num_envs)]
        )

    def chunks(self, env, observation, env_ids, going_on=None):
        self.asked.append(tuple(env_ids))
        shape = (self.PREDICTED, *env.action_spec.shape)
        noise = torch.stack([torch.tensor(self.generators[env_id].standard_normal(shape)) for env_id in env_ids])
        position = observation["policy"][self.TERM][list(env_ids), :1, None]
        answer = (torch.sin(3 * position) + 0.1 * noise).float()
        if going_on is None:
            return answer
        share = 0.5 * going_on.weights[:, :, None]
        return (1 - share) * answer + share * going_on.actions


class NoisyReaching(NoisyChunks):
    """So too, in an environment with an arm."""

    TERM = "robot_joint_pos"
