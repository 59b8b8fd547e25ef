"""The checkpoints of a training run: written, read, exported, and the best kept."""

import contextlib
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem, StorageError, first_line
from isaaclab_arena.models.rsl_rl_checkpoint import read_checkpoint
from isaaclab_arena.models.run_directory import BEST_FILE, model_path, numbered_checkpoints
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.storage.atomic import storage_errors, write_bytes, write_text, written_in_place
from isaaclab_arena.storage.contents import content_hash
from isaaclab_arena.training.closed_loop import EvaluatedJob

# Reads and writes the checkpoints of a training run: rsl_rl's files, each beside the state that ranks resume from.

_LOG = logging.getLogger(__name__)
_KEYS = ("actor_state_dict", "iter")


def state_path(directory: Path, iterations: int) -> Path:
    """Return the file beside a checkpoint that holds generators and environments of all ranks."""
    return directory / f"state_{iterations}.pt"


def write_checkpoint(
    directory: Path,
    learned: Mapping[str, Any],
    rank_states: list[bytes],
    *,
    iterations: int,
    kept: int,
    stays: Callable[[int], bool] = lambda _: False,
) -> Path:
    """Write a checkpoint, complete or not at all, and remove older ones.

    Args:
        directory: Directory of the training run.
        learned: What rsl_rl saves, with ``iter`` and ``infos``.
        rank_states: What each rank goes on from, from `packed`, by rank.
        iterations: Iterations done.
        kept: How many checkpoints stay, the newest ones.
        stays: Whether an older one stays all the same, by its iterations: as a policy, without what ranks go on from.

    Raises:
        StorageError: If it cannot be written.
    """
    path = model_path(directory, iterations)
    states = {
        str(rank): torch.frombuffer(bytearray(state), dtype=torch.uint8) for rank, state in enumerate(rank_states)
    }
    # The model comes last: where there is one, there is what belongs to it.
    write_bytes(state_path(directory, iterations), packed(states), overwrite=True)
    write_bytes(path, packed(learned), overwrite=True)
    found = numbered_checkpoints(directory)
    with storage_errors("remove", directory):
        for older in list(found)[:-kept]:
            if not stays(older):
                found[older].unlink(missing_ok=True)
            state_path(directory, older).unlink(missing_ok=True)
    return path


