"""Makes the files of three suites of LIBERO-PRO from its lists: ``python libero_pro_files.py LIBERO_PRO``.

It runs in LIBERO's interpreter, for a checkout without the files that LIBERO-PRO keeps in its data set. It takes the
first entry of each list, as far as the repository says what is done with it:

- ``libero_goal_temp``: other goals, with LIBERO's own initial states.
- ``libero_spatial_temp``: two objects have changed places.
- ``libero_10_temp``: other words, in the room with the main table.

Initial states of the last two are those of resets.
"""

from __future__ import annotations

import importlib
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np

NUM_STATES = 2
TABLES = ("kitchen_table", "living_room_table", "study_table")
"""What the rooms of ``libero_10`` are called after."""


def listed(checkout: Path, name: str, suite: str) -> dict:
    """Return what a list of LIBERO-PRO says of the tasks of a suite."""
    text = (checkout / "libero_ood" / f"ood_{name}.yaml").read_text(encoding="utf-8")
    return importlib.import_module("yaml").safe_load(text)[suite]


def section(text: str, name: str, content: str) -> str:
    """Return a description with another section, whose closing bracket stands in a line of its own."""
    return re.sub(rf"\(:{name}\n.*?\n  \)", lambda _: f"(:{name}\n    {content}\n  )", text, flags=re.DOTALL)


def with_words(text: str, words: str) -> str:
    """Return a description with other words for the task."""
    return re.sub(r"\(:language [^)]*\)", lambda _: f"(:language {words})", text)


def with_other_goal(text: str, goals: dict) -> str:
    """Return a description with the first of some goals."""
    words, goal = next(iter(goals.items()))
    return section(
        section(with_words(text, words), "goal", goal["goal"]),
        "obj_of_interest",
        "\n    ".join(goal["obj_of_interest"]),
    )


def with_changed_places(text: str, places: dict) -> str:
    """Return a description in which an object and the first that is named for it have changed places."""
    one, (other, *_) = next(iter(places.items()))
    where = dict(re.findall(r"\(On (\w+) (\w+)\)", text.partition("(:goal")[0]))
    for name, place in ((one, where[other]), (other, where[one])):
        text = text.replace(f"(On {name} {where[name]})", f"(On {name} {place})", 1)
    return text


def in_another_room(text: str, words: list) -> str:
    """Return a description with the first of some words, in the room with the main table."""
    for table in TABLES:
        text = text.replace(table, "main_table")
    text = text.replace("main_table - main_table", "main_table - table")
    return with_words(re.sub(r"\(problem \w+\)", "(problem LIBERO_Tabletop_Manipulation)", text), words[0])


SUITES = {
    "libero_goal": ("task", with_other_goal),
    "libero_spatial": ("spatial_relation", with_changed_places),
    "libero_10": ("language", in_another_room),
}
"""The list of each suite, and what is done with an entry."""


def reset_states(bddl: Path) -> np.ndarray:
    """Return the states after some resets. Shape: (num_states, state_dim)."""
    wrapper = importlib.import_module("libero.libero.envs.env_wrapper")
    task = wrapper.ControlEnv(bddl_file_name=str(bddl), use_camera_obs=False, has_offscreen_renderer=False)
    task.seed(0)
    states = []
    for _ in range(NUM_STATES):
        task.reset()
        states.append(task.get_sim_state())
    task.close()
    return np.stack(states)


def main(checkout: Path) -> None:
    """Write the files of the three suites."""
    importlib.import_module("libero_reference").prepare(checkout)
    inside = checkout / "libero" / "libero"
    for suite, (name, changed) in SUITES.items():
        for task, entry in listed(checkout, name, suite).items():
            text = (inside / "bddl_files" / suite / f"{task}.bddl").read_text(encoding="utf-8")
            bddl = inside / "bddl_files" / f"{suite}_temp" / f"{task}.bddl"
            states = inside / "init_files" / f"{suite}_temp" / f"{task}.pruned_init"
            for path in (bddl, states):
                path.parent.mkdir(parents=True, exist_ok=True)
            bddl.write_text(changed(text, entry), encoding="utf-8")
            if changed is with_other_goal:
                shutil.copyfile(inside / "init_files" / suite / states.name, states)
            else:
                states.write_bytes(pickle.dumps(reset_states(bddl), protocol=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
