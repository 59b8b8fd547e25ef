"""A checkpoint counts when it is written whole."""

import json
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import (
    Readiness,
    best_of_training,
    find_checkpoints,
    last_checkpoint,
    look_at,
    wrong_with_safetensors,
)
from tests.checkpoints.written import FAMILIES, PATHS, Files, lerobot, rsl_rl, trainer, write
from tests.evaluation.watching.trainings import save
from tests.models.trainings import trained


@pytest.mark.parametrize("files", FAMILIES.values(), ids=FAMILIES)
def test_a_checkpoint_that_is_whole_shows_that_its_writer_is_done(tmp_path, files):
    write(tmp_path, files(0))
    (checkpoint,) = find_checkpoints(tmp_path)
    look = look_at(checkpoint.path)
    assert (look.missing, look.is_finished) == (None, True)


@pytest.mark.parametrize(
    ("files", "without", "missing"),
    [
        (trainer, "model-00002-of-00002.safetensors", "names model-00002-of-00002.safetensors, which is not there"),
        (trainer, "trainer_state.json", None),
        (lerobot, "training_step.json", None),
        (lerobot, "model.safetensors", "it holds no weights"),
        (rsl_rl, "model_100.pt", "there is no such file"),
    ],
)
def test_a_checkpoint_without_one_of_its_files_is_not_finished(tmp_path, files, without, missing):
    write(tmp_path, {name: content for name, content in files(0).items() if not name.endswith(without)})
    look = look_at(tmp_path / PATHS[files])
    assert not look.is_finished
    assert (look.missing is None) == (missing is None)
    assert missing is None or missing in str(look.missing)


# A checkpoint is loaded whole or not at all, whatever its writer is doing meanwhile.


QUIET_S = 5.0


class Clock:
    """A clock that only the test moves on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def states_of_a_torn_write(directory: Path, files: Files, chance: random.Random) -> Iterator[None]:
    """Yield while a checkpoint is written in pieces, and is then left cut off, incomplete, or deleted."""
    names = list(files)
    torn = chance.randrange(len(names))
    for name in names[:torn]:
        write(directory, {name: files[name]})
        yield
    path, content = directory / names[torn], files[names[torn]]
    path.parent.mkdir(parents=True, exist_ok=True)
    # At most all but one byte, of weights or of a document.
    end = chance.randrange(len(content))
    for begin in range(0, end, 1 + end // 3):
        path.write_bytes(content[:begin])
        yield
    path.write_bytes(content[:end])
    yield
    if chance.random() < 0.3:
        path.unlink()
        yield


def loaded(path: Path) -> Files:
    """Files that a policy would read: all that the training wrote for it."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {each.relative_to(path.parent).as_posix(): each.read_bytes() for each in files}


@pytest.mark.parametrize("family", FAMILIES)
def test_of_sixty_torn_writes_none_is_ready(tmp_path, family):
    """Time passes between two looks, but never as long as a checkpoint without an end has to rest."""
    chance, clock = random.Random(family), Clock()
    for number in range(20):
        directory = tmp_path / str(number % 7)
        shutil.rmtree(directory, ignore_errors=True)
        readiness = Readiness(QUIET_S, now=clock)
        files = FAMILIES[family](number)
        path = directory / PATHS[FAMILIES[family]]
        whole = {name: content for name, content in files.items() if "training_state" not in name}
        for _ in states_of_a_torn_write(directory, files, chance):
            clock.seconds += chance.uniform(0.0, 0.9 * QUIET_S)
            if readiness.why_not(path) is None:
                # What the training writes after all that a policy loads may be torn: LeRobot's state of the training.
                assert [*loaded(path).values()] == [whole[name] for name in sorted(whole)], (family, number)


def test_a_checkpoint_that_is_replaced_between_two_looks_has_another_fingerprint(tmp_path):
    readiness = Readiness(QUIET_S, now=Clock())
    write(tmp_path, lerobot(0))
    path = tmp_path / PATHS[lerobot]
    assert readiness.why_not(path) is None
    before = readiness.fingerprint(path)
    assert look_at(path).fingerprint == look_at(path).fingerprint
    write(tmp_path, lerobot(1))
    assert readiness.why_not(path) is None
    assert readiness.fingerprint(path) != before


