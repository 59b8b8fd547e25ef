"""What is said to be ready is loaded while another process writes, replaces and removes it."""

import json
import multiprocessing
import pickle
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from isaaclab_arena.checkpoints import Readiness
from tests.checkpoints.written import FAMILIES, PATHS, weights

NUM_PLACES = 3
LONG_S = 3_600.0
UNLOADABLE = (OSError, ValueError, RuntimeError, KeyError, EOFError, pickle.UnpicklingError, SafetensorError)
"""What a file that changes meanwhile raises; `SafetensorError` is only an `Exception`."""


def remove(place: Path) -> None:
    """Remove a checkpoint in one moment, as a file goes: what is half removed says nothing of how it was written."""
    if place.exists():
        gone = place.with_name(f"gone_{place.name}")
        place.rename(gone)
        shutil.rmtree(gone)


def write_in_pieces(path: Path, content: bytes, chance: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        for begin in range(0, len(content), 1 + len(content) // 4):
            file.write(content[begin : begin + 1 + len(content) // 4])
            time.sleep(chance.choice((0.0, 0.001)))


def tear(directory: Path, family: str, num_writes: int) -> None:
    """Write checkpoints in pieces, over those before or anew; leave them whole or cut off, or remove them."""
    chance = random.Random(family)
    for number in range(num_writes):
        place, files = directory / str(number % NUM_PLACES), FAMILIES[family](number)
        # Only a single file is written over: whoever writes several makes a new directory.
        if len(files) > 1 or chance.random() < 0.5:
            remove(place)
        names, end = list(files), chance.choice(("whole", "cut off", "removed"))
        torn = chance.randrange(len(names)) if end == "cut off" else len(names)
        for name in names[:torn]:
            write_in_pieces(place / name, files[name], chance)
        for name in names[torn : torn + 1]:
            write_in_pieces(place / name, files[name][: chance.randrange(len(files[name]))], chance)
        time.sleep(chance.uniform(0.0, 0.01))
        if end == "removed":
            remove(place)


def load(path: Path) -> tuple[int, list[torch.Tensor]]:
    """Load a checkpoint as policies do; return the number of the write that it says, and its weights."""
    if path.is_file():
        content = torch.load(path, map_location="cpu", weights_only=True)
        return content["iter"], [content["weights"]]
    number = json.loads((path / "config.json").read_text())["seed"]
    index = path / "model.safetensors.index.json"
    names = {*json.loads(index.read_text())["weight_map"].values()} if index.exists() else {"model.safetensors"}
    return number, [tensor for name in sorted(names) for tensor in load_file(path / name).values()]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_thousand_torn_writes_none_is_loaded(tmp_path, family):
    """Where a checkpoint looks after loading as it did before, it was loaded whole; else a watch evaluates it anew."""
    writer = multiprocessing.get_context("spawn").Process(target=tear, args=(tmp_path, family, 334), daemon=True)
    writer.start()
    readiness, came, loaded = Readiness(LONG_S), Counter[str](), set[int]()
    paths = [tmp_path / str(place) / PATHS[FAMILIES[family]] for place in range(NUM_PLACES)]
    while writer.is_alive():
        for path in paths:
            if readiness.why_not(path) is not None:
                came["waits"] += 1
                continue
            before = readiness.fingerprint(path)
            try:
                number, tensors = load(path)
                is_whole = all(torch.equal(tensor, weights(number)) for tensor in tensors)
            except UNLOADABLE:
                number, is_whole = -1, False
            readiness.why_not(path)
            if readiness.fingerprint(path) != before:
                came["changed meanwhile"] += 1
                continue
            came["whole" if is_whole else "torn"] += 1
            loaded.add(number)
    assert writer.exitcode == 0
    assert came["torn"] == 0
    assert came["waits"] > 0
    assert len(loaded) > 20
