"""The same job file on any number of ranks, whoever starts them, and what happens when one of them dies."""

import json
import os
import shlex
import signal
from pathlib import Path

import pandas as pd
import pytest

from tests.end_to_end.launching import (
    command,
    committed,
    end,
    episodes_table,
    job,
    jobs_table,
    launched,
    results_of,
    run,
    run_of,
    same_tables,
    start,
    wait_until,
    write_jobs,
)

NAMES = ("reach", "lift", "random", "drawer", "steps")
ENDLESS = 5000
"""More episodes than a test waits for."""


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory) -> tuple[Path, Path]:
    """The job file, and what one process makes of it."""
    output = tmp_path_factory.mktemp("ranks") / "one"
    jobs = [
        job("reach", num_episodes=5, num_envs=3),
        job("lift_object", num_episodes=5),
        job("lift_object", "random_action", 5, num_envs=4),
        job("open_drawer", num_episodes=5),
        job("reach", "random_action", None, num_steps=200),
    ]
    launched(output, *({**each, "name": name} for each, name in zip(jobs, NAMES, strict=True)))
    return output.with_suffix(".json"), output


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_merged_table_is_the_same_for_any_number_of_ranks(one_rank, tmp_path, ranks):
    path, alone = one_rank
    together = tmp_path / "together"
    finished = run(command("--eval_jobs_config", path, "--output_dir", together, ranks=ranks))
    assert finished.returncode == 0, finished.stderr
    pd.testing.assert_frame_equal(jobs_table(together), jobs_table(alone))
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    for index, name in enumerate(NAMES):
        assert (together / name / f"dataset_{name}_rank{index % ranks}.hdf5").is_file()


def test_one_table_is_printed_however_many_ranks_there_are(tmp_path):
    """Ranks that the runner starts share a job that would leave one idle; torchrun's keep Isaac Lab Arena's rule."""
    path = write_jobs(tmp_path / "jobs.json", [job(num_envs=3, num_episodes=5, name="reach")])
    arguments, base = ("--eval_jobs_config", path, "--output_dir", tmp_path / "torchrun"), tmp_path / "outputs"
    under_torchrun = run(command(*arguments, ranks=2, module=["-m", "eval_runner"]))
    assert under_torchrun.returncode == 0, under_torchrun.stderr
    assert "without a job: rank 1; with --assignment split" in under_torchrun.stderr
    by_itself = run(command(path, "--output_base_dir", base, "--nproc_per_node", 2))
    assert by_itself.returncode == 0, by_itself.stderr
    (output,) = base.iterdir()
    assert same_tables(output, tmp_path / "torchrun")
    for finished in (under_torchrun, by_itself):
        assert finished.stdout.count("results in") == 1
    assert f"results in {output}" in by_itself.stdout
    (shown_by_rank_0,) = (output / "launcher").glob("*/rank0.log")
    assert f"results in {output}" in shown_by_rank_0.read_text()
    begun = [json.loads((each / "attempts/attempt_1.json").read_text()) for each in (output, tmp_path / "torchrun")]
    assert [each["assignment"] for each in begun] == ["split", "round_robin"]
    assert {each["assignment_reason"] for each in begun} == {"without a job: rank 1"}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_costs_its_unfinished_episodes_and_nothing_else(tmp_path, victim):
    """The run ends by itself, says so in its exit code, and the table names what is missing."""
    output, numbers = tmp_path / "out", [ENDLESS if rank == victim else 3 for rank in range(3)]
    jobs = [job("lift_object", "random_action", number, name=f"job{rank}") for rank, number in enumerate(numbers)]
    process = start(run_of(output, *jobs, ranks=3), tmp_path / "log")
    try:
        wait_until(lambda: committed(output, f"job{victim}").total() >= 4)
        os.kill(pid_of(output, victim), signal.SIGKILL)
        assert process.wait(timeout=120) != 0
    finally:
        end(process)
    found = [committed(output, f"job{rank}").total() for rank in range(3)]
    document = results_of(output)
    missing = {entry["job"]: entry for entry in document["missing"]}
    assert not document["complete"]
    assert missing[f"job{victim}"]["rank"] == victim
    assert len(missing[f"job{victim}"]["episode_indices"]) == ENDLESS - found[victim]
    assert [each["episodes"] for each in document["jobs"]] == found
    assert f"missing: job 'job{victim}' on rank {victim} lacks" in (tmp_path / "log").read_text()


def pid_of(output: Path, rank: int) -> int:
    return json.loads((output / "logs" / f"rank{rank}.status.json").read_text())["pid"]


@pytest.mark.slow
def test_when_only_rank_0_is_told_to_stop_the_table_still_holds_what_the_others_finish(tmp_path):
    # Rank 0 waits for the others for seconds, in which they need not keep the cores from other tests.
    slow = {"policy": "tests.fakes_slow.SluggishPolicy", "options": {"marks": str(tmp_path), "wait_s": 0.01}}
    jobs = [job("lift_object", num_episodes=ENDLESS, name=f"job{rank}", **slow) for rank in range(3)]
    output = tmp_path / "out"
    process = start(run_of(output, *jobs, ranks=3), tmp_path / "log")
    try:
        wait_until(lambda: all(committed(output, f"job{rank}") for rank in range(3)))
        os.kill(pid_of(output, 0), signal.SIGTERM)
        assert process.wait(timeout=120) != 0
    finally:
        end(process)
    told = results_of(output)["jobs"]
    assert [each["episodes"] for each in told] == [committed(output, f"job{rank}").total() for rank in range(3)]
    assert [each["status"] for each in told] == ["interrupted"] * 3
    # torchrun's report comes last, and with it what rank 0 said before the others had ended.
    _, report = (tmp_path / "log").read_text().split("Root Cause (first observed failure):")
    assert "still running when this rank ended: rank 1, 2; their finished episodes are in the last" in report
    assert f"continue with: isaaclab-arena resume {output}" in report
    assert "episodes  success" not in report


