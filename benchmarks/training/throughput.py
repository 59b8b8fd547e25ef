"""Measure control steps per second with learning, beside mjlab.

Both train a cartpole with rsl_rl's PPO on a CPU, each in a process of its own, and take turns within one run, so a
ratio is that of neighbours in time. A turn is whole iterations, samples and learning, after a warm-up with compilation.
CPU seconds count all threads of a process; quote them on a noisy machine.

mjlab needs another MuJoCo and another rsl_rl, so it lives in an environment of its own:

    python -m venv /tmp/mjlab && /tmp/mjlab/bin/pip install torch==2.13.0 && /tmp/mjlab/bin/pip install mjlab==1.6.0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, ratios, run, spread, values
from benchmarks.training.processes import RANK, Training, Turn

WARM_UP_ITERATIONS = 2
FIGURES = ("per_cpu_s", "samples_per_cpu_s", "per_s")
ARENA, MJLAB = "arena", "mjlab"
ONE_THREAD = "1 thread"
AS_TYPED = "as typed"
AS_MJLAB = ("--physics_steps", "5", "agent.actor.obs_normalization=false", "agent.critic.obs_normalization=false")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    # Python of an environment in which mjlab is installed; without it, mjlab is left out.
    mjlab_python: Path | None = None
    num_envs: int = 64  # Cartpoles.
    rounds: int = 5  # Turns of every system.
    iterations: int = 12  # Iterations of a turn; mjlab does a third of them, but at least one.


@dataclass(frozen=True, kw_only=True)
class System:
    """A training system."""

    label: str  # Name in the table.
    training: Training  # Its process.
    iterations: int  # Iterations of a turn.

    def turn(self) -> Turn:
        """Do the iterations of a turn."""
        return self.training.turn(self.iterations)


def systems(options: Options, threads: str) -> dict[str, System]:
    """Start all systems."""
    own = [*RANK, "cartpole", "--num_envs", str(options.num_envs)]
    if threads == ONE_THREAD:
        own += ["--num_threads", "1", "--torch_threads", "1"]
    commands = {ARENA: ("this package, its own cartpole", own, options.iterations)}
    commands["as_mjlab"] = ("this package, as mjlab", [*own, *AS_MJLAB], options.iterations)
    if options.mjlab_python is not None:
        program = [str(options.mjlab_python), "-m", "benchmarks.training.mjlab", str(options.num_envs)]
        commands[MJLAB] = ("mjlab", program, max(1, options.iterations // 3))
    torch_threads = 1 if threads == ONE_THREAD else None
    return {
        name: System(label=label, training=Training(command, torch_threads=torch_threads), iterations=iterations)
        for name, (label, command, iterations) in commands.items()
    }


def measure(known: dict[str, System], rounds: int) -> dict[str, list[Turn]]:
    """Measure all systems in turn."""
    for system in known.values():
        system.training.turn(WARM_UP_ITERATIONS)
    turns = in_turn({name: system.turn for name, system in known.items()}, rounds)
    for system in known.values():
        system.training.close()
    return turns


def figures(turns: Sequence[Turn], theirs: Sequence[Turn] | None) -> list[str]:
    """Return the speeds of a system, and their ratios to the turns of mjlab where it took part."""
    speeds = [spread(values(turns, figure), 0) for figure in FIGURES]
    return speeds + [spread(ratios(turns, theirs, figure), 1) if theirs else "" for figure in FIGURES]


def what(system: System) -> str:
    """Return the facts of an iteration of a system."""
    facts = system.training.hello["facts"]
    sizes = " x ".join(map(str, facts["hidden_dims"]))
    text = (
        f"- {system.label}: {facts['physics_steps']} physics steps of {facts['physics_dt'] * 1000:g} ms to a control "
        f"step, {facts['num_steps_per_env']} control steps to an iteration, networks of {sizes}, "
        f"{facts['num_learning_epochs']} epochs of {facts['num_mini_batches']} mini-batches"
    )
    return f"{text}; {facts['version']}." if "version" in facts else f"{text}."


NOTES = """\
"As typed" is what a user gets who says nothing of threads: here, physics on all cores and torch on one; there, torch on
all cores, which wait for each other where other programs run. Learning is the same library's work on both sides, so the
more of an iteration it is, the closer to 1 is a ratio; "samples" leaves it out. "As mjlab" is this package's cartpole
with mjlab's physics steps to a control step and, as there, without normalised observations. What still differs is the
scene: this cart has a rail with ends and episodes that end when the pole falls, none of mjlab's episodes is lost, and
its physics steps are longer. On a CPU, mjlab's physics (MuJoCo-Warp) runs on one thread; it is made for GPUs, where
this comparison says nothing."""


def main(options: Options) -> None:
    """Measure on one thread and as typed, and write the page."""
    page = Page("training_throughput", "Control steps with learning, beside mjlab", options)
    speeds = ("per CPU second", "samples alone", "per second", "ratio", "ratio, samples", "ratio, wall")
    table = Table("threads", "system", *speeds, words=2)
    described = ""
    for threads in (ONE_THREAD, AS_TYPED):
        known = systems(options, threads)
        turns = measure(known, options.rounds)
        for name, system in known.items():
            table.add(threads, system.label, *figures(turns[name], None if name == MJLAB else turns.get(MJLAB)))
        if MJLAB not in known:
            table.add(threads, "mjlab", "not installed", *("",) * 5)
        described = "\n".join(what(system) for system in known.values())
    text = f"""\
Control steps of {options.num_envs} cartpoles that are trained with rsl_rl's PPO. Medians of {options.rounds} turns of
{options.iterations} iterations ({max(1, options.iterations // 3)} of mjlab), with the smallest and the largest; ratios
are those of neighbouring turns against mjlab."""
    page.write(text, table, described, NOTES)


if __name__ == "__main__":
    run(main, Options)
