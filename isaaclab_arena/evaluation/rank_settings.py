"""What all jobs of one rank share, from the options of its run."""

from pathlib import Path

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.job_runner import RankSettings
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.surroundings import surroundings
from isaaclab_arena.recording.recorder import RecordedObservations, RecordingOptions
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.recorded_episode import Compression


def rank_settings(
    options: RunOptions, context: DistributedContext, *, output_directory: Path, attempt: int, config_hash: str
) -> RankSettings:
    """Return what all jobs of a rank share.

    Args:
        options: The options of the run.
        context: Who this process is.
        output_directory: Where the run writes.
        attempt: Which start of the program on this run, from 1.
        config_hash: Hash of the run's jobs.
    """
    return RankSettings(
        rank=context.rank,
        world_size=context.world_size,
        device=context.device,
        num_threads=options.num_threads or default_num_threads(context.local_world_size),
        output_directory=output_directory,
        recording=RecordingOptions(
            write_dataset=not options.no_dataset,
            observations=RecordedObservations(options.record_observations),
            compression=Compression(options.compression),
        ),
        video=options.video_options(),
        attempt=attempt,
        policy_batch=options.fixed_policy_batch(),
        step_timeout_s=options.step_timeout_s,
        provenance={**surroundings(context.device), "config_hash": config_hash},
    )
