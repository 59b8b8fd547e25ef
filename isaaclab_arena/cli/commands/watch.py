"""``isaaclab-arena watch``: evaluate the checkpoints of a training as they appear."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import Field

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.loading import tracker_problems
from isaaclab_arena.config.options import Amount, Count, Positive, Share, wrong_numbers
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation.watching.evaluator import Evaluator, robustness_problems
from isaaclab_arena.evaluation.watching.watch import WatchSettings, evaluators, watch
from isaaclab_arena.evaluation.watching.watcher import Watched
from isaaclab_arena.logs import set_up_console_logging
from isaaclab_arena.tracking.trackers import check_trackers

_END = re.compile(r"(?:\w+=)?(\d{1,12})")
_TRACKING = "tracking"


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Evaluate the checkpoints of a training as they appear: TRAINING --eval_jobs_config JOBS [OPTIONS].

    More options are those of `isaaclab-arena run`, such as --device cpu, --nproc_per_node 2, or --cluster ray
    --num_ranks 16 --gpus_per_rank 1.
    """

    training: tyro.conf.Positional[Path]
    """Directory of a training by rsl_rl, LeRobot, GR00T or this package."""
    eval_jobs_config: Path
    """Job file; its policies get each checkpoint in turn."""
    output_dir: Path | None = None
    """Directory of the watch, outputs/watch_<training> by default. Watchers that share it share the work."""
    pattern: str | None = None
    """Glob of the checkpoints below TRAINING, such as "policy_*.onnx"; by default the usual names."""
    every: Count = 1
    """Evaluate only steps that are multiples of this number, and the last checkpoint of a finished training."""
    until: str | None = None
    """End with this step, 1000 or iteration=1000, or earlier with the training. Without it the watch goes on until
    you stop it."""
    once: bool = False
    """End after the checkpoints that exist now."""
    poll_s: Positive = 10.0
    """Time between two looks for checkpoints [s]."""
    quiet_s: Amount = 30.0
    """Time without a change after which a checkpoint counts as complete, if its writer leaves no sign of it [s]."""
    retry_s: Positive = 60.0
    """Time before a failed evaluation is tried again, doubled each time [s]."""
    bar: Share | None = None
    """Success rate that the lower end of a checkpoint's interval must reach, such as 0.9."""
    promote: Path | None = None
    """Directory for copies of the checkpoints that reach the bar, with their comparison."""
    stop_file: Path | None = None
    """End if this file exists. The watch writes it if the bar is reached, for the training to see."""
    tracking: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Log the curve to wandb, tensorboard or mlflow as one run, besides the trackers of the job file; may be given
    several times."""
    nice: Annotated[int, Field(ge=0, le=19)] = 0
    """Niceness of the evaluation compared with the training's processes."""


def main(argv: Sequence[str]) -> int:
    """Watch a training, and return the exit code; ConfigError if an option, the training or the job file is wrong."""
    options, others = tyro.cli(
        WatchOptions, args=list(argv), prog="isaaclab-arena watch", return_unknown_args=True, use_underscores=True
    )
    document = read_document(options.eval_jobs_config)
    if not isinstance(document, dict):
        raise ConfigError("holds no jobs", file=str(options.eval_jobs_config))
    # Check everything before the first wait: a mistake must not appear hours later.
    tracking = _checked(options, others, document)
    set_up_console_logging(0)
    evaluator = Evaluator(
        document={key: value for key, value in document.items() if key != _TRACKING},
        training=options.training,
        pattern=options.pattern,
        options=others,
        nice=options.nice,
        directory=options.eval_jobs_config.parent,
    )
    end = None if options.until is None else _END.fullmatch(options.until)
    same = {name: getattr(options, name) for name in ("training", "pattern", "every", "poll_s", "quiet_s", "retry_s")}
    settings = WatchSettings(
        watched=Watched(until=None if end is None else int(end[1]), **same),
        directory=options.output_dir or Path("outputs") / f"watch_{options.training.resolve().name}",
        once=options.once,
        stop_file=options.stop_file,
        promote=options.promote,
        bar=options.bar,
        tracking=tracking,
    )
    try:
        return watch(settings, *evaluators(evaluator))
    except KeyboardInterrupt:
        return 130


def _checked(options: WatchOptions, others: Sequence[str], document: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse contradictory options, and return the services that show the curve."""
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
    problems += robustness_problems(document)
    no_arms = "is no option of a watch; run isaaclab-arena robustness with the best checkpoint when it has ended"
    problems += [Problem(no_arms, key=name) for name in ("--robustness", "--robustness_levels") if name in others]
    if options.until is not None and _END.fullmatch(options.until) is None:
        message = f"must be a step, such as 1000 or iteration=1000, got {options.until!r}"
        problems.append(Problem(message, key="--until"))
    if options.promote is not None and options.bar is None:
        problems.append(Problem("needs --bar, which says what a checkpoint has to reach", key="--promote"))
    named = document.get(_TRACKING) or []
    problems += tracker_problems(options.tracking, key="--tracking") + tracker_problems(named, key=_TRACKING)
    refuse(problems)
    tracking = (*named, *options.tracking)
    check_trackers(tracking, key="--tracking")
    return tracking
