"""Checkpoints of a training: their names and steps, and whether their files are complete, without loading them."""

import filecmp
import hashlib
import itertools
import json
import math
import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.paths import not_a_plain_file


def is_torch_archive(file: Path) -> bool:
    """True if a file begins as a ZIP archive, like those of ``torch.save`` since torch 1.6."""
    with file.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def wrong_with_torch_archive(file: Path) -> str | None:
    """Return the reason why an archive of ``torch.save`` is not complete, None if it is."""
    # An archive ends with its list of contents. A truncated or growing one has no such list.
    if (wrong := not_a_plain_file(file)) is not None:
        return wrong
    try:
        with zipfile.ZipFile(file) as archive:
            ends = [each.header_offset + each.compress_size for each in archive.infolist()]
            if any(end > archive.start_dir for end in ends):
                return "is damaged: it holds less than it lists"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "is not complete: its list of contents is missing"
    return None if ends else "is damaged: it holds nothing"


def wrong_with_weights(directory: Path) -> str | None:
    """Return the problem of the safetensors files of a directory, None if all are present and complete."""
    files = sorted(directory.glob("*.safetensors"))
    for file in files:
        wrong = wrong_with_safetensors(file)
        if wrong is not None:
            return f"{file.name} {wrong}"

    # An index names the file of each weight.
    present = {file.name for file in files}
    for index in sorted(directory.glob("*.safetensors.index.json")):
        wrong = not_a_plain_file(index)
        if wrong is not None:
            return f"{index.name} {wrong}"
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
            absent = sorted(named - present)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{index.name} says of no weight which file holds it"
        if absent:
            return f"{index.name} names {absent[0]}, which is not there"
    return None


def wrong_with_safetensors(file: Path) -> str | None:
    """Return the reason why a file is not a complete safetensors file, None if it is one."""
    if (wrong := not_a_plain_file(file)) is not None:
        return wrong
    # To open a file reads its header alone, and compares that with the number of bytes behind it.
    try:
        with safe_open(file, "np"):
            return None
    except OSError as error:
        return f"cannot be read: {error}"
    except SafetensorError as error:
        return f"is damaged: {error}"


@dataclass(frozen=True, kw_only=True)
class Look:
    """The state of a checkpoint's files at one moment."""

    missing: str | None  # the reason why it is not complete, for people; None if it may be
    # True if the writer is certainly done: by the list at the end of an archive, or by a file that is written last.
    # Otherwise only time can show it.
    is_finished: bool
    # Hash of the name, size, time of change and inode of each file, empty without files. A reader between two looks
    # with the same fingerprint has read one checkpoint.
    fingerprint: str


def look_at(path: Path) -> Look:
    """Return the state of a checkpoint's files, which may change meanwhile. Weights are not read."""
    before = _fingerprint(path)
    missing, is_finished = "there is no such file", False
    try:
        if not before:
            pass
        elif path.is_dir():
            missing, is_finished = _judged_directory(path)
        elif (missing := not_a_plain_file(path)) is None and is_torch_archive(path):
            missing, is_finished = wrong_with_torch_archive(path), True
        elif missing is None and not path.stat().st_size:
            # Other formats do not mark their end.
            missing = "it is empty"
    except OSError as error:
        missing, is_finished = f"it cannot be read: {error.strerror}", False
    if missing is None and _fingerprint(path) != before:
        missing = "it is being written"
    return Look(missing=missing, is_finished=is_finished and missing is None, fingerprint=before)


def _judged_directory(directory: Path) -> tuple[str | None, bool]:
    """Return the reason why a directory is not complete, and True if its writer is certainly done."""
    wrong = wrong_with_weights(directory)
    if wrong is not None:
        return wrong, False
    for document in sorted(directory.glob("*.json")):
        try:
            json.loads(document.read_bytes())
        except ValueError:
            return f"{document.name} is no JSON yet", False
    archives = [path for path in sorted(directory.glob("*.pt")) if is_torch_archive(path)]
    for archive in archives:
        wrong = wrong_with_torch_archive(archive)
        if wrong is not None:
            return f"{archive.name} {wrong}", False
    if not archives and not any(directory.glob("*.safetensors")):
        return "it holds no weights", False

    # The last thing that LeRobot writes, and that transformers' Trainer writes.
    if directory.name == "pretrained_model":
        return None, (directory.parent / "training_state").is_dir()
    return None, (directory / "trainer_state.json").is_file()


def _fingerprint(path: Path) -> str:
    """Return the fingerprint of a file or of a directory with all entries below it; see `Look`."""
    below = (Path(top, name) for top, directories, files in os.walk(path) for name in (*directories, *files))
    stats = []
    for each in itertools.chain([path], below):
        # Entries that are removed meanwhile are skipped.
        with suppress(OSError):
            found = each.stat()
            stats.append((each.relative_to(path).as_posix(), found.st_size, found.st_mtime_ns, found.st_ino))
    return hashlib.sha256(repr(sorted(stats)).encode()).hexdigest() if stats else ""


