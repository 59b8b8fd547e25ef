"""The benchmarks of training."""

import pytest
import tyro

from isaaclab_arena.training.settings.tasks import TASKS
from tests.benchmarks.loading import BENCHMARKS, load

PROGRAMS = ("training_throughput", "training_ranks", "training_exchange", "training_evaluation")


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks find their shared modules, as they do when they are started as programs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_of_training_reads_where_its_table_goes(program, tmp_path):
    module = load(program)
    options = tyro.cli(module.Options, args=["--output", str(tmp_path / "table.md")])
    assert options.output == tmp_path / "table.md"
    assert module.RESULTS.parent == BENCHMARKS / "results"


def test_every_task_that_ranks_are_measured_with_ships():
    assert {measured.task for measured in load("training_ranks").TASKS} <= set(TASKS.names())


def test_collectives_of_an_iteration_are_told_apart_by_what_is_in_them():
    facts = {"num_learning_epochs": 2, "num_mini_batches": 3, "gradient_bytes": 400}
    calls = [["all_reduce", 400, 12], ["all_reduce", 4, 24], ["broadcast", 4, 12]]
    one = load("training_exchange").exchanged(facts, {"calls": calls}, 2)
    assert (one.mini_batches, one.gradient_calls, one.calls) == (6, 6, 24)
    assert one.sent_bytes == 6 * 400 + 18 * 4
    assert one.least_bytes == 2400
    assert "| 24 | 4.0 | 2,472 | 412 | 1.030 |" in load("training_exchange").row("PPO", one)


def test_two_ranks_exchange_one_gradient_for_each_mini_batch():
    exchange = load("training_exchange")
    one = exchange.counted(exchange.Options(num_envs=4), ("agent.num_steps_per_env=8",))
    assert one.gradient_calls == one.mini_batches == 20
    assert 1.0 < one.sent_bytes / one.least_bytes < 1.01


def test_the_ratio_of_two_systems_is_that_of_neighbouring_turns():
    throughput, processes = load("training_throughput"), load("training_processes")

    def system(label, *walls):
        turns = [
            processes.Turn(wall_s=wall, cpu_s=wall, learning_cpu_s=wall / 2, env_steps=100, ranks=()) for wall in walls
        ]
        return throughput.System(label=label, training=None, iterations=1, turns=turns)

    known = {"arena": system("this package", 1.0, 10.0), "mjlab": system("mjlab", 4.0, 40.0)}
    ours, theirs = throughput.rows("1 thread", known)
    assert ours.count("4.0 (4.0 to 4.0)") == 3
    assert theirs == "| 1 thread | mjlab | 14 (2 to 25) | 28 (5 to 50) | 14 (2 to 25) |  |  |  |"


def test_a_system_that_is_not_installed_is_said_to_be_missing():
    throughput = load("training_throughput")
    assert list(throughput.rows("1 thread", {})) == ["| 1 thread | mjlab | not installed | | | | | |"]


@pytest.mark.slow
def test_evaluation_takes_a_share_of_a_training_run():
    words = ("agent.max_iterations=2", "evaluation.num_episodes=4", "evaluation.num_envs=2", "num_envs=4")
    one = load("training_evaluation").run("cartpole", *words)
    assert 0.0 < one.share < 100.0
    assert len(one.evaluations_s) == 1
    assert one.first_s < one.wall_s


def test_committed_tables_say_by_which_program_they_were_made():
    for program in PROGRAMS:
        table = (BENCHMARKS / "results" / f"{program}.md").read_text(encoding="utf-8")
        assert f"python benchmarks/{program}.py" in table