def test_a_checkpoint_whose_writer_leaves_no_sign_has_to_rest(tmp_path):
    clock = Clock()
    readiness = Readiness(QUIET_S, now=clock)
    path = tmp_path / "policy_100.onnx"
    path.write_bytes(b"graph")
    assert (look_at(path).missing, look_at(path).is_finished) == (None, False)
    assert "for 0 s" in str(readiness.why_not(path))
    clock.seconds += 4.0
    path.write_bytes(b"graph and more")
    assert "for 0 s" in str(readiness.why_not(path))
    clock.seconds += QUIET_S
    assert readiness.why_not(path) is None
    path.write_bytes(b"")
    assert look_at(path).missing is not None


# A training is over when it says so, whatever its trainer calls the last checkpoint.


TAGGED = "class_name: !!python/name:rsl_rl.runners.OnPolicyRunner ''\n"


def settings(training: Path, max_iterations: int, save_interval: int = 50, *, is_ours: bool = False) -> None:
    (training / "params").mkdir(exist_ok=True)
    text = f"{TAGGED}max_iterations: {max_iterations}\nsave_interval: {save_interval}\n"
    (training / "params" / "agent.yaml").write_text(text)
    if is_ours:
        (training / "params" / "train.yaml").write_text("agent: {}\n")


def last_step(training: Path, until: int | None = None) -> int | None:
    last = last_checkpoint(find_checkpoints(training), until)
    return None if last is None else last.step


@pytest.mark.parametrize(
    ("steps", "max_iterations", "last"),
    [
        ((0, 50, 950), 1000, None),
        ((0, 50, 950, 999), 1000, 999),
        ((0, 50, 999), 2000, 999),
        ((0, 50, 100), 101, 100),
        ((0, 50), 101, None),
        ((500, 550, 1000, 1499), 1000, 1499),
        ((500, 550, 1000), 1000, None),
    ],
    ids=["at work", "over", "cut short", "over at a multiple", "nearly", "gone on from another", "going on"],
)
def test_rsl_rl_ends_with_the_one_checkpoint_that_comes_between_two_others(tmp_path, steps, max_iterations, last):
    save(tmp_path / "go1", *steps)
    settings(tmp_path / "go1", max_iterations)
    assert last_step(tmp_path / "go1") == last


@pytest.mark.parametrize(
    ("steps", "last"), [((0, 100, 200), None), ((0, 100, 250), 250), ((0, 100, 999), 999), ((999,), 999)], ids=str
)
def test_without_settings_only_the_step_that_is_waited_for_says_that_rsl_rl_has_counted_from_0(tmp_path, steps, last):
    save(tmp_path / "go1", *steps)
    assert last_step(tmp_path / "go1", steps[-1] + 1) == last
    assert last_step(tmp_path / "go1", 5000) is None
    assert last_step(tmp_path / "go1") is None


def test_a_training_of_this_package_ends_with_the_number_of_its_iterations(tmp_path):
    training = tmp_path / "go1"
    save(training, 0, 50, 99)
    settings(training, 100, is_ours=True)
    assert last_step(training, 100) is None
    save(training, 100)
    assert last_step(training) == 100
    settings(training, 200, is_ours=True)
    assert last_step(training) is None


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("max_iterations: 100\nsave_interval: 50\n", 99),
        ("max_iterations: 100\nmax_iterations: 50\nsave_interval: 50\n", None),
        ("", None),
        ("max_iterations: [", None),
        ("max_iterations: many", None),
        ("- 3", None),
        ("max_iterations: 0", None),
        (f"max_iterations: {'9' * 5000}", None),
    ],
    ids=["plain", "twice", "empty", "torn", "words", "a list", "none", "too many digits"],
)
def test_settings_that_cannot_be_read_say_nothing(tmp_path, text, last):
    save(tmp_path / "go1", 0, 50, 99)
    settings(tmp_path / "go1", 100)
    (tmp_path / "go1" / "params" / "agent.yaml").write_text(text)
    assert last_step(tmp_path / "go1") == last
    assert last_checkpoint([], 100) is None