@dataclass(eq=False)
class Readiness:
    """Remembers earlier looks at checkpoints, because some formats show only by time that they are complete."""

    # A checkpoint whose writer leaves no sign is complete if its files have not changed for this time [s].
    quiet_s: float
    _: KW_ONLY
    now: Callable[[], float] = time.monotonic
    _since: dict[Path, tuple[Look, float]] = field(default_factory=dict, init=False)

    def why_not(self, path: Path) -> str | None:
        """Return the reason why a checkpoint cannot be loaded yet, None if it can."""
        look, now = look_at(path), self.now()
        before, since = self._since.get(path, (None, now))
        if before is None or before.fingerprint != look.fingerprint:
            since = now
        self._since[path] = (look, since)
        if look.missing is not None:
            return look.missing
        if look.is_finished or now - since >= self.quiet_s:
            return None
        return f"it has not changed for {now - since:.0f} s of {self.quiet_s:.0f} s"

    def fingerprint(self, path: Path) -> str:
        """Return the fingerprint of the last look at a checkpoint; see `Look`."""
        return self._since[path][0].fingerprint


# Find the checkpoints of a training by their names, and choose one of them.

_OF_RSL_RL = ("model_*.pt", re.compile(r"model_(\d{1,12})\.pt"))
_NAMES = (
    # rsl_rl, Isaac Lab, mjlab and this package.
    _OF_RSL_RL,
    # LeRobot, in the directory of the training or in its `checkpoints`.
    ("checkpoints/*/pretrained_model", re.compile(r"checkpoints/(\d{1,12})/pretrained_model")),
    ("*/pretrained_model", re.compile(r"(\d{1,12})/pretrained_model")),
    # GR00T, and all other trainings by transformers' Trainer.
    ("checkpoint-*", re.compile(r"checkpoint-(\d{1,12})")),
)

BEST_FILE, SCORE_FILE = "model_best.pt", "model_best.json"
"""This package's copy of a training's best checkpoint, and its score with its step."""

BEST_RULE = "highest success rate, then highest reward per step, then earliest"
"""The order by which trainings and watches choose the best checkpoint, in words."""

BEST, LATEST = "best", "latest"


def model_path(directory: Path, iterations: int) -> Path:
    """Return the checkpoint after `iterations`; rsl_rl's own ``load`` continues with the next iteration."""
    return directory / f"model_{iterations}.pt"


@dataclass(frozen=True, kw_only=True, order=True)
class Checkpoint:
    """A checkpoint of a training, complete or not."""

    step: int  # iterations or optimizer steps done, by its name
    path: Path  # the file or directory that a policy loads


def find_checkpoints(directory: Path, pattern: str | None = None) -> tuple[Checkpoint, ...]:
    """Return a training's checkpoints by step, complete or not; `pattern` is a glob below the directory."""
    # The step is the last number in the part that the pattern's wildcards match. None: the names of rsl_rl, LeRobot and
    # transformers.
    if pattern is not None:
        return _named(directory, pattern, None)
    return next(filter(None, (_named(directory, names, spelling) for names, spelling in _NAMES)), ())


def numbered_checkpoints(directory: Path) -> dict[int, Path]:
    """Return the checkpoints of a training by rsl_rl by the iterations done, the newest last."""
    return {each.step: each.path for each in _named(directory, *_OF_RSL_RL)}


def _named(directory: Path, names: str, spelling: re.Pattern[str] | None) -> tuple[Checkpoint, ...]:
    # Entries may disappear during a search; it is repeated, and finds none if they keep disappearing.
    paths: list[Path] = []
    for _ in range(5):
        with suppress(FileNotFoundError):
            paths = list(directory.glob(names))
            break
    wild = [any(sign in part for sign in "*?[") for part in Path(names).parts]
    checkpoints: list[Checkpoint] = []
    for path in paths:
        parts = path.relative_to(directory).parts
        if spelling is not None:
            match = spelling.fullmatch("/".join(parts))
        else:
            matched = [part for part, is_wild in zip(parts, wild, strict=False) if is_wild]
            if len(parts) != len(wild) or not matched:
                # With ``**`` the parts that the wildcards match are unknown; take all from the first wildcard on.
                matched = parts[wild.index(True) if True in wild else 0 :]
            match = re.search(r"(\d{1,12})(?!.*\d)", "/".join(matched))
        if match is not None:
            checkpoints.append(Checkpoint(step=int(match[1]), path=path))

    # Of two with one step, such as ``model_7.pt`` and ``model_007.pt``, the first counts.
    by_step: dict[int, Checkpoint] = {}
    for checkpoint in sorted(checkpoints):
        by_step.setdefault(checkpoint.step, checkpoint)
    return tuple(by_step.values())


