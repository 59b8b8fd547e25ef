"""Measure the success of the scripted policy in each task, and that of doing nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.environments import build, make_policy, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.interfaces.episode import Outcome

Tasks = tuple[tuple[str, Mapping[str, Any]], ...]

GRASPED = ("cube", "cylinder", "can", "bottle", "mug", "cracker_box")
TASKS: Tasks = (
    ("reach", {}),
    *(("lift_object", {"object": name}) for name in GRASPED),
    *(("pick_and_place", {"object": name}) for name in GRASPED),
    ("open_drawer", {}),
    ("close_drawer", {}),
    ("open_microwave", {}),
    ("press_button", {}),
    *(("push_to_goal", {"object": name}) for name in (*GRASPED, "plate", "bin")),
    ("push_cube", {}),
    ("stack", {}),
    ("pick_by_colour", {}),
    ("sort_two", {}),
)
# Every object is measured once; other action modes and policies with the default object.
DEFAULT_TASKS = tuple((task, options) for task, options in TASKS if options in ({}, {"object": "cube"}))

SO101 = {"embodiment": "so101"}
SO101_DEFAULT_TASKS: Tasks = (
    ("reach", SO101),
    ("lift_object", {"object": "cube", **SO101}),
    ("push_to_goal", {"object": "cube", **SO101}),
    ("press_button", SO101),
)
SO101_TASKS: Tasks = (
    *SO101_DEFAULT_TASKS,
    *(("lift_object", {"object": name, **SO101}) for name in ("cylinder", "can", "bottle", "mug")),
    *(("push_to_goal", {"object": name, **SO101}) for name in ("cylinder", "can")),
    *(("pick_and_place", {"object": name, **SO101}) for name in ("cube", "cylinder", "can")),
    ("stack", SO101),
    ("pick_by_colour", SO101),
)
NOTES = "Rates are the same for any number of environments and threads; CPU time is per episode, with the policy's."


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    # Measure all tasks of the SO-ARM101 instead of every task with the Panda.
    so101: bool = False
    episodes: int = 200  # Episodes per line of the table.
    num_envs: int = 16  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.


def measure(task: str, arguments: Mapping[str, Any], policy_type: str, mode: str, options: Options) -> tuple[str, ...]:
    """Run the episodes of one line of the table, and return its figures."""
    environment = build(task, options.num_envs, num_threads=default_num_threads(), action_mode=mode, **arguments)
    began = time.process_time()
    found = tally(environment, make_policy(policy_type), options.episodes, options.seed)
    cpu_ms = (time.process_time() - began) * 1000 / options.episodes
    environment.close()
    others = (Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ERROR)
    return (
        *found.successes,
        "/".join(str(found.count(outcome)) for outcome in others),
        f"{found.busy / options.episodes:.0f}",
        f"{cpu_ms:.0f}",
    )


def main(options: Options) -> None:
    """Run every task with the scripted policy and some with others, and write the page of the robot."""
    robot = "_so101" if options.so101 else ""
    title = "How often the built-in policies solve the built-in tasks"
    page = Page(f"scripted_success{robot}", title, options, "mujoco", "torch")
    everything, some = (SO101_TASKS, SO101_DEFAULT_TASKS) if options.so101 else (TASKS, DEFAULT_TASKS)
    figures = ("successes", "rate, Wilson 95 %", "failure/timeout/error", "mean steps", "CPU ms")
    table = Table("task", "policy", "action mode", *figures, words=6)
    for policy_type, mode, tasks in (
        ("scripted", "joint_position", everything),
        ("scripted", "ee_delta", some),
        ("zero_action", "joint_position", some),
    ):
        for task, arguments in tasks:
            label = f"{task} ({', '.join(arguments.values())})" if arguments else task
            table.add(label, policy_type, mode, *measure(task, arguments, policy_type, mode, options))
    page.write(NOTES, table)


if __name__ == "__main__":
    run(main, Options)