def test_a_failure_with_fail_fast_ends_all_ranks_and_prints_one_table(tmp_path):
    broken = job(policy="tests.fakes.ShrugPolicy", options={"raise_at": 3}, name="bad")
    long = [job(policy="random_action", num_episodes=ENDLESS, name=name) for name in ("b", "c")]
    output = tmp_path / "out"
    finished = run(run_of(output, broken, *long, options=("--fail_fast",), ranks=3))
    assert finished.returncode != 0
    assert finished.stdout.count("results in") == 1, finished.stdout
    told = results_of(output)["jobs"]
    assert [each["status"] for each in told] == ["failed", "interrupted", "interrupted"]
    assert told[0]["error"] == "ValueError: I would rather not"
    # torchrun's report, which comes below the table, gives the reason of the rank that failed first.
    assert "a job failed on rank 0, and --fail_fast ends the run" in finished.stderr.splitlines()[-2]


@pytest.mark.slow
def test_a_run_whose_reader_has_gone_is_complete_and_can_be_merged_again_later(tmp_path):
    output = tmp_path / "out"
    finished = run(["bash", "-c", f"{shlex.join(run_of(output, job()))} | true; exit ${{PIPESTATUS[0]}}"])
    assert finished.returncode == 0, finished.stderr
    before = (output / "results.csv").read_bytes()
    (output / "results.csv").unlink()
    finished = run(command("merge", output, module=["-m", "isaaclab_arena.cli"]))
    assert finished.returncode == 0, finished.stderr
    assert (output / "results.csv").read_bytes() == before


def test_an_interrupted_run_keeps_what_finished_and_exits_with_the_signals_code(tmp_path):
    output = tmp_path / "out"
    process = start(run_of(output, job("lift_object", "random_action", ENDLESS)), tmp_path / "log")
    try:
        wait_until(lambda: committed(output).total() >= 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        end(process)
    [told] = results_of(output)["jobs"]
    assert (told["status"], told["episodes"]) == ("interrupted", committed(output).total())
    last_line = (tmp_path / "log").read_text().splitlines()[-1]
    assert last_line == f"continue with: isaaclab-arena resume {output}"


def test_the_log_of_each_rank_says_how_its_jobs_began(tmp_path):
    jobs = [job("cartpole", "zero_action", None, num_steps=3, name=name) for name in ("first", "second", "third")]
    output = launched(tmp_path / "out", *jobs, ranks=2)
    logs = [(output / "logs" / f"rank{rank}.log").read_text().splitlines() for rank in (0, 1)]
    told = [line.partition("start-up of job ")[2] for log in logs for line in log]
    first, third, second = filter(None, told)
    assert first.startswith("'first': imports ")
    assert second.startswith("'second': imports ")
    assert third.startswith("'third': ")
    assert "imports" not in third, "a rank imports once"


@pytest.mark.slow
def test_the_ranks_of_the_policy_runner_share_its_episodes(tmp_path):
    """Each episode runs once, on one of the ranks: five in all, not five on each."""
    output = tmp_path / "out"
    options = ("--policy_type", "zero_action", "--num_episodes", 5, "--nproc_per_node", 2, "--device", "cpu")
    module = ["-m", "isaaclab_arena.evaluation.policy_runner"]
    finished = run(command(*options, "--output_dir", output, "reach", module=module))
    assert finished.returncode == 0, finished.stderr
    assert sorted(committed(output, rank=rank).total() for rank in range(2)) == [2, 3]
    assert committed(output) == {("reach", index): 1 for index in range(5)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_ranks_one_compiles_and_a_later_run_compiles_nothing(tmp_path):
    warp = [job("cartpole", "zero_action", None, num_steps=5, args={"backend": "warp"}, name=name) for name in "ab"]

    def start_ups(name: str) -> list[dict[str, float]]:
        cache = {"WARP_CACHE_PATH": str(tmp_path / "cache")}
        output = launched(tmp_path / name, *warp, ranks=2, timeout_s=280, extra=cache)
        reports = [json.loads(path.read_text())["start_up"] for path in output.glob("*/job_report_rank*.json")]
        return sorted(filter(None, reports), key=lambda start_up: start_up["compile_s"], reverse=True)

    compiler, waiter = start_ups("first")
    assert compiler["compile_s"] > 1
    assert waiter["compile_s"] < 0.1 * compiler["compile_s"]
    assert waiter["kernel_wait_s"] > 0.5 * compiler["compile_s"]
    for start_up in start_ups("second"):
        assert start_up["compile_s"] == 0
        assert 0 < start_up["kernel_load_s"] < 0.1 * compiler["compile_s"]