def checkpoint_file(path: str, choice: int | str | None) -> Path:
    """Return a file, or the checkpoint chosen in a directory; ConfigError, with ``key``, if there is none."""
    # ``choice`` is ``best``, ``latest`` or an iteration; None for the best if there is one, otherwise the latest.
    file = Path(path)
    if file.is_dir():
        file = _chosen(file, choice)
    elif not file.exists():
        raise ConfigError(f"'{path}' does not exist, and is looked for in the working directory", key="checkpoint_path")
    elif choice is not None:
        message = f"'{path}' is a file already; leave this out, or name its directory as checkpoint_path"
        raise ConfigError(message, key="checkpoint")
    if (wrong := not_a_plain_file(file)) is not None:
        raise ConfigError(f"'{file}': {wrong}", key="checkpoint_path")
    return file


def _chosen(directory: Path, choice: int | str | None) -> Path:
    numbered = numbered_checkpoints(directory)
    known = ", ".join(map(str, numbered)) or "none"
    best = directory / BEST_FILE
    if choice == BEST or (choice is None and best.is_file()):
        if not best.is_file():
            message = f"there is no {BEST_FILE} in '{directory}'; its checkpoints are {known}"
            raise ConfigError(message, key="checkpoint")
        return best
    # Without a best checkpoint, None means the latest.
    if choice in {None, LATEST}:
        if not numbered:
            runs = sorted(run.name for run in directory.iterdir() if run.is_dir() and any(run.glob("model_*.pt")))
            exported = sorted(file.name for file in directory.iterdir() if file.suffix in {".pt", ".onnx"})
            message = f"'{directory}' holds no model_<iteration>.pt"
            if runs:
                message += f" but {len(runs)} trainings; name one of them, such as {runs[-1]}"
            elif exported:
                message += f"; name a file of it: {', '.join(exported)}"
            raise ConfigError(message, key="checkpoint_path")
        return numbered[max(numbered)]
    if isinstance(choice, bool) or not str(choice).isdecimal():
        raise ConfigError(f"must be {BEST}, {LATEST} or the number of an iteration, got {choice!r}", key="checkpoint")
    if int(choice or 0) not in numbered:
        message = f"there is no model_{choice}.pt in '{directory}'; its checkpoints are {known}"
        raise ConfigError(message, key="checkpoint")
    return numbered[int(choice or 0)]


# Find the last checkpoint of a training, and the one that it names as its best, by its own files.


def last_checkpoint(found: Sequence[Checkpoint], until: int | None = None) -> Checkpoint | None:
    """Return the final checkpoint of a training, None as long as no file shows that it is there."""
    # `until` is the step to wait for, None for none; it replaces rsl_rl's unknown number of iterations.
    if not found:
        return None
    newest = found[-1]
    if re.fullmatch(r"model_\d+\.pt", newest.path.name) is None:
        # LeRobot and transformers write the number of steps beside each checkpoint.
        counts = (("train_config.json", "steps"), ("trainer_state.json", "max_steps"))
        ends = [_document(newest.path / name).get(key) for name, key in counts]
        return newest if any(type(end) is int and 0 < end <= newest.step for end in ends) else None

    # rsl_rl counts iterations from 0: after 1,000 of them its last checkpoint is `model_999.pt`. This package writes
    # `model_1000.pt`.
    settings, steps = newest.path.parent / "params", [each.step for each in found]
    numbers: list[int | None] = []
    for key in ("max_iterations", "save_interval"):
        # Each is a positive number in a line of its own, once; Python objects stand beside it.
        file, values = settings / "agent.yaml", list[str]()
        with suppress(OSError, ValueError):
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            values = re.findall(rf"^{key}: ([1-9]\d{{0,11}})\s*$", text, re.MULTILINE)
        numbers.append(int(values[0]) if len(values) == 1 else None)
    iterations, interval = numbers
    if (settings / "train.yaml").is_file():
        is_last = iterations is not None and newest.step >= iterations
    elif interval is None or iterations is None:
        usual = math.gcd(*steps[:-1])
        is_last = newest.step + 1 == until and (usual == 0 or newest.step % usual != 0)
    else:
        # A resumed run ends later, and only its last checkpoint is not a multiple of the save interval.
        is_last = (steps[0] == 0 and newest.step + 1 >= iterations) or newest.step % interval != 0
    return newest if is_last else None


def best_of_training(directory: Path) -> tuple[Path, int | None] | None:
    """Return a training's best checkpoint and its step (None if unknown), None if the training names none."""
    # This package copies it to ``model_best.pt``, and writes its step beside it.
    best = directory / BEST_FILE
    if best.exists():
        step = _document(directory / SCORE_FILE).get("iterations")
        if type(step) is not int or step < 0:
            return best, None
        original = model_path(directory, step)
        # A training that is stopped between the two files leaves a score that belongs to another checkpoint.
        is_other = original.is_file() and not filecmp.cmp(original, best, shallow=False)
        return best, None if is_other else step

    # transformers' Trainer names the directory in the state that it saves with every checkpoint.
    found = find_checkpoints(directory)
    state = _document(found[-1].path / "trainer_state.json") if found else {}
    # The path held where the training ran; only its name holds here.
    name = re.split(r"[/\\]", str(state.get("best_model_checkpoint")).rstrip("/\\"))[-1]
    match = re.fullmatch(r"checkpoint-(\d{1,12})", name)
    return None if match is None else (directory / name, int(match[1]))


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