def read_learned(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, loaded without running any code of it.

    Raises:
        ConfigError: If it is none from which training can go on, or is damaged.
        StorageError: If the system cannot read it.
    """
    with storage_errors("read", path):
        path.stat()
    wrong = not_a_plain_file(path)
    if wrong is not None:
        raise ConfigError(Problem(wrong, file=str(path)))
    content = read_checkpoint(path)
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ConfigError(Problem(f"is no checkpoint of rsl_rl: it has no {' and no '.join(missing)}", file=str(path)))
    return dict(content)


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """A checkpoint that all ranks go on from.

    Attributes:
        iterations: Iterations that it has done.
        learned: What it holds, the same on all ranks.
        rank_state: What this rank alone goes on from; None on all ranks if one of them has none.
    """

    iterations: int
    learned: dict[str, Any]
    rank_state: dict[str, Any] | None


def read_together(directory: Path, ranks: Ranks) -> TakenUp:
    """Read the newest whole checkpoint of a run; rank 0 looks for it, and every rank reads that one or none does.

    Raises:
        ConfigError: If a rank finds another content under its name than rank 0 does.
        StorageError: If there is none, or a rank cannot read it.
        PeerStoppedError: If another rank cannot.
        DistributedError: If a rank does not answer.
    """
    context = ranks.context
    newest = newest_readable(directory) if context.is_rank_zero else None
    named = agreed_checkpoint(
        ranks,
        "" if newest is None else str(newest[0]),
        lambda number: (model_path(directory, int(number)), state_path(directory, int(number))),
    )
    iterations = int(named)
    learned = newest[1] if newest else read_learned(model_path(directory, iterations))
    state = read_rank_state(directory, iterations=iterations, rank=context.rank, world_size=context.world_size)
    # A rank that begins new episodes while others go on with theirs would make another training than was asked for.
    all_have_one = all(ranks.gather("state to go on from", "" if state is None else "there"))
    return TakenUp(iterations=iterations, learned=learned, rank_state=state if all_have_one else None)


def agreed_checkpoint(ranks: Ranks, chosen: str, files: Callable[[str], Sequence[Path]]) -> str:
    """Return the checkpoint that rank 0 has chosen, once every rank has seen the same content under that name.

    Ranks that each chose for themselves could go on from different ones: a disk may fail on one node only, or show it a
    new file late.

    Args:
        ranks: All ranks. Asked once in a run.
        chosen: Its name, on rank 0; empty if there is none to go on from.
        files: Returns the files of a checkpoint from its name.

    Raises:
        ConfigError: If a rank finds another content than rank 0 does.
        StorageError: If this rank cannot read it.
        PeerStoppedError: If another rank cannot.
        DistributedError: If a rank does not answer.
    """
    name = ranks.share_from_rank_zero("checkpoint to go on from", chosen)
    hashes = {path.name: content_hash(path) for path in files(name)} if name else {}
    ranks.agree_on("files of the checkpoint", hashes, way_out="the disk has to show all of them the same files")
    return name


def newest_readable(directory: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint of a run that is whole, and the iterations it has done.

    Raises:
        StorageError: If none is whole, or the system cannot read one: whether that is whole is not known, and going on
            from an older one would in time remove it.
    """
    found = numbered_checkpoints(directory)
    for iterations, path in reversed(found.items()):
        try:
            return iterations, read_learned(path)
        except ConfigError as error:
            _LOG.warning("%s; an older one is taken, if there is one", error)
    raise StorageError(f"none of the {len(found)} checkpoints in {directory} can be read")


def read_rank_state(directory: Path, *, iterations: int, rank: int, world_size: int) -> dict[str, Any] | None:
    """Return what a rank goes on from, None where that was not kept, is damaged, or is of another number of ranks.

    Raises:
        StorageError: If the system cannot read it.
    """
    path = state_path(directory, iterations)
    if not path.is_file():
        return None
    try:
        states = read_checkpoint(path)
        if len(states) != world_size:
            return None
        return unpacked(states[str(rank)].numpy().tobytes())
    except (ConfigError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        _LOG.warning("%s is damaged (%s)", path, first_line(error))
        return None


def packed(state: Mapping[str, Any]) -> bytes:
    """Return tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


# Exports the learned policy to files that other programs load: TorchScript and ONNX.

DIRECTORY = "exported"
_OPSET = 18


def export_policy(algorithm: Any, run_directory: Path) -> list[Path]:
    """Write ``exported/policy.pt`` and ``exported/policy.onnx``, and return what could be written.

    They hold the deterministic policy with its normaliser. What a network cannot be exported to is said in the log.

    Args:
        algorithm: rsl_rl's algorithm.
        run_directory: Directory of the training run.

    Raises:
        StorageError: If a file cannot be written.
    """
    policy = algorithm.get_policy()
    written = []
    for name, write in (("policy.pt", _write_torchscript), ("policy.onnx", _write_onnx)):
        path = run_directory / DIRECTORY / name
        try:
            with written_in_place(path, overwrite=True) as temporary:
                write(policy, temporary)
        except (NotImplementedError, RuntimeError, ImportError, AttributeError) as error:
            _LOG.warning("the policy is not exported as %s: %s", name, first_line(error))
        else:
            written.append(path)
    return written


def _write_torchscript(policy: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(policy.as_jit().to("cpu")).save(str(path))


def _write_onnx(policy: Any, path: Path) -> None:
    exported = policy.as_onnx(verbose=False).to("cpu").eval()
    # The exporter warns of each operator of torchvision, which nothing here needs.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            exported,
            exported.get_dummy_inputs(),
            str(path),
            input_names=exported.input_names,
            output_names=exported.output_names,
            opset_version=_OPSET,
            external_data=False,
            verbose=False,
        )


# Keeps the checkpoint of a training run that its evaluations call the best.

_SCORE = "model_best.json"


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a checkpoint is: the larger, the better, success first.

    Attributes:
        success_rate: Share of evaluation episodes that succeeded; -1 where success is not measured.
        merit: What tells equals apart. Where success is measured, the mean reward of a control step, because success
            may end an episode, and then the sooner, the smaller the sum; elsewhere the mean sum of rewards.
        iterations: Iterations done.
        evaluation: Hash of the jobs that it was evaluated with; scores of other jobs are not compared.
    """

    success_rate: float
    merit: float
    iterations: int
    evaluation: str

    def is_better_than(self, other: "Score | None") -> bool:
        """Whether this is better than another one, or than none, or the first of its evaluation."""
        if other is None or other.evaluation != self.evaluation:
            return True
        return (self.success_rate, self.merit) > (other.success_rate, other.merit)


def score_of(jobs: Iterable[EvaluatedJob], iterations: int, *, evaluation: str) -> Score | None:
    """Return how good a checkpoint is, None where no episode says.

    Args:
        jobs: What came of its evaluation; each counts alike.
        iterations: Iterations done.
        evaluation: Hash of the jobs.
    """
    judged = [(job, job.mean_return, job.mean_length) for job in jobs if job.mean_return is not None]
    if not judged:
        return None
    rates = [-1.0 if job.success_rate is None else job.success_rate for job, _, _ in judged]
    merits = [total if job.success_rate is None or not length else total / length for job, total, length in judged]
    return Score(
        success_rate=sum(rates) / len(rates),
        merit=sum(merits) / len(merits),
        iterations=iterations,
        evaluation=evaluation,
    )


def keep_best(directory: Path, score: Score) -> bool:
    """Keep a checkpoint as the best one if it is better than the best so far; return whether it is.

    Args:
        directory: Directory of the training run, which holds the checkpoint.
        score: How good it is.

    Raises:
        StorageError: If it cannot be written.
    """
    before = best_score(directory)
    if not score.is_better_than(before):
        return False
    if before is not None and before.evaluation != score.evaluation:
        _LOG.warning(
            "the best checkpoint so far, of iteration %d, was evaluated with other jobs; it is replaced",
            before.iterations,
        )
    with written_in_place(directory / BEST_FILE, overwrite=True) as temporary:
        shutil.copyfile(model_path(directory, score.iterations), temporary)
    write_text(directory / _SCORE, json.dumps(vars(score), indent=2) + "\n", overwrite=True)
    return True


def best_score(directory: Path) -> Score | None:
    """Return how good the best checkpoint so far is, None where there is none or nothing legible says.

    Raises:
        StorageError: If the file cannot be read.
    """
    path = directory / _SCORE
    if not path.is_file():
        return None
    with storage_errors("read", path):
        text = path.read_text(encoding="utf-8")
    try:
        return Score(**json.loads(text))
    except (ValueError, TypeError):
        _LOG.warning("%s is damaged; the next evaluation replaces it", path)
        return None
