"""The checkpoints of a training run: written, read, exported, the best kept, and the one that it begins with."""

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
from torch import nn

from isaaclab_arena import models
from isaaclab_arena.checkpoints import BEST_FILE, SCORE_FILE, model_path, numbered_checkpoints
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem, StorageError, first_line
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.storage import atomic, contents
from isaaclab_arena.training.training_loop import EvaluatedJob

_LOG = logging.getLogger(__name__)


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
    """Write a checkpoint, complete or not at all, and remove older ones; StorageError if that fails."""
    # ``rank_states`` holds each rank's state from `packed`, by rank. The newest ``kept`` checkpoints stay. An older one
    # for which ``stays`` is true stays as a policy, without the ranks' states.
    path = model_path(directory, iterations)
    states = {
        str(rank): torch.frombuffer(bytearray(state), dtype=torch.uint8) for rank, state in enumerate(rank_states)
    }
    # The model comes last: if it exists, its state exists too.
    atomic.write_bytes(state_path(directory, iterations), packed(states), overwrite=True)
    atomic.write_bytes(path, packed(learned), overwrite=True)
    found = numbered_checkpoints(directory)
    with atomic.storage_errors("remove", directory):
        for older in list(found)[:-kept]:
            if not stays(older):
                found[older].unlink(missing_ok=True)
            state_path(directory, older).unlink(missing_ok=True)
    return path


