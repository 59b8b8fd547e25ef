"""``isaaclab-arena watch``: evaluate the checkpoints of a training as they appear."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import tyro

from isaaclab_arena.config import documents, loading
from isaaclab_arena.config.expansion.suites import ROBUSTNESS_KEY
from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation.watch import Watch, WatchSettings, run_checkpoint
from isaaclab_arena.logs import set_up_console_logging
from isaaclab_arena.tracking.trackers import check_trackers

_TRACKING = "tracking"


@dataclass(frozen=True, kw_only=True)
class WatchOptions(WatchSettings):
    """Evaluate the checkpoints of a training as they appear: TRAINING --eval_jobs_config JOBS [OPTIONS].

    More options are those of `isaaclab-arena run`, such as --device cpu, --nproc_per_node 2, or --cluster ray
    --num_ranks 16 --gpus_per_rank 1.
    """

    training: tyro.conf.Positional[Path]
    """Directory of a training by rsl_rl, LeRobot, GR00T or this package."""
    tracking: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Log the curve to wandb, tensorboard or mlflow as one run, besides the trackers of the job file; may be given
    several times."""


def main(argv: Sequence[str]) -> int:
    """Watch a training, and return the exit code; ConfigError if an option, the training or the job file is wrong."""
    options, others = tyro.cli(
        WatchOptions, args=list(argv), prog="isaaclab-arena watch", return_unknown_args=True, use_underscores=True
    )
    document = documents.read_document(options.eval_jobs_config)
    if not isinstance(document, dict):
        raise ConfigError("holds no jobs", file=str(options.eval_jobs_config))

    # Check everything before the first wait: a mistake must not appear hours later.
    problems = list(wrong_numbers(options))
    if not options.training.is_dir():
        problems.append(Problem(f"'{options.training}' is no directory", key="TRAINING"))
    problems += [
        Problem("is the watch's own", key=name) for name in ("--resume", "--output_base_dir") if name in others
    ]
    # A nice value only reaches child processes of the watch, and Ray's ranks are none.
    ray_address = next((value for word, value in pairwise(others) if word == "--ray_address"), None)
    if options.nice and "--cluster" in others and ray_address != "local":
        wrong = "does not reach the ranks, which are processes of Ray; start Ray itself by: nice -n 10 ray start"
        problems.append(Problem(wrong, key="--nice"))
    listed = document.get("jobs")
    blocks = {"defaults": document.get("defaults"), **{f"jobs[{n}]": job for n, job in enumerate(listed or ())}}
    would = "would let changed episodes choose the best checkpoint, and curves be of arms; watch without it, then run "
    problems += [
        Problem(f"{would}isaaclab-arena robustness with the best", key=f"{where}.{ROBUSTNESS_KEY}")
        for where, block in blocks.items()
        if isinstance(block, dict) and block.get(ROBUSTNESS_KEY) is not None
    ]
    no_arms = "is no option of a watch; run isaaclab-arena robustness with the best checkpoint when it has ended"
    problems += [Problem(no_arms, key=name) for name in ("--robustness", "--robustness_levels") if name in others]
    if options.until is not None and options.last_step is None:
        message = f"must be a step, such as 1000 or iteration=1000, got {options.until!r}"
        problems.append(Problem(message, key="--until"))
    if options.promote is not None and options.bar is None:
        problems.append(Problem("needs --bar, which says what a checkpoint has to reach", key="--promote"))
    named = document.get(_TRACKING) or []
    problems += loading.tracker_problems(options.tracking, key="--tracking")
    problems += loading.tracker_problems(named, key=_TRACKING)
    refuse(problems)
    tracking = (*named, *options.tracking)
    check_trackers(tracking, key="--tracking")

    settings = replace(options, tracking=tracking)
    set_up_console_logging(0)
    jobs = {key: value for key, value in document.items() if key != _TRACKING}
    try:
        return Watch(settings=settings, evaluate=partial(run_checkpoint, settings, jobs, others)).run()
    except KeyboardInterrupt:
        return 130
