"""The start of a run: new, resumed, or refused."""

import dataclasses
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError
from isaaclab_arena.evaluation import verification
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.planning import Machinery, RunRequest, settle_backends, settled_jobs
from isaaclab_arena.evaluation.queues import FixedShare
from isaaclab_arena.evaluation.run_start import StartedRun, agree_on_contents, agree_on_versions, start_run
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.layout import SETTLED_FILE
from isaaclab_arena.storage.ledger import (
    JobReport,
    Reproducible,
    attempt_numbers,
    read_attempts,
    read_job_reports,
    read_plan_copy,
    read_run_plan,
    write_job_report,
    write_run_plan,
)
from isaaclab_arena.training.training_run import with_settled_backend
from tests.distributed.threads import ranks_in_threads
from tests.end_to_end.launching import write_jobs
from tests.evaluation.jobs import coin_job, config_of, execute, request_of, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, RepeatablePolicy, ShrugPolicy, SurePolicy
from tests.training.learning import small_config

JOB = {"name": "c", "arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action"}


def agree(check: Callable[[Ranks, Any], None], *held: Any) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(check, ranks_in_threads(len(held)), held))


def test_ranks_with_the_same_packages_agree_and_one_with_another_version_is_named():
    held = {"mujoco": "4.0.0", "torch": "2.13.0"}
    agree(agree_on_versions, held, dict(reversed(held.items())))
    for other in ({"mujoco": "4.0.1"}, {}):
        with pytest.raises(ConfigError, match=r"mujoco \(rank 0: 4\.0\.0, rank 1: "):
            agree(agree_on_versions, {"mujoco": "4.0.0"}, other)


def refusal_of(requests: list[RunRequest]) -> str:
    def refusal(request: RunRequest, ranks: Ranks) -> str:
        with pytest.raises(ConfigError) as refused:
            start_run(request, ranks)
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        told = set(threads.map(refusal, requests, ranks_in_threads(2)))
    assert len(told) == 1
    return told.pop()


@pytest.mark.parametrize(
    ("typed", "limits", "named"),
    [
        (("--assignment", "split"), {}, "--assignment"),
        (("--no_dataset",), {}, "--no_dataset"),
        (("--policy_device", "cpu"), {}, "--policy_device"),
        (("--max_equal_errors", "5"), {}, "--max_equal_errors"),
        ((), {"timeout_s": 60.0}, "time limits"),
        ((), {"episode_timeout_s": 60.0}, "time limits"),
    ],
)
def test_ranks_that_act_on_others_than_rank_0_are_refused_before_the_run_has_a_directory(
    tmp_path, typed, limits, named
):
    requests = []
    for number, (more, job) in enumerate((((), JOB), (typed, JOB | limits))):
        jobs = write_jobs(tmp_path / f"jobs{number}.json", [job])
        line = ["--eval_jobs_config", str(jobs), "--output_dir", str(tmp_path / "out"), "--num_steps=1", *more]
        requests.append(asked_for(line))
    assert refusal_of(requests).startswith(f"the ranks do not agree on {named}")
    assert not (tmp_path / "out").exists()


def test_machines_agree_on_their_files_and_the_one_with_another_checkpoint_is_named():
    held, elsewhere, other = (
        {"lift": Contents(policy={"checkpoint_path model_300.pt": digit * 64}, checkpoint=f"{where}/model_300.pt")}
        for digit, where in (("1", "here"), ("1", "there"), ("2", "here"))
    )
    agree(agree_on_contents, {}, {})
    agree(agree_on_contents, held, {}, elsewhere)
    with pytest.raises(ConfigError) as refused:
        agree(agree_on_contents, held, {}, other)
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith("rank 2 ")
    assert "was 111111111111, is now 222222222222" in problem


TOSSES = (1, 0, 0, 1, 1, 1, 0, 1)
SAVED: tuple[Conditions, ...] = tuple({"coin.heads": toss, "coin.number": 1} for toss in TOSSES)


def saved(job: Job) -> Job:
    return dataclasses.replace(job, saved_conditions=SAVED)


def run(directory: Path, job: Job) -> tuple[JobReport, list[dict]]:
    report = JobRunner(settings(directory)).run(job)
    lines = (directory / job.config.name / "episode_results_rank0.jsonl").read_text().splitlines()
    return report, sorted(map(json.loads, lines), key=lambda line: line["episode_index"])