def read_learned(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running its code; ConfigError if unusable or damaged, StorageError if unreadable."""
    with atomic.storage_errors("read", path):
        path.stat()
    if (wrong := not_a_plain_file(path)) is not None:
        raise ConfigError(wrong, file=str(path))
    content = models.read_checkpoint(path)
    if missing := [key for key in ("actor_state_dict", "iter") if key not in content]:
        raise ConfigError(f"is no checkpoint of rsl_rl: it has no {' and no '.join(missing)}", file=str(path))
    return dict(content)


def read_together(directory: Path, ranks: Ranks) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read a run's newest intact checkpoint and this rank's state; ConfigError, StorageError or a rank's error."""
    # The state is None on all ranks if one of them has none. Rank 0 chooses, and every rank reads that checkpoint or
    # none does. A different content on a rank is a ConfigError.
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
    # If one rank began new episodes while others resumed theirs, the training would not be the requested one.
    all_have_one = all(ranks.gather("state to go on from", "" if state is None else "there"))
    return learned, state if all_have_one else None


def agreed_checkpoint(ranks: Ranks, chosen: str, files: Callable[[str], Sequence[Path]]) -> str:
    """Return rank 0's checkpoint name (empty for none), once all ranks see equal files of it; else ConfigError."""
    # Ranks that each chose could take different checkpoints: a disk may fail on one node, or show a new file late. Call
    # this once in a run.
    name = ranks.share_from_rank_zero("checkpoint to go on from", chosen)
    hashes = {path.name: contents.content_hash(path) for path in files(name)} if name else {}
    ranks.agree_on("files of the checkpoint", hashes, way_out="the disk has to show all of them the same files")
    return name


def newest_readable(directory: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest intact checkpoint's iterations and content; StorageError if none is intact."""
    found = numbered_checkpoints(directory)
    for iterations, path in reversed(found.items()):
        # A StorageError passes: an unreadable file may be intact, and a run from an older one would in time remove it.
        try:
            return iterations, read_learned(path)
        except ConfigError as error:
            _LOG.warning("%s; an older one is taken, if there is one", error)
    raise StorageError(f"none of the {len(found)} checkpoints in {directory} can be read")


def read_rank_state(directory: Path, *, iterations: int, rank: int, world_size: int) -> dict[str, Any] | None:
    """Return a rank's state; None if it is missing, damaged or of another world size. StorageError if unreadable."""
    path = state_path(directory, iterations)
    if not path.is_file():
        return None
    try:
        states = models.read_checkpoint(path)
        if len(states) != world_size:
            return None
        return unpacked(states[str(rank)].numpy().tobytes())
    except (ConfigError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        _LOG.warning("%s is damaged (%s)", path, first_line(error))
        return None


def packed(state: Mapping[str, Any]) -> bytes:
    """Serialise tensors and plain values."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Deserialise the result of `packed`."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def export_policy(algorithm: Any, run_directory: Path) -> list[Path]:
    """Write ``exported/policy.pt`` and ``exported/policy.onnx``; return the files that could be written."""
    # The files hold the deterministic policy with its normaliser. The log names the formats that a network does not
    # support. StorageError: a file cannot be written.
    policy = algorithm.get_policy()
    written = []
    for name in ("policy.pt", "policy.onnx"):
        path = run_directory / "exported" / name
        try:
            with (
                atomic.written_in_place(path, overwrite=True) as temporary,
                contextlib.redirect_stdout(io.StringIO()),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                if name == "policy.pt":
                    torch.jit.script(policy.as_jit().to("cpu")).save(str(temporary))
                else:
                    exported = policy.as_onnx(verbose=False).to("cpu").eval()
                    # The exporter warns about each torchvision operator, which this policy does not use.
                    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
                    torch.onnx.export(
                        exported,
                        exported.get_dummy_inputs(),
                        str(temporary),
                        input_names=exported.input_names,
                        output_names=exported.output_names,
                        opset_version=18,
                        external_data=False,
                        verbose=False,
                    )
        except (NotImplementedError, RuntimeError, ImportError, AttributeError) as error:
            _LOG.warning("the policy is not exported as %s: %s", name, first_line(error))
        else:
            written.append(path)
    return written


@dataclass(frozen=True, kw_only=True)
class Score:
    """The quality of a checkpoint: the larger, the better, success first."""

    success_rate: float  # success rate of the evaluation, -1 if not measured
    # The tie-breaker. If success is measured, the mean reward of a control step: success may end an episode, so an
    # early success has a smaller sum. Otherwise the mean sum of rewards.
    merit: float
    iterations: int
    # Hash of the evaluated jobs; scores of different jobs are not compared.
    evaluation: str


def score_of(jobs: Iterable[EvaluatedJob], iterations: int, *, evaluation: str) -> Score | None:
    """Return the score of a checkpoint, None if no episode was evaluated. Each job has the same weight."""
    judged = [(job, job.mean_return, job.mean_length) for job in jobs if job.mean_return is not None]
    # As in a watch, jobs that measure no success do not count beside those that do.
    judged = [each for each in judged if each[0].success_rate is not None] or judged
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
    """Keep a checkpoint as the best if it beats the best so far; True if it does. StorageError if that fails."""
    before = best_score(directory)
    if before is not None and before.evaluation != score.evaluation:
        message = "the best checkpoint so far, of iteration %d, was evaluated with other jobs; it is replaced"
        _LOG.warning(message, before.iterations)
    elif before is not None and not (score.success_rate, score.merit) > (before.success_rate, before.merit):
        return False
    with atomic.written_in_place(directory / BEST_FILE, overwrite=True) as temporary:
        shutil.copyfile(model_path(directory, score.iterations), temporary)
    atomic.write_text(directory / SCORE_FILE, json.dumps(vars(score), indent=2) + "\n", overwrite=True)
    return True


def best_score(directory: Path) -> Score | None:
    """Return the best checkpoint's score, None if missing or damaged; StorageError if the file is unreadable."""
    path = directory / SCORE_FILE
    if not path.is_file():
        return None
    with atomic.storage_errors("read", path):
        text = path.read_text(encoding="utf-8")
    try:
        return Score(**json.loads(text))
    except (ValueError, TypeError):
        _LOG.warning("%s is damaged; the next evaluation replaces it", path)
        return None


# Begin a training with the weights of a checkpoint of this trainer, mjlab or Isaac Lab.

_STD, _LOG_STD = "distribution.std_param", "distribution.log_std_param"
_NORMALIZER, _TOLD_OF_DISTRIBUTION = "obs_normalizer.", "distribution."
_TAKEN = frozenset(
    {
        *("actor_state_dict", "critic_state_dict", "model_state_dict", "student_state_dict", "optimizer_state_dict"),
        *("obs_norm_state_dict", "critic_obs_norm_state_dict", "privileged_obs_norm_state_dict", "iter", "infos"),
    }
)

State = Mapping[str, torch.Tensor]


def networks_of(algorithm: Any) -> dict[str, nn.Module]:
    """Return the networks of an algorithm by their role."""
    found = {role: getattr(algorithm, f"_raw_{role}", getattr(algorithm, role, None)) for role in ("actor", "critic")}
    return {role: network for role, network in found.items() if isinstance(network, nn.Module)}


def begin_with(algorithm: Any, path: Path) -> str:
    """Load a checkpoint's weights and optimiser state, and return them in words; ConfigError if it does not fit."""
    # ConfigError also for a file that is no checkpoint of rsl_rl (>= 2).
    checkpoint = models.read_checkpoint(path)
    # The actor must fit. A critic that does not fit begins anew. So does the optimiser, unless both are Adam and both
    # networks fit. The learning rate stays the configured one.
    networks = networks_of(algorithm)
    taken, anew = ["the actor"], []
    learned = dict(algorithm.save())
    problems, actor = _fitted(models.actor_state(checkpoint, path), networks["actor"], "actor")
    if problems:
        raise ConfigError([Problem(f"its actor {problem}", file=str(path)) for problem in problems])
    learned["actor_state_dict"] = actor
    # The loaded policy is the reference, because training begins with it.
    learned.pop("reference_state_dict", None)

    if "critic" in networks:
        critic = models.critic_state(checkpoint, path)
        problems, fitted = ([], None) if critic is None else _fitted(critic, networks["critic"], "critic")
        if fitted is not None and not problems:
            taken.append("the critic")
            learned["critic_state_dict"] = fitted
        else:
            reason = f"its critic {' and '.join(problems)}" if problems else "the file holds none"
            anew.append(f"the critic begins anew: {reason}")

    moments = None if anew else _moments(algorithm.optimizer, networks, models.moments_by_name(checkpoint))
    if moments is None:
        anew.append("the optimiser begins anew")
    else:
        taken.append("the optimiser")
        learned["optimizer_state_dict"] = {**learned["optimizer_state_dict"], "state": moments}
    algorithm.load(learned, None, strict=True)
    others = sorted(str(key) for key in checkpoint if key not in _TAKEN)
    anew += [f"not taken: {', '.join(others)}"] if others else []
    trained = f" (iteration {checkpoint['iter']})" if isinstance(checkpoint.get("iter"), int) else ""
    return f"training begins with {' and '.join(taken)} of {path}{trained}{'; ' if anew else ''}{', '.join(anew)}"


def _fitted(state: State, network: nn.Module, role: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Return the misfits of a state with a network, and the state in the network's format."""
    wanted = network.state_dict()
    # rsl_rl keeps the standard deviation itself or its logarithm.
    fitted = dict(state)
    if _STD in fitted and _LOG_STD in wanted:
        fitted[_LOG_STD] = fitted.pop(_STD).log()
    elif _LOG_STD in fitted and _STD in wanted:
        fitted[_STD] = fitted.pop(_LOG_STD).exp()

    misfits = []
    has, wants = (any(name.startswith(_NORMALIZER) for name in each) for each in (fitted, wanted))
    if has != wants:
        way_out = f"use agent.{role}.obs_normalization={str(has).lower()}"
        misfits.append(f"has {'a' if has else 'no'} normaliser of observations; {way_out}")

    layers, needed_layers = _layers(fitted), _layers(wanted)
    of_layers: list[str] = []
    if layers and needed_layers:
        hidden, needed_hidden = layers[1:-1], needed_layers[1:-1]
        way_out = f"use agent.{role}.hidden_dims={hidden}"
        compared = (
            (layers[0] != needed_layers[0], f"sees {layers[0]} numbers, and {needed_layers[0]} are shown here"),
            (hidden != needed_hidden, f"has hidden layers of {hidden}, and those here are {needed_hidden}; {way_out}"),
            (layers[-1] != needed_layers[-1], f"gives {layers[-1]} numbers, and {needed_layers[-1]} are needed here"),
        )
        of_layers = [message for is_misfit, message in compared if is_misfit]
    misfits += of_layers

    # A layer's misfit has been reported, and its tensors would only repeat it.
    left_out = (_NORMALIZER, "mlp.", _TOLD_OF_DISTRIBUTION) if of_layers else (_NORMALIZER,)
    shapes, needed = (
        {name: tuple(tensor.shape) for name, tensor in each.items() if not name.startswith(left_out)}
        for each in (fitted, wanted)
    )
    for name in sorted({*shapes, *needed}):
        if shapes.get(name) != needed.get(name):
            there, due = (
                (" x ".join(map(str, each[name])) or "1") if name in each else None for each in (shapes, needed)
            )
            found = f"has no '{name}'" if there is None else f"has '{name}' of {there}"
            misfits.append(f"{found}, and {due or 'none'} is needed")
    normalisers = [name for name in wanted if name in fitted and name not in needed]
    if not of_layers and any(fitted[name].shape != wanted[name].shape for name in normalisers):
        misfits.append("has a normaliser for another number of observations")
    if not all(tensor.isfinite().all() for tensor in fitted.values() if tensor.is_floating_point()):
        misfits.append("holds NaN or infinity")
    return misfits, fitted


def _layers(state: State) -> list[int]:
    """Return a perceptron's layer sizes, from input to output; empty for a network with other parts."""
    if any(not name.startswith((_NORMALIZER, "mlp.", _TOLD_OF_DISTRIBUTION)) for name in state):
        return []
    weights = {name: tensor for name, tensor in state.items() if name.startswith("mlp.") and name.endswith(".weight")}
    if not weights or any(tensor.ndim != 2 or not name.split(".")[1].isdecimal() for name, tensor in weights.items()):
        return []
    ordered = [weights[name] for name in sorted(weights, key=lambda name: int(name.split(".")[1]))]
    return [ordered[0].shape[1], *(weight.shape[0] for weight in ordered)]


def _moments(
    optimizer: torch.optim.Optimizer,
    networks: Mapping[str, nn.Module],
    found: Mapping[tuple[str, str], Mapping[str, Any]],
) -> dict[int, dict[str, torch.Tensor]] | None:
    """Return Adam's state of each parameter by its place in the optimiser, None if it does not fit."""
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return None
    names = {
        id(parameter): (role, name)
        for role, network in networks.items()
        for name, parameter in network.named_parameters()
    }
    moments = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, parameter in enumerate(parameters):
        kept = found.get(names.get(id(parameter), ("", "")))
        if kept is None or kept.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            return None
        for name, value in kept.items():
            tensor = torch.as_tensor(value)
            if tensor.shape != (() if name == "step" else parameter.shape) or not tensor.isfinite().all():
                return None
        moments[place] = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in kept.items()}
    return moments
