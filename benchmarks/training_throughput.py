"""Measure control steps per second with learning, beside mjlab: ``python benchmarks/training_throughput.py``.

Usage: python benchmarks/training_throughput.py [--mjlab_python PYTHON] [--rounds 5]

Both train a cartpole with rsl_rl's PPO on a CPU, each in a process of its own, and take turns within one run, so a
ratio is that of neighbours in time. A turn is whole iterations, samples and learning, after a warm-up that compiles
what is compiled. CPU seconds count all threads of a process, and are the figure to quote on a noisy machine.

mjlab needs another MuJoCo and another rsl_rl, so it lives in an environment of its own:

    python -m venv /tmp/mjlab && /tmp/mjlab/bin/pip install torch==2.13.0 && /tmp/mjlab/bin/pip install mjlab==1.6.0
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from training_processes import HERE, RANK, Training, Turn, machine, told

RESULTS = HERE / "results" / "training_throughput.md"
WARM_UP_ITERATIONS = 2
MEASURES = ("per_cpu_s", "samples_per_cpu_s", "per_s")
ONE_THREAD = "1 thread"
AS_TYPED = "as typed"
AS_MJLAB = ("--physics_steps", "5", "agent.actor.obs_normalization=false", "agent.critic.obs_normalization=false")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        mjlab_python: Python of an environment in which mjlab is installed; without it, mjlab is left out.
        num_envs: Cartpoles.
        rounds: Turns of every system.
        iterations: Iterations of a turn; mjlab does a third of them, but at least one.
        output: Where the table goes; by default the committed one.
    """

    mjlab_python: Path | None = None
    num_envs: int = 64
    rounds: int = 5
    iterations: int = 12
    output: Path | None = None


@dataclass(kw_only=True)
class System:
    """Something that trains, and how fast it was."""

    label: str
    training: Training
    iterations: int
    turns: list[Turn] = field(default_factory=list)


def systems(options: Options, threads: str) -> dict[str, System]:
    """Start what is compared."""
    own = [*RANK, "cartpole", "--num_envs", str(options.num_envs)]
    if threads == ONE_THREAD:
        own += ["--num_threads", "1", "--torch_threads", "1"]
    torch_threads = 1 if threads == ONE_THREAD else None
    commands = {"arena": ("this package, its own cartpole", own, options.iterations)}
    commands["as_mjlab"] = ("this package, as mjlab", [*own, *AS_MJLAB], options.iterations)
    if options.mjlab_python is not None:
        program = [str(options.mjlab_python), str(HERE / "training_mjlab.py"), str(options.num_envs)]
        commands["mjlab"] = ("mjlab", program, max(1, options.iterations // 3))
    return {
        name: System(label=label, training=Training(command, torch_threads=torch_threads), iterations=iterations)
        for name, (label, command, iterations) in commands.items()
    }


def measure(options: Options, threads: str) -> dict[str, System]:
    """Let all systems take turns."""
    known = systems(options, threads)
    for system in known.values():
        system.training.turn(WARM_UP_ITERATIONS)
    for _ in range(options.rounds):
        for system in known.values():
            system.turns.append(system.training.turn(system.iterations))
    for system in known.values():
        system.training.close()
    return known


def rows(threads: str, known: dict[str, System]) -> Iterator[str]:
    theirs = known["mjlab"].turns if "mjlab" in known else []
    for name, system in known.items():
        cells = [threads, system.label]
        cells += [told([getattr(turn, measure_of) for turn in system.turns], 0) for measure_of in MEASURES]
        for measure_of in MEASURES:
            pairs = zip(system.turns, theirs if name != "mjlab" else [], strict=False)
            ratios = [getattr(our, measure_of) / getattr(their, measure_of) for our, their in pairs]
            cells.append(told(ratios, 1) if ratios else "")
        yield f"| {' | '.join(cells)} |"
    if "mjlab" not in known:
        yield f"| {threads} | mjlab | not installed | | | | | |"


def what(system: System) -> str:
    """Return what a system does in an iteration."""
    facts = system.training.said["facts"]
    sizes = " x ".join(map(str, facts["hidden_dims"]))
    said = (
        f"- {system.label}: {facts['physics_steps']} physics steps of {facts['physics_dt'] * 1000:g} ms to a control "
        f"step, {facts['num_steps_per_env']} control steps to an iteration, networks of {sizes}, "
        f"{facts['num_learning_epochs']} epochs of {facts['num_mini_batches']} mini-batches"
    )
    return f"{said}; {facts['version']}." if "version" in facts else f"{said}."


def main(options: Options) -> None:
    where = machine()
    table = [
        ("| threads | system | per CPU second | samples alone | per second | ratio | ratio, samples | ratio, wall |"),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    described = []
    for threads in (ONE_THREAD, AS_TYPED):
        known = measure(options, threads)
        described = [what(system) for system in known.values()]
        for row in rows(threads, known):
            print(row, flush=True)
            table.append(row)
    command = "python benchmarks/training_throughput.py --mjlab_python /tmp/mjlab/bin/python"
    lines = "\n".join(table)
    told_of_each = "\n".join(described)
    text = f"""# Control steps with learning, beside mjlab

    {command} --rounds {options.rounds}

{where}.
Control steps of {options.num_envs} cartpoles that are trained with rsl_rl's PPO. Medians of {options.rounds} turns of
{options.iterations} iterations ({max(1, options.iterations // 3)} of mjlab), with the smallest and the largest; ratios
are those of neighbouring turns against mjlab.

{lines}

{told_of_each}

"As typed" is what a user gets who says nothing of threads: here, physics on all cores and torch on one; there, torch on
all cores, which wait for each other where other programs run. Learning is the same library's work on both sides, so the
more of an iteration it is, the closer to 1 is a ratio; "samples" leaves it out. "As mjlab" is this package's cartpole
with mjlab's physics steps to a control step and, as there, without normalised observations. What still differs is the
scene: this cart has a rail with ends and episodes that end when the pole falls, none of mjlab's episodes is lost, and
its physics steps are longer. On a CPU, mjlab's physics (MuJoCo-Warp) runs on one thread; it is made for GPUs, where
this comparison says nothing.
"""
    output = options.output or RESULTS
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