def test_saved_conditions_belong_to_their_episode_also_where_some_have_finished(tmp_path):
    job = saved(coin_job(num_episodes=8, num_envs=2))
    JobRunner(settings(tmp_path)).run(FixedShare(job=job, finished=((0, 3), (5, 6))))
    lines = (tmp_path / "coins" / "episode_results_rank0.jsonl").read_text().splitlines()
    lines = {line["episode_index"]: line["success"] for line in map(json.loads, lines)}
    assert lines == {index: bool(TOSSES[index]) for index in (3, 4, 6, 7)}


class Watching(ShrugPolicy):
    """Remembers which episodes were started, in all rebuilds."""

    started: list[int] = []  # noqa: RUF012  shared by the instances on purpose: every rebuild makes another

    def start_episodes(self, env, starts):
        self.started += [start.episode.episode_index for start in starts]


@pytest.mark.parametrize(("num_steps", "num_envs"), [(1, 3), (10, 1), (11, 3), (130, 3)])
def test_rebuilds_that_are_limited_by_steps_repeat_no_episode_and_leave_none_out(tmp_path, num_steps, num_envs):
    """An episode that a limit cut is not begun again: its conditions were used, and none may be picked."""
    Watching.started = []
    job = coin_job(policy_class=Watching, num_steps=num_steps, num_rebuilds=3, num_envs=num_envs)
    report, lines = run(tmp_path, job)
    started = Watching.started
    assert started == list(range(len(started)))
    assert report.cut_episodes == len(started) - len(lines)
    finished = [line["episode_index"] for line in lines]
    assert max(Counter(finished).values(), default=1) == 1
    heads = [toss(index) for index in finished]
    assert [line["success"] for line in lines] == heads


def toss(index: int) -> bool:
    episode = Episode(job="coins", episode_index=index, seed=0)
    return bool(CoinEnvironment(CoinConfig(), 1).draw_conditions(episode.conditions_generator())["coin.heads"])


CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


def sure(num_episodes: int = 4, policy_class: type[ShrugPolicy] = SurePolicy, **changes) -> Job:
    return coin_job(policy_class=policy_class, num_episodes=num_episodes, **changes)


def resuming_run(output_directory: Path, *jobs: Job, typed: tuple[str, ...] = ("run",), **options) -> int:
    asked = f"hash of {[job.config.num_episodes for job in jobs]}"
    options = {"output_dir": str(output_directory), "no_dataset": True, "no_report": True, **options}
    return execute(request_of(*jobs, config_hash=asked, command_line=typed, **options), CONTEXT)


def refused(output_directory: Path, *jobs: Job) -> str:
    with pytest.raises(ConfigError) as error:
        resuming_run(output_directory, *jobs, resume="")
    return str(error.value)


def episodes_of(output_directory: Path) -> list[dict]:
    columns = ["job", "episode_index", "outcome", "length", "return", "checksum", "episode_seed"]
    columns.append("saturated_action_share")
    return pd.read_csv(output_directory / "episodes.csv").filter(columns).astype(object).fillna("").to_dict("records")


def missing(output_directory: Path) -> list[int]:
    return pd.read_csv(output_directory / "results.csv")["missing"].tolist()


