"""Train a GR00T model on recorded demonstrations, on one process or as one of many ranks.

python -m isaaclab_arena_gr00t.training.finetune --dataset outputs/demos --output_dir outputs/model
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena_gr00t.training.finetune --dataset … --output_dir …
"""

import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from gr00t import Gr00tError
from gr00t.data.types import KeyStatistics, ModalityConfig, compute_statistics
from gr00t.model import Gr00tSmall, Gr00tSmallProcessor, building, checkpoint

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import Count, Share, wrong_numbers
from isaaclab_arena.distributed import context as this_process
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.distributed.ranks import Ranks, initialise
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation import process, run_start
from isaaclab_arena.logs import log_file
from isaaclab_arena.models import read_checkpoint
from isaaclab_arena.paths import typed_words
from isaaclab_arena.storage import atomic, episodes
from isaaclab_arena.storage.ledger import RunLock
from isaaclab_arena.training import checkpoints, learner
from isaaclab_arena.training import training_loop as loop
from isaaclab_arena.training.config import training_versions
from isaaclab_arena_gr00t import config as policies
from isaaclab_arena_gr00t.observations import RecordedSpaces, Wiring, wired
from isaaclab_arena_gr00t.training import trainer

PROGRAM = "isaaclab_arena_gr00t.training.finetune"
PANDA_CONFIG = Path(__file__).parents[1] / "policy" / "config" / "panda_closedloop.yaml"


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(trainer.TrainingSettings):
    """Train a GR00T model on recorded demonstrations."""

    dataset: tuple[str, ...]
    """Recordings, directories of jobs, or directories of runs; recorded with all observations."""
    output_dir: Path
    """Directory of the training run; missing or empty, or with --resume that of the run."""
    base_model_path: Path | None = None
    """Checkpoint to start with, instead of random weights; an unknown robot is added to it."""
    policy_config_yaml_path: Path = PANDA_CONFIG
    """YAML file of the policy to train, for its cameras, joints and horizon. By default that of the Panda."""
    validation_share: Share = 0.05
    """Held-out share of each job's episodes."""
    save_every: Count = 1000
    """Steps between checkpoints; each also evaluates the loss on the held-out episodes."""
    kept_checkpoints: Count = 3
    """Number of checkpoints to keep."""
    eval_jobs_config: Path | None = None
    """Job file to evaluate checkpoints with, on all ranks; its GR00T policies get the checkpoint as model_path."""
    eval_every: Count | None = None
    """Steps between evaluations, a multiple of --save_every and by default the same. The training also ends with
    one."""
    log_every: Count = 50
    """Steps between lines of the log."""
    include_failures: bool = False
    """Also learn from episodes that did not succeed."""
    resume: bool = False
    """Resume from the newest checkpoint of --output_dir."""
    device: str | None = None
    """Device of the training: cpu, cuda or cuda:<index>. By default each rank's own GPU if there is one."""
    torch_threads: Count = 1
    """Torch threads of this rank."""
    process_group: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend between ranks: auto (NCCL if each rank has its own GPU and it works, else gloo), nccl or gloo."""

    def check(self) -> None:
        """Refuse numbers that make no sense: ConfigError with every problem."""
        problems = wrong_numbers(self)
        if self.eval_every is not None and self.eval_jobs_config is None:
            problems.append(Problem("needs --eval_jobs_config: the jobs to evaluate with", key="--eval_every"))
        if self.eval_every is not None and self.save_every > 0 and self.eval_every % self.save_every:
            message = f"must be a multiple of --save_every {self.save_every}, got {self.eval_every}"
            problems.append(Problem(message, key="--eval_every"))
        refuse(problems)


# Build the model for a training run, with random weights or those of a checkpoint.

LANGUAGE_KEY = "annotation.human.task_description"


def interface_of(config: policies.Gr00tClosedloopPolicyConfig, files: policies.JointFiles) -> policies.ModelInterface:
    """Return the inputs and outputs of a new model; ConfigError if the YAML file leaves them to a checkpoint."""
    problems = []
    if files.policy is None:
        problems.append(Problem("is missing; a new model needs to know its joints", key="policy_joints_config_path"))
    if config.target_image_size[0] != config.target_image_size[1]:
        problems.append(Problem("a new model's pictures are square", key="target_image_size"))
    if problems or files.policy is None:
        raise ConfigError(problems)
    return policies.ModelInterface(
        video_keys=tuple(config.cameras),
        state_keys=tuple(files.policy.state),
        action_keys=tuple(files.policy.action),
        language_keys=(LANGUAGE_KEY,),
        horizon=config.action_horizon,
    )


def wire_recordings(
    demonstrations: Sequence[trainer.Demonstration],
    interface: policies.ModelInterface,
    config: policies.Gr00tClosedloopPolicyConfig,
    files: policies.JointFiles,
    *,
    file: str,
    steps: episodes.RecordedSteps,
) -> Wiring:
    """Locate the model's inputs and outputs in recordings; ConfigError if one lacks them or two differ in layout."""
    found: dict[object, RecordedSpaces] = {}
    for recording in {demonstration.file: demonstration for demonstration in demonstrations}.values():
        found[recording.file] = trainer.recorded_spaces(recording, steps)
    wirings = {path: wired(spaces, interface, config, files, file=file) for path, spaces in found.items()}
    (first, wiring), *others = wirings.items()
    for path, other in others:
        if (other, found[path].action_spec.shape) != (wiring, found[first].action_spec.shape):
            raise ConfigError(f"{first} and {path} hold different robots or cameras", key="--dataset")
    return wiring