@pytest.mark.parametrize(
    ("checkpoint", "file", "key"),
    [
        ("checkpoints/{step:06}/pretrained_model", "train_config.json", "steps"),
        ("checkpoint-{step}", "trainer_state.json", "max_steps"),
    ],
    ids=["LeRobot", "transformers"],
)
def test_others_write_into_each_checkpoint_how_many_steps_there_are(tmp_path, checkpoint, file, key):
    for step in (200, 450):
        assert last_step(tmp_path) is None
        directory = tmp_path / checkpoint.format(step=step)
        directory.mkdir(parents=True)
        (directory / file).write_text(json.dumps({key: 450}))
    assert last_step(tmp_path) == 450


def test_rsl_rl_itself_calls_the_last_of_four_iterations_the_third(tmp_path):
    training = trained(tmp_path / "noise", agent={"max_iterations": 4, "save_interval": 2}, iterations=4).directory
    assert [each.step for each in find_checkpoints(training)] == [0, 2, 3]
    assert last_step(training) == 3


# Checkpoints of a directory, in order of training.


def made(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory


FOUND_BY_NAME = {
    "rsl_rl": (
        ["model_0.pt", "model_50.pt", "model_100.pt"],
        ["model_best.pt", "params/agent.yaml"],
    ),
    "LeRobot's training": (
        ["checkpoints/000200/pretrained_model", "checkpoints/001000/pretrained_model"],
        ["checkpoints/last/pretrained_model", "train_config.json"],
    ),
    "LeRobot's checkpoints": (
        ["000200/pretrained_model", "001000/pretrained_model"],
        ["last/pretrained_model"],
    ),
    "transformers' Trainer": (
        ["checkpoint-9", "checkpoint-10"],
        [".checkpoint-11.tmp", "checkpoint-last"],
    ),
    "none": ([], ["policy.onnx", "events.out"]),
}


@pytest.mark.parametrize(("found", "others"), FOUND_BY_NAME.values(), ids=FOUND_BY_NAME)
def test_checkpoints_are_found_by_the_names_that_trainings_give_them(tmp_path, found, others):
    checkpoints = find_checkpoints(made(tmp_path, *found, *others))
    assert [each.path.relative_to(tmp_path).as_posix() for each in checkpoints] == found
    assert [each.step for each in checkpoints] == sorted(each.step for each in checkpoints)


def test_a_pattern_finds_others_whose_last_number_is_the_step(tmp_path):
    made(tmp_path, "run2/policy_v3_500.onnx", "run2/policy_v3_1000.onnx", "run2/final.onnx")
    found = find_checkpoints(tmp_path, "run2/*.onnx")
    assert [(each.step, each.path.name) for each in found] == [
        (500, "policy_v3_500.onnx"),
        (1000, "policy_v3_1000.onnx"),
    ]


def test_a_number_that_every_checkpoint_has_in_its_path_is_no_step(tmp_path):
    made(tmp_path, "checkpoint-100/v2/policy.onnx", "checkpoint-200/v2/policy.onnx")
    assert [each.step for each in find_checkpoints(tmp_path, "checkpoint-*/v2/policy.onnx")] == [100, 200]
    assert [each.step for each in find_checkpoints(tmp_path, "**/policy.onnx")] == [2]


ARCHIVE, OTHER = (rsl_rl(seed)["model_100.pt"] for seed in (0, 1))


def step_of_best(directory: Path, score: str | None, **numbered: bytes) -> int | None:
    write(directory, {"model_best.pt": ARCHIVE, **{f"{name}.pt": content for name, content in numbered.items()}})
    if score is not None:
        (directory / "model_best.json").write_text(score)
    best = best_of_training(directory)
    assert best is not None
    assert best[0] == directory / "model_best.pt"
    return best[1]


@pytest.mark.parametrize("numbered", [{}, {"model_50": ARCHIVE}], ids=["removed since", "still there"])
def test_the_step_stands_beside_the_copy_of_the_best(tmp_path, numbered):
    assert step_of_best(tmp_path, '{"iterations": 50, "success_rate": 0.9}', **numbered) == 50


@pytest.mark.parametrize("score", [None, "", "[50]", '{"iterations": "50"}', '{"iterations": true}', "{}"])
def test_a_step_that_nobody_says_is_not_made_up(tmp_path, score):
    assert step_of_best(tmp_path, score, model_50=ARCHIVE) is None


def test_a_score_of_another_checkpoint_says_no_step(tmp_path):
    assert step_of_best(tmp_path, '{"iterations": 50}', model_50=OTHER) is None


@pytest.mark.parametrize("named", ["/elsewhere/out/checkpoint-100", "out\\checkpoint-100", "checkpoint-100/"])
def test_transformers_names_the_best_in_the_state_of_its_newest(tmp_path, named):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-200").mkdir()
    (tmp_path / "checkpoint-200" / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": named}))
    assert best_of_training(tmp_path) == (tmp_path / "checkpoint-100", 100)


@pytest.mark.parametrize(
    "state", ["{}", '{"best_model_checkpoint": null}', '{"best_model_checkpoint": "../model"}', "{"]
)
def test_a_training_that_names_none_has_none(tmp_path, state):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(state)
    assert best_of_training(tmp_path) is None
    assert best_of_training(tmp_path / "nowhere") is None


# Files of weights that are cut off or lie about their sizes are named, and nothing of them is loaded.


WHOLE = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}


def safetensors(directory: Path, header: object, num_bytes: int = 32, *, length: int | None = None) -> Path:
    """Write a safetensors file with any header and so many bytes of weights."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = directory / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(num_bytes))
    return file


def with_entry(**changes: object) -> dict:
    return {**WHOLE, "a": {key: value for key, value in {**WHOLE["a"], **changes}.items() if value is not ...}}


def test_a_whole_safetensors_file_is_let_in(tmp_path):
    assert wrong_with_safetensors(safetensors(tmp_path, {"__metadata__": {"format": "pt"}, **WHOLE})) is None
    assert wrong_with_safetensors(safetensors(tmp_path, {}, 0)) is None


@pytest.mark.parametrize(
    ("header", "num_bytes"),
    [
        (WHOLE, 31),
        (WHOLE, 33),
        (with_entry(shape=[2, 4]), 32),
        (with_entry(data_offsets=[0, 20], shape=[5]), 32),
        (with_entry(shape=[-2, -3]), 32),
        (with_entry(shape=[2.0, 3]), 32),
        (with_entry(dtype=...), 32),
        (with_entry(data_offsets=[0]), 32),
        ({"a": 3}, 0),
        ([], 0),
        (b"{", 0),
        (b"[" * 100_000, 0),
    ],
)
def test_a_safetensors_file_whose_header_lies_is_damaged(tmp_path, header, num_bytes):
    assert "is damaged" in str(wrong_with_safetensors(safetensors(tmp_path, header, num_bytes)))


@pytest.mark.parametrize("length", [10**6, 2**63, 2**64 - 1])
def test_a_safetensors_file_shorter_than_its_header_is_damaged(tmp_path, length):
    assert "is damaged" in str(wrong_with_safetensors(safetensors(tmp_path, WHOLE, length=length)))
    (tmp_path / "model.safetensors").write_bytes(b"\1\0\0")
    assert "is damaged" in str(wrong_with_safetensors(tmp_path / "model.safetensors"))


def test_a_safetensors_file_with_a_header_of_more_than_a_hundred_million_bytes_is_not_read(tmp_path):
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", 100_000_001))
        stream.truncate(8 + 100_000_001)
    assert "is damaged: " in str(wrong_with_safetensors(file))
