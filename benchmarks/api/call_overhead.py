"""Measure the cost of a call of `arena.evaluate` beside the runner's command, in one process and by turns."""

import contextlib
import io
import logging
import statistics
import tempfile
from dataclasses import dataclass

import isaaclab_arena as arena
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, run, spread, timed, values
from isaaclab_arena.evaluation import policy_runner


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    environment: str = "reach"  # Environment.
    episodes: int = 20  # Episodes of an evaluation.
    rounds: int = 9  # Number of evaluations of each kind that count.


def main(options: Options) -> None:
    """Evaluate by turns, and write the page."""
    page = Page("call_overhead", "What a call from Python costs beside the runner", options, "torch", "pandas")
    logging.disable()
    line = ["--policy_type", "scripted", "--num_episodes", str(options.episodes), "--num_envs", "4"]
    environment, number = options.environment, options.episodes

    def runner() -> Timing:
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
            return timed(lambda: policy_runner.main([*line, "--output_dir", f"{directory}/out", options.environment]))

    def call() -> Timing:
        return timed(
            lambda: arena.evaluate(environment=environment, policy="scripted", num_episodes=number, num_envs=4)
        )

    taken = in_turn({"runner": runner, "arena.evaluate": call}, options.rounds, warm_up=1)
    table = Table("evaluated by", "CPU seconds")
    for label, timings in taken.items():
        table.add(label, spread(values(timings, "cpu_s")))
    pairs = zip(*(values(timings, "cpu_s") for timings in taken.values()), strict=True)
    added_ms = 1000 * statistics.median(called - ran for ran, called in pairs)
    text = f"""\
{options.episodes} episodes of `{options.environment}` by the scripted policy, medians of {options.rounds} evaluations
with the smallest and the largest. A call takes {added_ms:+.0f} ms of CPU time
more than the runner, which shows its table and its progress besides."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