def new_model(
    data: trainer.DemonstrationSteps,
    demonstrations: Sequence[trainer.Demonstration],
    interface: policies.ModelInterface,
    config: policies.Gr00tClosedloopPolicyConfig,
    *,
    seed: int,
    sizes: Mapping[str, Any] | None = None,
) -> tuple[Gr00tSmall, Gr00tSmallProcessor]:
    """Return an untrained model and its processor; `sizes` replaces defaults such as ``hidden_size``."""
    return building.build_small_model(
        {config.embodiment_tag: _robot(interface, data)},
        instructions=sorted({demonstration.instruction for demonstration in demonstrations}),
        image_size=config.target_image_size[0],
        seed=seed,
        sizes=sizes,
    )


def _robot(
    interface: policies.ModelInterface, data: trainer.DemonstrationSteps
) -> tuple[dict[str, ModalityConfig], dict[str, dict[str, KeyStatistics]]]:
    """Return the modalities of the demonstrations' robot, and the statistics of its states and actions."""
    steps = {"action": list(range(interface.horizon))}
    keys = {
        "video": interface.video_keys,
        "state": interface.state_keys,
        "action": interface.action_keys,
        "language": interface.language_keys,
    }
    statistics = {
        "state": {key: compute_statistics(values) for key, values in data.states().items()},
        "action": {key: compute_statistics(values) for key, values in data.actions().items()},
    }
    return {name: ModalityConfig(steps.get(name, [0]), list(each)) for name, each in keys.items()}, statistics


# Run one rank's part of a GR00T training, from recordings to checkpoints.

_TRAINING_FILE = "training.json"
STATE_FILE = "training_state.pt"
"""The state in a checkpoint from which training resumes."""
_LOG = logging.getLogger("isaaclab_arena.gr00t")


