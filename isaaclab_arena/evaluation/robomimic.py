"""A run's recordings for robomimic: files that its loader reads, and the environment that they name."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.evaluation import gym_ids
from isaaclab_arena.evaluation.validation import recorded_environment_job
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.models import ActionScaler, ActionScaling
from isaaclab_arena.paths import given_path
from isaaclab_arena.storage import episodes
from isaaclab_arena.storage.dataset import flat_array, write_robomimic_file
from isaaclab_arena.storage.layout import RUN_PLAN_FILE, job_of_dataset
from isaaclab_arena.storage.ledger import read_run_plan

# Adapt environments to robomimic's ``EnvGym``: Gym before 2022, flat observations, actions from -1 to 1.


class RobomimicEnv:
    """Builds an environment with one env slot, and adapts it to ``EnvGym``; `options` as for `make_single_env`."""

    # `reset` returns an observation only, `step` four values, and `render` takes the mode. An observation equals
    # ``obs/flat`` of an exported file, and actions have the scale of its ``actions``.

    def __init__(self, environment: str, *, lang: str | None = None, **options: Any) -> None:
        # Robomimic 0.5 passes `lang` to every environment; this one has its own instruction.
        del lang
        self.env = gym_ids.make_single_env(environment, observations="nested", **options)
        self.spec: Any = None  # Gym's registry leaves it here.
        # Not in the class, by which Gym would wrap the environment for a ``render_mode`` that is not listed.
        self.metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}
        arena = self.env.environment
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, arena.action_spec.shape, np.float32)
        self._scaler = ActionScaler(arena.action_spec, ActionScaling.WITHIN_BOUNDS, device=torch.device("cpu"))
        self._solved = False

    @property
    def unwrapped(self) -> "RobomimicEnv":
        """The environment itself."""
        return self

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start an episode; see `SingleEnv.reset`. Return the observation (num_numbers,), float32."""
        self._solved = False
        observation, _ = self.env.reset(seed=seed)
        return flat_array(observation["policy"])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        """Make one control step with an action (action_dim,). Return observation, reward, end, and info."""
        # Bounded entries are scaled from -1..1 to their bounds.
        wanted = self._scaler(torch.as_tensor(np.asarray(action, np.float32))).numpy()
        observation, reward, terminated, truncated, info = self.env.step(wanted)
        self._solved = bool(info.get("success", False))
        return flat_array(observation["policy"]), reward, terminated or truncated, info

    def render(self, mode: str = "rgb_array", height: int | None = None, width: int | None = None) -> np.ndarray:
        """Return the viewport in its own size. Shape: (height, width, 3), uint8."""
        del mode, height, width
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _check_success(self) -> dict[str, bool]:
        # EnvGym calls this name.
        return {"task": self._solved}


_RUN, _JOB = "RUN", "--job"


def export_robomimic(run: Path, output: Path, *, jobs: Sequence[str] = (), may_import: bool = False) -> Iterator[str]:
    """Write a file for each job with recordings (only `jobs`, if any), and yield a line about each."""
    # `run`: directory of a run or of a job, a recording, or a pattern of recordings. `may_import` permits loading code
    # that a recording names. `ConfigError` if there is no such job or recording, or its environment cannot be built.
    run = given_path(run)
    recorded: Mapping[str, Mapping[int, Path]]
    if (run / RUN_PLAN_FILE).is_file():
        names = [job.name for job in read_run_plan(run).jobs]
        if unknown := [name for name in jobs if name not in names]:
            raise ConfigError(f"the run has no job '{unknown[0]}'{did_you_mean(unknown[0], names)}", key=_JOB)
        located = {name: episodes.locate_episodes(run / name, name)[0] for name in jobs or names}
        if not any(located.values()):
            raise ConfigError(f"'{run}' holds no recorded episode of {', '.join(located)}", key=_RUN)
        recorded = {
            name: {index: copies[0] for index, copies in sorted(places.items())}
            for name, places in located.items()
            if places
        }
    else:
        # A job's directory, or files alone, have no plan, so their name is that of the job.
        if jobs:
            raise ConfigError(f"'{run}' is no directory of a run, which has jobs to choose from", key=_JOB)
        found = episodes.find_recordings(str(run), key=_RUN)
        name = run.resolve().name if run.is_dir() else job_of_dataset(found[0].name)
        recorded = {name: episodes.index_episodes(found, key=_RUN)}

    for name, files in recorded.items():
        yield _exported(files, output / f"{name}.hdf5", may_import=may_import)


def _exported(files: Mapping[int, Path], target: Path, *, may_import: bool) -> str:
    """Write the recordings of one job (episode index -> file) to `target`, which must not exist; return a line."""
    # Leave out episodes that ended in an error.
    sound: dict[int, Path] = {}
    for file in dict.fromkeys(files.values()):
        indices = [index for index, place in files.items() if place == file]
        with episodes.opened(file) as recording:
            attributes = [recording.attributes(recording.group(index)) for index in indices]
        sound |= {
            index: file for index, own in zip(indices, attributes, strict=True) if own.get("outcome") != Outcome.ERROR
        }
    sound = dict(sorted(sound.items()))
    if not sound:
        raise ConfigError("holds no episode without an error", file=str(next(iter(files.values()))))
    source = next(iter(sound.values()))
    env_args = episodes.read_env_args(source)

    # Only the environment knows the bounds of the actions.
    job = recorded_environment_job(env_args, source=str(source), num_envs=1, cameras=False, may_import=may_import)
    environment = job.build_environment(device=torch.device("cpu"), num_threads=1)
    try:
        scaler = ActionScaler(environment.action_spec, ActionScaling.WITHIN_BOUNDS, device=torch.device("cpu"))
    finally:
        environment.close()

    # For robomimic's ``create_env_from_metadata``: Gym imports the module before the colon, which registers the id.
    # Type 2 is `EnvGym`.
    variations = {"variations": env_args["variations"]} if env_args.get("variations") else {}
    kwargs = {**env_args["env_kwargs"], "environment": env_args["env_name"], **variations}
    module = f"{gym_ids.__name__}.robomimic_ids"
    made_by = {"env_name": f"{module}:{gym_ids.ROBOMIMIC_ID}", "type": 2, "env_kwargs": kwargs}
    masks = write_robomimic_file(
        target,
        (episodes.read_episode(file, index) for index, file in sound.items()),
        made_by,
        scaled=lambda actions: scaler.output_of(torch.from_numpy(actions.astype(np.float32))).numpy(),
    )
    shown = ", ".join(f"{mask} {len(indices)}" for mask, indices in masks.items())
    num_errors = len(files) - len(sound)
    left_out = f"; {num_errors} that ended in an error left out" if num_errors else ""
    return f"{target}: {len(sound)} episodes ({shown}){left_out}"