# Three runs and a resume of each kind of assignment, which differ in how they hand out what is left.
@pytest.mark.parametrize("assignment", [pytest.param("round_robin", marks=pytest.mark.slow), "dynamic"])
def test_a_run_with_more_episodes_ends_as_one_that_had_them_from_the_start_also_if_that_is_interrupted(
    tmp_path, assignment
):
    assert resuming_run(tmp_path / "whole", sure(11), assignment=assignment) == 0
    assert resuming_run(tmp_path / "out", sure(4), assignment=assignment) == 0
    assert resuming_run(tmp_path / "out", sure(11), resume="", typed=("run", "more"), assignment=assignment) == 0
    (commits,) = (path for path in (tmp_path / "out/coins").glob("*.jsonl") if "life1" in path.name)
    commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:3]))
    next((tmp_path / "out/coins").glob("job_report_rank0_life1.json")).unlink()
    assert resuming_run(tmp_path / "out", sure(11), resume="", assignment=assignment) == 0
    assert episodes_of(tmp_path / "out") == episodes_of(tmp_path / "whole")
    assert missing(tmp_path / "out") == [0]
    attempts = {line.attempt for line in read_commits(tmp_path / "out/coins", "coins").lines[:4]}
    assert attempts == {1}, "an episode that had finished ran again"
    _, second, _ = read_attempts(tmp_path / "out")[0]
    assert [(work.finished, work.num_episodes) for work in second.jobs] == [(((0, 4),), 11)]
    for plan in (read_run_plan(tmp_path / "out"), read_plan_copy(tmp_path / "out")):
        assert (plan.jobs[0].config.num_episodes, plan.config_hash) == (11, "hash of [4]")
    assert resuming_run(tmp_path / "out", sure(11), resume="", assignment=assignment) == 0
    assert len(read_attempts(tmp_path / "out")[0]) == 3


def interrupted(output_directory: Path, *jobs: Job, keep: int = 2) -> None:
    """Leave what a run leaves that is killed when it has committed some episodes."""
    resuming_run(output_directory, *jobs)
    for job in jobs:
        directory = output_directory / job.config.name
        (commits,) = directory.glob("episode_results_*.jsonl")
        commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:keep]))
        next(directory.glob("job_report_*.json")).unlink()


@pytest.mark.parametrize(
    ("policy_class", "num_envs"), [pytest.param(SurePolicy, 1, marks=pytest.mark.slow), (RepeatablePolicy, 3)]
)
def test_a_job_that_is_bitwise_goes_on_with_another_number_of_env_slots(tmp_path, policy_class, num_envs):
    assert resuming_run(tmp_path / "whole", sure(9, policy_class)) == 0
    interrupted(tmp_path / "out", sure(9, policy_class))
    assert resuming_run(tmp_path / "out", sure(9, policy_class, num_envs=num_envs), resume="") == 0
    assert episodes_of(tmp_path / "out") == episodes_of(tmp_path / "whole")
    assert pd.read_csv(tmp_path / "out/results.csv")["reproducible"].tolist() == ["bitwise"]
    assert read_run_plan(tmp_path / "out").jobs[0].config.num_envs == 4


def test_a_job_that_is_reproducible_as_plan_alone_says_why_it_does_not(tmp_path):
    plain, fewer = sure(9, ShrugPolicy), sure(9, ShrugPolicy, num_envs=2)
    interrupted(tmp_path / "out", plain)
    # No report has said it, so it is known once the job is built.
    assert resuming_run(tmp_path / "out", fewer, resume="") == 1
    (error,) = pd.read_csv(tmp_path / "out/results.csv")["error"]
    assert "num_envs 2" in error
    assert "set traits" in error
    assert resuming_run(tmp_path / "out", plain, resume="") == 0
    assert "num_envs: was 4 when the run began, now 2" in refused(tmp_path / "out", fewer)
    # What one rank has said is not forgotten for what another says.
    only, *_ = read_job_reports(tmp_path / "out/coins", "coins")[0]
    for rank, number in ((1, 1), (0, 9)):
        other = replace(only, rank=rank, attempt=number, reproducible=Reproducible.BITWISE)
        write_job_report(tmp_path / "out/coins", other)
        assert "do not repeat bit for bit" in refused(tmp_path / "out", fewer)


