"""The settings that all jobs of one rank share, from the options of its run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from isaaclab_arena.config.schema import PolicyServerConfig, Question, compared_groups
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.evaluation.provenance.rank_provenance import provenance_on
from isaaclab_arena.recording.episode_arrays import RecordedObservations
from isaaclab_arena.recording.recorder import RecordingOptions
from isaaclab_arena.recording.video_options import VideoOptions
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.recorded_episode import Compression
from isaaclab_arena.storage.run.attempts import Attempt


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """What all jobs of one rank share.

    Attributes:
        rank: This rank.
        world_size: Number of ranks.
        device: Where this rank simulates.
        num_threads: Threads that its physics may use.
        output_directory: Where the run writes.
        attempt: Which start of the program on this run, from 1.
        run: Name of the run, None if unknown.
        recording: What is recorded.
        video: What is filmed.
        num_groups: Groups that a job's env slots are divided into; while one is simulated the policy acts for another.
        eager_pictures: Whether every picture is drawn, whether or not anybody looks at it.
        policy_batch: Env slots that policies are always asked for together, None for as many as a job has.
        step_timeout_s: How long a job may go without a finished control step before the process is ended [s]; 0 for
            however long.
        import_s: What this process took from its start to that of the program [s]; None if nobody knows.
        build_timeout_s: How long the building of a job's environment and policy may take before the process is ended
            [s]; 0 for however long.
        provenance: What identifies the run, kept with every recording: versions, configuration hash.
        contents: What each job evaluates, by its name; a job that is not here has nobody who knows.
        planned_batches: Env slots that the policy of each job is asked for together, by the job's name, where an
            earlier start of the program settled that.
        played_with: With how many env slots the finished episodes of each job were played, by the job's name, where it
            has another number now.
        policy_servers: Where the policy servers listen that jobs share.
        turns: The names of the jobs with which each compared job takes turns, its own included, by its name.
        consolidates: Whether this rank puts recorded episodes into datasets, and does not leave that to somebody else.
    """

    rank: int
    world_size: int
    device: torch.device
    num_threads: int
    output_directory: Path
    attempt: int
    run: str | None = None
    recording: RecordingOptions
    video: VideoOptions = field(default_factory=VideoOptions)
    num_groups: int = 1
    eager_pictures: bool = False
    policy_batch: int | None = None
    step_timeout_s: float = 0.0
    build_timeout_s: float = 0.0
    import_s: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, Contents] = field(default_factory=dict)
    planned_batches: Mapping[str, int] = field(default_factory=dict)
    played_with: Mapping[str, int] = field(default_factory=dict)
    policy_servers: Mapping[PolicyServerConfig, ServerAddress] = field(default_factory=dict)
    turns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    consolidates: bool = True


def rank_settings(
    options: RunOptions,
    context: DistributedContext,
    *,
    output_directory: Path,
    attempt: Attempt,
    config_hash: str,
    questions: tuple[Question, ...] = (),
    import_s: float | None = None,
) -> RankSettings:
    """Return what all jobs of a rank share.

    ``attempt`` is this start of the program on the run, with what it knows of each job; ``config_hash`` is that of the
    run's jobs, and ``questions`` are what is asked of them. For the others see `RankSettings`.
    """
    recording = RecordingOptions(
        write_dataset=not options.no_dataset,
        observations=RecordedObservations(options.record_observations),
        compression=Compression(options.compression),
    )
    return RankSettings(
        rank=context.rank,
        world_size=context.world_size,
        device=context.device,
        num_threads=options.num_threads or default_num_threads(context.local_world_size),
        output_directory=output_directory,
        recording=recording,
        video=options.video_options(),
        attempt=attempt.number,
        run=attempt.run,
        num_groups=options.pipeline,
        eager_pictures=options.eager_pictures,
        policy_batch=options.fixed_policy_batch(),
        step_timeout_s=options.step_timeout_s,
        build_timeout_s=options.build_timeout_s,
        import_s=import_s,
        provenance={**provenance_on(context.device).facts, "config_hash": config_hash},
        contents={work.job: work.contents for work in attempt.jobs if work.contents is not None},
        planned_batches={work.job: work.policy_batch for work in attempt.jobs if work.policy_batch is not None},
        played_with={work.job: work.num_envs for work in attempt.jobs if work.num_envs is not None},
        turns={name: tuple(sorted(group)) for group in compared_groups(questions) for name in group},
    )
