"""Define a task of one's own, to bring the gripper to two markers in order, and evaluate two policies in it.

python examples/own_task.py

Random actions do not solve it. `isaaclab-arena new task` writes a package for such a task.
"""

import torch

import isaaclab_arena as arena
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.policies import PolicyBase
from isaaclab_arena.tasks import SceneObject, TableOptions, TableTask, Task, TaskSpec, Verdict, terms

NEAR_M = 0.03
FIRST, SECOND = (
    SceneObject(
        prefix=name, asset="objects/target.xml", area=((0.35, low, 0.15), (0.60, low + 0.2, 0.40)), observed_as=name
    )
    for name, low in (("first", 0.05), ("second", -0.25))
)
SPEC = TaskSpec(
    name="visit_both",
    instruction="move the gripper to the left marker, then to the right one",
    time_limit_s=6.0,
    hold_steps=5,
    things=(FIRST, SECOND),
)


class VisitBoth(Task):
    """Solved when the tool centre point stays at the second marker for 0.25 s, after it was at the first one."""

    def __init__(self, embodiment) -> None:
        super().__init__(SPEC)
        self.tool = embodiment.robot.tcp_site

    def attach(self, backend) -> None:
        """Make a memory per env slot."""
        super().attach(backend)
        self.visited = torch.zeros(backend.num_envs, dtype=torch.bool, device=backend.device)

    def begin(self, backend, env_ids) -> None:
        """Forget the episodes before."""
        super().begin(backend, env_ids)
        self.visited[env_ids] = False

    def judge(self, backend, running):
        """Judge by the distances to the markers."""
        tool = backend.site_position(self.tool)
        first, second = (terms.distance(tool, backend.body_position(thing.body)) for thing in (FIRST, SECOND))
        self.visited = self.visited | (running & (first < NEAR_M))
        success = self.held(self.visited & (second < NEAR_M), running)
        return Verdict(
            reward=terms.closeness(torch.where(self.visited, second, first), half_at=0.1) + self.visited,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_distance_m": second, "progress": 0.5 * self.visited + 0.5 * success},
        )


class GoesToBoth(PolicyBase):
    """Goes straight to the first marker, then to the second."""

    def __init__(self) -> None:
        super().__init__(None)
        self.visited: torch.Tensor | None = None

    def get_action(self, env, observation):
        """Return the actions. Shape: (num_envs, 7)."""
        state = observation["policy"]
        here = torch.linalg.vector_norm(state["first_pos"] - state["eef_pos"], dim=1) < 0.5 * NEAR_M
        self.visited = visited = here if self.visited is None else self.visited | here
        goal = torch.where(visited[:, None], state["second_pos"], state["first_pos"])
        action = torch.zeros(env.action_space.shape, device=env.device)
        action[:, :3] = (goal - state["eef_pos"]).clamp(-0.04, 0.04)
        return action

    def reset(self, env_ids=None):
        """Forget what was visited in env slots where another episode begins."""
        if env_ids is None or self.visited is None:
            self.visited = None
        else:
            self.visited[env_ids] = False


def main() -> dict[str, float]:
    """Evaluate, show the tables, and return the success rates."""
    # For this process; a package declares an entry point instead, and then every command knows the name.
    builder = TableTask(config_class=TableOptions, make_task=lambda _, robot: VisitBoth(robot))
    ENVIRONMENTS.register("visit_both", builder)
    rates: dict[str, float] = {}
    for name, policy in (("goes_to_both", GoesToBoth()), ("random_action", "random_action")):
        results = arena.evaluate(
            environment="visit_both", policy=policy, num_episodes=20, num_envs=4, action_mode="ee_delta"
        )
        print(results)
        rates[name] = results.job().success_rate or 0.0
    return rates


if __name__ == "__main__":
    main()