class TrainingRun:
    """One rank's part of a training run; rank 0 alone writes."""

    evaluation_measure = "success_rate/"

    def __init__(self, options: FinetuneOptions, ranks: Ranks, *, command_line: Sequence[str]) -> None:
        self._options = options
        # ``isaaclab-arena resume`` continues the run with this program and its arguments.
        self._command_line = command_line
        context = self._context = ranks.context
        self._ranks = ranks
        # The settings that must be the same when a run is resumed.
        base = options.base_model_path
        self._asked: dict[str, Any] = {
            **{field.name: getattr(options, field.name) for field in fields(trainer.TrainingSettings)},
            "dataset": list(options.dataset),
            "base_model_path": None if base is None else str(base),
            "policy_config_yaml_path": str(options.policy_config_yaml_path),
            "validation_share": options.validation_share,
            "include_failures": options.include_failures,
            "world_size": context.world_size,
            "torch": torch.__version__,
        }
        self._schedule = loop.Schedule(
            max_steps=options.max_steps,
            save_every=options.save_every,
            evaluate_every=options.eval_every or options.save_every,
        )
        if context.is_rank_zero:
            _check_directory(options, self._asked)

        # Refuse ranks that differ in software, options or data before any of them trains.
        run_start.agree_on_versions(ranks, training_versions())
        same = {**self._asked, "schedule": self._schedule, "--output_dir": options.output_dir}
        # An optimiser's step has other last digits on a CPU than on a GPU, and weights must stay the same bits.
        same |= {"--resume": options.resume, "the kind of device": context.device.type}
        ranks.agree_on("training", {name: str(value) for name, value in same.items()})
        config = policies.read_policy_config(options.policy_config_yaml_path)
        (model, self._processor), data, self._validation = _model_and_demonstrations(options, config)
        contents = {
            "the demonstrations": [data.demonstrations, self._validation.demonstrations],
            "the model's inputs, outputs and their statistics": self._processor.embodiments,
        }
        digests = {name: hashlib.sha256(repr(value).encode()).hexdigest()[:12] for name, value in contents.items()}
        ranks.agree_on("data", digests)

        # The jobs are checked with an untrained checkpoint now, not after hours of training.
        def save_untrained(directory: Path) -> Path:
            checkpoint.save_checkpoint(directory, model, self._processor)
            return directory

        self._evaluation: loop.ClosedLoopEvaluation | None = None
        if options.eval_jobs_config is not None:
            self._evaluation = loop.ClosedLoopEvaluation(
                load_jobs_file(options.eval_jobs_config, suites=SUITES),
                checkpoint_option="model_path",
                policy_type="gr00t_closedloop",
                output_directory=options.output_dir,
                ranks=ranks,
                device=options.device,
            )
            self._evaluation.check(save_untrained)
        self._trainer = trainer.Trainer(model, self._processor, config.embodiment_tag, data, options, context)
        # Losses and time since the last line of the log.
        self._losses: list[float] = []
        self._began = time.perf_counter()
        if context.is_rank_zero:
            _LOG.info(
                "%d demonstrations of %d control steps, %d held out; %.1f million parameters",
                len(data.demonstrations),
                len(data),
                len(self._validation.demonstrations),
                sum(parameter.numel() for parameter in model.parameters()) / 1e6,
            )

    def execute(self) -> int:
        """Write the settings or resume, train to the end, and return the exit code: 0, or 130 or 143 after a signal."""
        # A signal stops all ranks after the same step, with a checkpoint to resume from.
        directory, rank, is_rank_zero = self._options.output_dir, self._context.rank, self._context.is_rank_zero
        with ExitStack() as stack:
            stack.enter_context(log_file(directory / "logs" / f"rank{rank}.log", rank))
            # Rank 0 locks the directory, so that no second training writes into it.
            if is_rank_zero:
                stack.enter_context(RunLock(directory).hold(alone=True))
                kept = self._options.kept_checkpoints
                _LOG.info(
                    "the newest %d checkpoints stay (--kept_checkpoints), older ones go, evaluated ones too", kept
                )
            if self._options.resume:
                # Rank 0 chooses, and all ranks must be able to read the chosen checkpoint.
                newest = _checkpoints(directory)[-1:] if is_rank_zero else []
                chosen = newest[0].name if newest else ""
                name = checkpoints.agreed_checkpoint(self._ranks, chosen, lambda name: [directory / name / STATE_FILE])
                if name:
                    # A checkpoint for evaluation only has no training state.
                    path = directory / name / STATE_FILE
                    if not path.is_file():
                        raise ConfigError(f"{directory / name} holds no {STATE_FILE} to resume from", key="--resume")
                    self._trainer.load_state(dict(read_checkpoint(path)))
                    # No rank may wait in a collective for one that could not read it.
                    self._ranks.gather("state to resume from", "read")
                    _LOG.info("resuming from %s", directory / name)
            elif is_rank_zero:
                began = {"command_line": list(self._command_line), "working_directory": str(Path.cwd())}
                atomic.write_text(directory / _TRAINING_FILE, atomic.json_text({**self._asked, **began}))
            self._check_synchrony()

            after_step = self._trainer.num_steps
            writer = loop.tensorboard(directory / "tensorboard", after_step=after_step) if is_rank_zero else None
            progress = loop.Progress(directory, is_writer=is_rank_zero, after_step=after_step, writer=writer)
            with closing(progress), process.watch_for_interruption() as interruption:
                self._losses, self._began = [], time.perf_counter()
                return loop.run_loop(
                    self, self._schedule, evaluation=self._evaluation, progress=progress, interruption=interruption
                )

    @property
    def num_steps(self) -> int:
        """Optimiser steps done."""
        return self._trainer.num_steps

    def step(self, progress: loop.Progress) -> None:
        """Make one optimiser step; if due, write the measures and the loss on held-out episodes."""
        options = self._options
        self._losses.append(self._trainer.step())
        num_steps = self.num_steps
        is_last = num_steps == options.max_steps
        if num_steps % options.log_every == 0 or is_last:
            steps_per_s = len(self._losses) / (time.perf_counter() - self._began)
            measures = {
                "loss": sum(self._losses) / len(self._losses),
                "learning_rate": trainer.learning_rate_at(num_steps, options),
                "samples_per_s": steps_per_s * options.batch_size * self._context.world_size,
            }
            progress.write(num_steps, measures)
            self._losses, self._began = [], time.perf_counter()

        is_validated = (is_last or num_steps % options.save_every == 0) and len(self._validation) > 0
        if is_validated and self._context.is_rank_zero:
            progress.write(num_steps, {"validation_loss": self._trainer.validation_loss(self._validation)})

    def checkpoint(self, num_steps: int) -> Path:
        """Return the directory of the checkpoint after `num_steps` steps."""
        return self._options.output_dir / f"checkpoint-{num_steps}"

    def _check_synchrony(self) -> None:
        """Refuse ranks that differ in their training state; every rank calls it."""
        if self._context.is_distributed:
            learner.check_synchrony(self._trainer.state())

    def save(self) -> None:
        """Write a checkpoint on rank 0, keep the newest; OutOfSyncError before any file changes if the ranks differ."""
        self._check_synchrony()
        if not self._context.is_rank_zero:
            return
        options, state = self._options, self._trainer.state()
        target = self.checkpoint(self._trainer.num_steps)
        temporary = target.with_name(f".{target.name}.tmp")
        with atomic.storage_errors("write", target):
            # Write beside the target and rename, so that an interruption leaves no partial checkpoint.
            shutil.rmtree(temporary, ignore_errors=True)
            checkpoint.save_checkpoint(temporary, self._trainer.average, self._processor)
            torch.save(state, temporary / STATE_FILE)
            if target.exists():
                shutil.rmtree(target)
            temporary.replace(target)
            for older in _checkpoints(options.output_dir)[: -options.kept_checkpoints]:
                shutil.rmtree(older)
        _LOG.info("wrote %s", target)

    def note_evaluation(
        self, evaluation: loop.ClosedLoopEvaluation, progress: loop.Progress, *, exit_code: int, evaluation_s: float
    ) -> None:
        """Write the success rates of an evaluation."""
        del exit_code, evaluation_s
        rates = {
            f"{self.evaluation_measure}{name}": job.success_rate
            for name, job in evaluation.results(self.num_steps).items()
            if job.success_rate is not None
        }
        progress.write(self._trainer.num_steps, rates)
        # The speed of training leaves out the evaluation.
        self._losses, self._began = [], time.perf_counter()


