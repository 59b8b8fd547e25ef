"""``isaaclab-arena view``: watch a policy in an environment, in a window or, where there is no display, in a file."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

import glfw
import torch

from isaaclab_arena.config import loading, schema
from isaaclab_arena.config.command_line import misspelt, read_some
from isaaclab_arena.config.options import NotNegative, parse_tokens, wrong_numbers
from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.errors import ArenaError, ConfigError, refuse
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces import specs
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.logs import plain_text
from isaaclab_arena.recording.video import VideoFile, write_png
from isaaclab_arena.sim.backends import MujocoBackend, Window


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Watch a policy: ENVIRONMENT [options of this command and of the environment].

    Opens MuJoCo's viewer where there is a display, and writes a video of one episode where there is none.
    """

    policy: str = "scripted"
    """Registered name or dotted class path of the policy."""
    output: Path | None = None
    """Write this file instead of opening a window: .mp4 for an episode, .png for its start."""
    seed: NotNegative = 0
    """Seed of the initial conditions."""
    episode: NotNegative = 0
    """Index of the episode, from 0."""


def main(argv: Sequence[str]) -> int:
    """Show an environment and return 0; ConfigError if it, the policy or an option is wrong."""
    options, rest = read_some(ViewOptions, argv, program="isaaclab-arena view")
    output = options.output
    if output is not None and output.suffix not in {".mp4", ".png"}:
        raise ConfigError(f"'{output}' must end in .mp4 or .png", key="--output")
    refuse(wrong_numbers(options))
    positionals, given = parse_tokens(rest)
    if len(positionals) != 1:
        # A misspelt option has taken the environment's name for its value.
        refuse(misspelt(rest, [field.name for field in fields(ViewOptions)]))
        found = f"got {' '.join(positionals)}" if positionals else "isaaclab-arena list environments shows them"
        raise ConfigError(f"name one environment; {found}", key="ENVIRONMENT")
    if ":" in positionals[0]:
        message = (
            f"'{positionals[0]}' is made elsewhere; --record_viewport_video of the runners films those, "
            "with make_kwargs: {render_mode: rgb_array} in arena_env_args"
        )
        raise ConfigError(message, key="ENVIRONMENT")

    # A job of one episode, so that options get the same checks as in a job file.
    size = {"viewport_width": 480, "viewport_height": 360}
    block = {
        "name": "view",
        "arena_env_args": {**size, **given, "environment": positionals[0], "num_envs": 1},
        "policy_type": options.policy,
        "num_episodes": 1,
    }
    file = loading.read_jobs({"jobs": [block]}, source="command line", defaults=schema.JobDefaults())
    [job] = resolve_jobs(file.jobs, file="command line")
    environment = job.builder.build(job.environment_config, num_envs=1, device=torch.device("cpu"), num_threads=1)
    if not isinstance(environment, ArenaEnvironment):
        raise ConfigError(f"'{positionals[0]}' is an environment that cannot be shown", key="ENVIRONMENT")
    with closing(environment), closing(job.build_policy()) as policy:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_written = output is not None or not glfw.init()  # no display
        if is_written:
            _write(environment, policy, options, output or Path(f"{environment.task_name}.mp4"))
            return 0
        if not isinstance(environment.backend, MujocoBackend):
            raise ArenaError("only the physics on the CPU can be shown in a window")
        with Window(environment.backend) as window:
            showing = _EachStep(
                lambda: window.show(environment.control_dt), lambda index, ending: print(f"episode {index}: {ending}")
            )
            print("close the window to end")
            # Play episodes until the window is closed.
            episodes = (Episode(job="view", episode_index=at, seed=options.seed) for at in count(options.episode))
            rollout(environment, policy, episodes, [showing], stop_requested=lambda: not window.viewer.is_running())
    return 0


def _write(environment: ArenaEnvironment, policy: PolicyBase[Any], options: ViewOptions, output: Path) -> None:
    """Write the start of the episode as a picture, or the whole episode as a video."""
    episode = Episode(job="view", episode_index=options.episode, seed=options.seed)
    if output.suffix == ".png":
        environment.reset(torch.tensor([0]), [environment.draw_conditions(episode.conditions_generator())])
        write_png(output, environment.film([0], [specs.VIEWPORT])[specs.VIEWPORT][0])
        print(plain_text(f"wrote {output}"))
        return
    endings: list[str] = []
    video = VideoFile(output, frames_per_second=1 / environment.control_dt, title=output.stem)

    def add() -> None:
        video.add(environment.film([0], [specs.VIEWPORT])[specs.VIEWPORT][0])

    try:
        rollout(environment, policy, [episode], [_EachStep(add, lambda _, end: endings.append(end))])
        video.finish()
    except BaseException:
        video.discard()
        raise
    print(plain_text(f"wrote {output}: episode {options.episode}, {''.join(endings)}"))


@dataclass(eq=False)
class _EachStep(Observer):
    """Shows the start of an episode and each of its steps, and tells its end in words."""

    sees_pictures = False

    show: Callable[[], None]
    tell: Callable[[int, str], None]

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        del environment, starts, observation
        self.show()

    def on_step(self, environment: Environment, transition: Transition) -> None:
        del environment, transition
        self.show()

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        del environment
        self.tell(record.episode.episode_index, f"{record.outcome} after {record.length} steps")