def test_a_job_that_has_recorded_nothing_may_have_another_policy_and_other_env_slots(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    assert resuming_run(tmp_path / "out", coin_job(raise_at=1, num_envs=6)) == 1
    (tmp_path / "out/coins" / SETTLED_FILE).write_text('{"policy_batch": 8, "schema_version": 1}')
    assert resuming_run(tmp_path / "out", coin_job(policy_class=RepeatablePolicy, num_envs=2), resume="") == 0
    entry = read_run_plan(tmp_path / "out").jobs[0]
    assert (entry.config.policy_type, entry.config.num_envs, entry.config.policy_config_dict) == (
        "RepeatablePolicy",
        2,
        {},
    )
    assert pd.read_csv(tmp_path / "out/results.csv")["policy"].tolist() == ["RepeatablePolicy"]
    assert '"policy_batch": 2' in (tmp_path / "out/coins" / SETTLED_FILE).read_text()
    told = refused(tmp_path / "out", coin_job(policy_class=SurePolicy, num_envs=2))
    assert 'policy_type: was "RepeatablePolicy" when the run began, now "SurePolicy"' in told


GPUS = ("cuda:0", "cuda:1")


@dataclass(frozen=True, kw_only=True)
class TossConfig(CoinConfig):
    backend: str = "auto"


class TossBuilder(CoinBuilder):
    """Says at each measurement the other backend, as clocks may; keeps what was measured and what was built."""

    config_class = TossConfig

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[tuple[int, str]] = []
        self.backends: list[str] = []
        self.error: Exception | None = None

    def faster_backend(
        self, config: Any, *, num_envs: int, device: torch.device, num_threads: int, variations: Sequence[Any] = ()
    ) -> str:
        if self.error is not None:
            raise self.error
        self.measured.append((num_envs, str(device)))
        return ("warp", "mujoco")[(len(self.measured) + 1) % 2]

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> CoinEnvironment:
        self.backends.append(config.backend)
        return super().build(config, num_envs=num_envs, device=device, num_threads=num_threads)


@pytest.fixture
def builder(monkeypatch) -> TossBuilder:
    """Builds environments on a machine with GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    return TossBuilder()


def job_of(builder: TossBuilder, name: str = "coins", *, backend: str = "auto", **config: Any) -> Job:
    return coin_job(name, builder=builder, environment=TossConfig(backend=backend), **config)


def start_on(devices: Sequence[str], request: RunRequest) -> list[StartedRun]:
    """Let ranks, which are threads here, begin a run; return what each of them then knows."""

    def begin(ranks: Ranks, device: str) -> StartedRun:
        context = replace(ranks.context, device=torch.device(device), local_world_size=len(devices))
        ranks = Ranks(context, backend="gloo", store=ranks.store, timeout_s=60.0)
        return start_run(request, ranks)

    with ThreadPoolExecutor(len(devices)) as threads:
        started = list(threads.map(begin, ranks_in_threads(len(devices)), devices))
    for each in started:
        with each.lock:
            pass
    return started


def backends_of(started: StartedRun, request: RunRequest) -> list[str | None]:
    assert started.attempt is not None
    return [job.asked_backend for job in settled_jobs(request.jobs, started.attempt)]


def planned(directory: Path) -> dict[str, str | None]:
    return {job["config"]["name"]: job["backend"] for job in json.loads((directory / "run.json").read_text())["jobs"]}


@pytest.mark.parametrize("options", [{}, {"assignment": "dynamic"}])
def test_all_ranks_simulate_a_job_with_what_one_of_them_measured_once(tmp_path, builder, options):
    # The second is a job of the same environment, the third one of another number of env slots.
    jobs = [job_of(builder, "a"), job_of(builder, "b", index=1, seed=3), job_of(builder, "c", index=2, num_envs=8)]
    request = request_of(*jobs, output_dir=str(tmp_path / "out"), **options)
    started = start_on(GPUS, request)
    assert [backends_of(each, request) for each in started] == [["warp", "warp", "mujoco"]] * 2
    assert builder.measured == [(4, "cuda:0"), (8, "cuda:0")]
    assert planned(tmp_path / "out") == {"a": "warp", "b": "warp", "c": "mujoco"}


def test_a_head_without_a_gpu_measures_nothing_for_its_ranks_and_says_what_they_simulate_with(
    tmp_path, builder, monkeypatch, caplog
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    request = request_of(job_of(builder), output_dir=str(tmp_path / "out"))
    assert [backends_of(each, request) for each in start_on(GPUS, request)] == [["mujoco"]] * 2
    assert builder.measured == []
    assert "'backend: warp'" in caplog.text


def test_a_run_that_goes_on_measures_nothing_and_keeps_its_backend(tmp_path, builder):
    request = request_of(job_of(builder), output_dir=str(tmp_path / "out"))
    start_on(GPUS, request)
    builder.measured.append((0, "so that the next answer would be another"))
    again = request_of(job_of(builder), output_dir=str(tmp_path / "out"), resume="")
    for devices in (GPUS, ("cuda:0",)):
        assert [backends_of(each, again) for each in start_on(devices, again)] == [["warp"]] * len(devices)
    assert len(builder.measured) == 2


@pytest.mark.parametrize(("is_earlier_version", "device"), [(False, "cuda:0"), (True, "cpu")])
def test_what_began_on_the_cpu_stays_mujocos_where_there_is_a_gpu(tmp_path, builder, is_earlier_version, device):
    directory = tmp_path / "out"
    start_on(["cpu"], request_of(job_of(builder), output_dir=str(directory)))
    for path in [directory / "run.json", directory / "attempts" / "attempt_1.json"] * is_earlier_version:
        content = json.loads(path.read_text())
        for job in content["jobs"]:
            del job["backend"]
        path.write_text(json.dumps(content))
    again = request_of(job_of(builder), output_dir=str(directory), resume="")
    [started] = start_on([device], again)
    assert backends_of(started, again) == ["mujoco"]
    assert not builder.measured


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_unless_every_rank_has_a_gpu_auto_is_mujoco_without_measuring(tmp_path, builder, devices):
    request = request_of(job_of(builder), output_dir=str(tmp_path / "out"))
    assert {tuple(backends_of(each, request)) for each in start_on(devices, request)} == {("mujoco",)}
    assert not builder.measured
    assert planned(tmp_path / "out") == {"coins": "mujoco"}


def test_a_run_that_was_settled_on_a_gpu_does_not_creep_on_without_one(tmp_path, builder):
    jobs = (job_of(builder, "a"), job_of(builder, "b", index=1, backend="warp"))
    start_on(GPUS, request_of(*jobs, output_dir=str(tmp_path / "out")))
    again = request_of(*jobs, output_dir=str(tmp_path / "out"), resume="")
    with pytest.raises(ConfigError) as refused:
        start_on(["cpu"], again)
    # Who asked for MuJoCo-Warp gets it everywhere.
    assert [(problem.job, problem.key) for problem in refused.value.problems] == [("a", "arena_env_args.backend")]
    assert attempt_numbers(tmp_path / "out") == [1]


def test_a_job_that_cannot_be_measured_fails_alone_and_a_skipped_one_is_not_measured(builder):
    machinery = Machinery(devices=GPUS, num_threads=1)
    assert settle_backends([job_of(builder, status=JobStatus.COMPLETED)], machinery) == {}
    assert not builder.measured
    builder.error = EnvironmentBuildError("the scene does not compile")
    assert settle_backends([job_of(builder)], machinery) == {"coins": "mujoco"}


def test_ranks_that_train_together_simulate_with_what_rank_zero_measured():
    measured: list[str] = []

    def settle(jobs: Sequence[Job], machinery: Machinery) -> Mapping[str, str]:
        measured.append(machinery.devices[0])
        return {job.config.name: "warp" for job in jobs}

    def settled(ranks: Ranks) -> str:
        context = replace(ranks.context, device=torch.device("cuda", ranks.context.rank))
        ranks = Ranks(context, backend="gloo", store=ranks.store, timeout_s=60.0)
        return with_settled_backend(small_config(), ranks, num_threads=1, settle=settle).env["backend"]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(settled, ranks_in_threads(2))) == ["warp", "warp"]
    assert measured == ["cuda:0"]
    asked = small_config("env.backend=mujoco")
    assert with_settled_backend(asked, ranks_in_threads(2)[1], num_threads=1) == asked


def test_episodes_are_verified_on_the_backend_that_they_ran_on(tmp_path):
    directory = tmp_path / "out"
    config = config_of("cartpole", name="balance", environment_args={}, num_episodes=4)
    start_on(["cpu"], request_of(*resolve_jobs([config]), output_dir=str(directory)))
    plan = read_run_plan(directory)
    revised = replace(plan, jobs=tuple(replace(job, backend="warp") for job in plan.jobs))
    write_run_plan(directory, revised, revises=True)
    (tmp_path / "again").mkdir()
    sample = {"balance": [0, 3]}
    again = verification.prepare_sample(directory, tmp_path / "again", sample, num_envs=None, num_ranks=1)
    [job] = verification.jobs_of_plan(again, directory, policy_batch=None, may_import=False)
    assert job.environment_config.backend == "warp"
