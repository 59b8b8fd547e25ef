"""``backend: auto`` is settled once for all ranks of a job, and stays so when the run goes on."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.evaluation import verification
from isaaclab_arena.evaluation.builds import GroupBuilder, StartUpClock
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.planning import Machinery, RunRequest, settle_backends, settled_jobs
from isaaclab_arena.evaluation.run_start import StartedRun, start_run
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.storage.ledger import attempt_numbers, read_run_plan, write_run_plan
from isaaclab_arena.training.training_run import with_settled_backend
from tests.distributed.threads import ranks_in_threads
from tests.evaluation.jobs import coin_job, config_of, request_of, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment
from tests.training.learning import small_config

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


@pytest.fixture(autouse=True)
def _gpus_here(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))


@pytest.fixture
def builder() -> TossBuilder:
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


@pytest.mark.parametrize(("num_groups", "measured"), [(1, 5), (2, 3), (9, 1)])
def test_groups_of_env_slots_share_what_was_measured_for_the_largest(builder, tmp_path, num_groups, measured):
    job = job_of(builder, num_envs=5)
    machinery = Machinery(devices=GPUS, num_threads=1, num_groups=num_groups)
    settled = job.with_settled(settle_backends([job], machinery)["coins"])
    assert [num_envs for num_envs, _ in builder.measured] == [measured]
    clock = StartUpClock("coins", import_s=None)
    GroupBuilder(settings(tmp_path, pipeline=num_groups)).build(settled, tmp_path / "coins", clock)
    assert builder.backends == ["warp"] * min(num_groups, 5)


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