def _check_directory(options: FinetuneOptions, asked: Mapping[str, Any]) -> None:
    """Refuse a resume with other settings, and a new run in a directory that is not empty."""
    directory = options.output_dir
    path = directory / _TRAINING_FILE
    if options.resume:
        if not path.is_file():
            raise ConfigError(f"'{directory}' holds no {_TRAINING_FILE} to resume from", key="--resume")
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            Problem(f"was {before.get(key)} when the run began, now {value}", file=str(directory), key=key)
            for key, value in asked.items()
            if before.get(key) != value
        ]
        refuse(changed)
    elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        message = f"'{directory}' is not empty; resume with --resume, or name a new directory"
        raise ConfigError(message, key="--output_dir")


def _model_and_demonstrations(
    options: FinetuneOptions, config: policies.Gr00tClosedloopPolicyConfig
) -> tuple[tuple[Gr00tSmall, Gr00tSmallProcessor], trainer.DemonstrationSteps, trainer.DemonstrationSteps]:
    """Return the model before its first step, with its processor, the training data, and the held-out data."""
    steps, files = episodes.RecordedSteps(), policies.read_joint_files(config)
    interface = interface_of(config, files)
    # Several entries of `dataset` (files, patterns, job or run directories) may name the same recording.
    recordings = dict.fromkeys(
        path
        for each in options.dataset
        for files_of_job in episodes.jobs_of(Path(each), key="--dataset")
        for path in files_of_job
    )
    found = trainer.find_demonstrations(recordings, only_successes=not options.include_failures)
    file = str(options.policy_config_yaml_path)
    wiring = wire_recordings(found, interface, config, files, file=file, steps=steps)
    learned, held_out = (
        trainer.DemonstrationSteps([found[index] for index in part], wiring, horizon=interface.horizon, steps=steps)
        for part in trainer.split(found, share=options.validation_share, seed=options.seed)
    )
    if options.base_model_path is None:
        return new_model(learned, found, interface, config, seed=options.seed), learned, held_out

    # A robot that the checkpoint knows keeps the statistics of its states and actions; a new one is added.
    try:
        made = building.add_embodiment(
            checkpoint.load_model(options.base_model_path, device="cpu", dtype=torch.float32),
            checkpoint.load_processor(options.base_model_path),
            config.embodiment_tag,
            *_robot(interface, learned),
            seed=options.seed,
        )
    except Gr00tError as error:
        raise ConfigError(str(error), key="--base_model_path") from error
    return made, learned, held_out


def _checkpoints(output_directory: Path) -> list[Path]:
    """Return the checkpoints of a training run, the newest last."""
    found = {
        int(match[1]): path
        for path in output_directory.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d{1,12})", path.name))
    }
    return [found[number] for number in sorted(found)]


# The program.


def main(argv: Sequence[str] | None = None, *, typed_as: str = f"python -m {PROGRAM}") -> int:
    """Train, and return the exit code: 0, 1 for a failure, 2 for a mistake of the user, 130 or 143 after a signal."""
    arguments = typed_words(argv)
    options = tyro.cli(
        FinetuneOptions,
        prog=typed_as,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    with process.program() as ended:
        this_process.take_rank_of_scheduler()
        options.check()
        context = this_process.DistributedContext.from_environment(device=options.device)
        if context.launched_by_torchrun:
            this_process.die_with_parent()
        set_up_torch(options.torch_threads)
        with initialise(context, process_group=options.process_group) as ranks:
            return TrainingRun(options, ranks, command_line=(PROGRAM, *arguments)).execute()
    return ended.code


if __name__ == "__main__":
    this_process.leave_process_on_error()
    this_process.leave_process(main())
