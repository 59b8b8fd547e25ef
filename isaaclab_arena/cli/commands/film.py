"""``isaaclab-arena film``: film episodes of a run that is over, from their recordings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import Field

from isaaclab_arena.cli.commands.replay import chosen_episodes
from isaaclab_arena.cli.json_output import print_json, stdout_for_json
from isaaclab_arena.config.options import Count, refuse_wrong_numbers
from isaaclab_arena.distributed.devices import check_device_exists, visible_gpu_count
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import filming
from isaaclab_arena.evaluation.options import MAX_FPS
from isaaclab_arena.evaluation.replaying import ReplaySettings
from isaaclab_arena.logs import plain_text
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.layout import demo_name


@dataclass(frozen=True, kw_only=True)
class FilmOptions:
    """Film episodes of a run from their recordings, as the run would have filmed them.

    Each episode is simulated again from its start and its actions, without its policy. Exit code 0 if every episode
    has its film, 1 if not.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: str
    """Episodes of each job: all, one, failures, successes, reasons, discordant, or numbers such as 0,5,7-9. one: the
    first failure, or else the first episode; reasons: up to three failures for each event that decided them."""
    job: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only this job; may be given several times."""
    baseline: str | None = None
    """With --episodes discordant: the run, or the job of this run, with another outcome from the same conditions."""
    camera: Literal["viewport", "robot", "all"] = "viewport"
    """viewport for the whole scene, robot for each camera of the policy, or all."""
    video_fps: Annotated[float, Field(gt=0, le=MAX_FPS)] = 10.0
    """Frames per second of robot time; at most one per step."""
    output_dir: Path | None = None
    """Directory for <job>/videos; by default the run itself."""
    num_envs: Count = 16
    """Env slots to simulate at once."""
    device: str = "cpu"
    """Device of the simulation: cpu, cuda or cuda:<index>."""
    allow_import: bool = False
    """Import the module, or run the interpreter, that a recording names. Use it for authors you trust."""
    json: bool = False
    """Print the result of each episode as JSON, and the text for people on stderr."""


def main(argv: Sequence[str]) -> int:
    """Film episodes, show each result, and return the exit code; ConfigError, or StorageError for a film."""
    options = tyro.cli(FilmOptions, args=list(argv), prog="isaaclab-arena film", use_underscores=True)
    refuse_wrong_numbers(options)
    device = check_device_exists(options.device, visible_gpus=visible_gpu_count(), option="--device")
    shown = {"camera": options.camera != "viewport", "viewport": options.camera != "robot"}
    video = VideoOptions(frames_per_second=options.video_fps, **shown)
    settings = ReplaySettings(
        num_envs=options.num_envs, device=device, num_threads=default_num_threads(), may_import=options.allow_import
    )

    # Choose the episodes of each job.
    jobs = filming.chosen_jobs(options.run, options.job)
    is_discordant = options.episodes == filming.Choice.DISCORDANT
    if is_discordant != (options.baseline is not None):
        key = "--episodes" if is_discordant else "--baseline"
        raise ConfigError("--episodes discordant and --baseline RUN or JOB belong together", key=key)
    episodes: Mapping[str, Sequence[int]]
    if options.baseline is not None:
        episodes = filming.discordant_episodes(options.run, jobs, options.baseline)
    elif options.episodes in set(filming.Choice):
        episodes = filming.episodes_by_outcome(options.run, jobs, filming.Choice(options.episodes))
    else:
        episodes = dict.fromkeys(jobs, chosen_episodes(options.episodes))

    filmed: list[filming.FilmedEpisode] = []

    def show(episode: filming.FilmedEpisode) -> None:
        filmed.append(episode)
        if episode.reason is not None:
            told = f"no film: {episode.reason}"
        else:
            told = ", ".join(map(str, episode.films))
            if episode.pose_difference > 0:
                told += f" (poses are up to {episode.pose_difference:.1g} m or rad from those recorded)"
        print(plain_text(f"{episode.job} {demo_name(episode.episode_index)}: {told}"), flush=True)

    # Lines for people must not get into the JSON on stdout.
    with stdout_for_json(wanted=options.json):
        filming.film_episodes(options.run, episodes, video, settings, show, output_directory=options.output_dir)
        with_film = sum(episode.reason is None for episode in filmed)
        print(f"{with_film} of {len(filmed)} episodes filmed")
    if options.json:
        print_json({"episodes": filmed})
    return 0 if with_film == len(filmed) else 1
