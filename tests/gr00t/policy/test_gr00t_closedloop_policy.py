"""The policy whose model is in this process: its device, its checkpoint, and what is refused before simulation."""

import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.queues import FixedShare
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import JobReport, Reproducible
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy import gr00t_closedloop_policy
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy, policy_device
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig
from tests.gr00t.fakes import DIMENSIONS, HORIZON, MODALITIES, LimbEnvironment, RandomModel, write_policy_yaml
from tests.gr00t.panda_checkpoint import POLICY, write_panda_yaml
from tests.machine import show_gpus
from tests.policy.playing import job_of


@pytest.fixture
def machine(monkeypatch):
    """Set how many GPUs this process seems to have, and LOCAL_RANK."""

    def arrange(gpus: int, local_rank: str | None) -> None:
        show_gpus(monkeypatch, gpus)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local_rank is not None:
            monkeypatch.setenv("LOCAL_RANK", local_rank)

    return arrange


EVERYTHING = {"policy_device_id": 3, "policy_device": "cuda:1", "yaml": "cpu"}
# LOCAL_RANK, number of GPUs, what is given, and the device or what the refusal says.
DEVICES: list[tuple[str | None, int, dict[str, Any], str]] = [
    # LOCAL_RANK comes before everything but the CPU.
    ("2", 4, EVERYTHING, "cuda:2"),
    ("2", 4, {"policy_device": "cpu", "yaml": "cuda"}, "cpu"),
    ("2", 1, EVERYTHING, "cuda:0"),
    ("2", 0, EVERYTHING, "cpu"),
    ("2", 2, {}, "LOCAL_RANK is 2"),
    ("two", 4, EVERYTHING, "LOCAL_RANK='two'"),
    # Then the id, the device of the job, that of the YAML file, and what there is.
    (None, 4, EVERYTHING, "cuda:3"),
    (None, 4, {"policy_device": "cuda:1", "yaml": "cpu"}, "cuda:1"),
    (None, 4, {"yaml": "cuda:2"}, "cuda:2"),
    (None, 4, {"yaml": "cuda"}, "cuda:0"),
    (None, 4, {}, "cuda:0"),
    (None, 0, {}, "cpu"),
    # A GPU that there is not.
    (None, 2, {"policy_device_id": 2}, "policy_device_id: 'cuda:2'"),
    (None, 0, {"policy_device": "cuda"}, "policy_device: 'cuda'"),
    (None, 2, {"yaml": "cuda:2"}, "policy_device: 'cuda:2'"),
    (None, 2, {"policy_device_id": -1}, "policy_device_id: -1"),
    (None, 2, {"policy_device": "gpu"}, "'gpu' is not a device"),
]


@pytest.mark.parametrize(("local_rank", "gpus", "given", "expected"), DEVICES)
def test_the_device_of_the_model_is_the_first_that_is_given(machine, local_rank, gpus, given, expected):
    machine(gpus, local_rank)
    options = {key: value for key, value in given.items() if key != "yaml"}
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path="p.yaml", **options)
    if expected.startswith(("cpu", "cuda:")):
        assert policy_device(args, given.get("yaml")) == torch.device(expected)
    else:
        with pytest.raises(ConfigError) as refused:
            policy_device(args, given.get("yaml"))
        assert expected in str(refused.value)


def job(yaml: str, policy_type: str = POLICY, options: dict[str, Any] | None = None, **changes: Any) -> JobConfig:
    return job_of(policy_type, {"policy_config_yaml_path": yaml, **(options or {})}, **changes)


def checkpoint(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        # Weights without a tensor: the size of the header, and the header.
        (directory / name).write_bytes(b"\x02" + bytes(7) + b"{}" if name.endswith(".safetensors") else b"{}")


class FakeModel:
    """Stands for the model package's policy, and counts how often it was to be compiled."""

    def __init__(self, **_: Any) -> None:
        self.num_compiled = 0

    def compile(self) -> None:
        self.num_compiled += 1


def with_model(model: type, directory: Path, monkeypatch, **options: Any) -> Gr00tClosedloopPolicy:
    monkeypatch.setitem(sys.modules, "gr00t.policy.gr00t_policy", SimpleNamespace(Gr00tPolicy=model))
    if not (directory / "checkpoint").exists():
        checkpoint(directory / "checkpoint", "config.json", "model.safetensors")
    yaml = write_panda_yaml(directory / "p.yaml", policy_device="cpu")
    return Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, **options))


@pytest.mark.parametrize("asked", [False, True])
def test_the_model_is_compiled_once_if_the_job_asks_for_it(tmp_path, monkeypatch, asked):
    policy = with_model(FakeModel, tmp_path, monkeypatch, compile_model=asked)
    sharing = policy.with_own_memory()
    assert sharing is not None
    assert sharing.policy is policy.policy
    assert policy.policy.num_compiled == asked


def test_a_compiled_model_is_asked_for_as_many_env_slots_each_time(tmp_path, monkeypatch):
    policy = with_model(FakeModel, tmp_path, monkeypatch, compile_model=True)
    policy.device = torch.device("cuda:0")
    assert policy.slots_per_call(24) == 24
    assert with_model(FakeModel, tmp_path, monkeypatch, compile_model=True, rows_per_query=8).slots_per_call(24) == 8


def test_a_model_package_that_cannot_be_compiled_is_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="compile_model"):
        with_model(SimpleNamespace, tmp_path, monkeypatch, compile_model=True)


def test_without_a_model_package_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "gr00t.data.embodiment_tags", None)
    with pytest.raises(ConfigError, match="submodules/Isaac-GR00T"):
        gr00t_closedloop_policy.embodiment_tag("GR1")


LATER = Enum("LATER", {"LIBERO_PANDA": "libero_sim", "SIMPLER_ENV_WIDOWX": "simpler_env_widowx"})
"""Tags of GR00T N1.7's package."""


@pytest.mark.parametrize(
    ("written", "name", "later"),
    [
        ("gr1", "GR1", False),
        # GR00T N1.7 calls the same robots otherwise.
        ("libero_sim", "LIBERO_PANDA", False),
        ("Unitree_G1_full_body_with_waist_height_nav_cmd", "UNITREE_G1", False),
        ("libero_panda", "LIBERO_PANDA", True),
        ("OXE_WIDOWX", "SIMPLER_ENV_WIDOWX", True),
    ],
)
def test_a_robot_is_known_by_what_any_release_calls_it(monkeypatch, written, name, later):
    if later:
        monkeypatch.setitem(sys.modules, "gr00t.data.embodiment_tags", SimpleNamespace(EmbodimentTag=LATER))
    assert gr00t_closedloop_policy.embodiment_tag(written).name == name


def save_limb_checkpoint(directory: Path, steps: list[int]) -> None:
    """Write a checkpoint with random weights for `LimbEnvironment`, which is shown some steps."""
    from gr00t.data.types import ModalityConfig, compute_statistics  # noqa: PLC0415  transformers takes seconds to load
    from gr00t.model.building import build_small_model  # noqa: PLC0415
    from gr00t.model.checkpoint import save_checkpoint  # noqa: PLC0415

    shown = {"video": steps, "state": steps, "action": list(range(HORIZON)), "language": [0]}
    modalities = {
        name: ModalityConfig(delta_indices=shown[name], modality_keys=list(each.modality_keys))
        for name, each in MODALITIES.items()
    }
    limits = {
        name: {key: compute_statistics(np.array([[-1.0] * size, [1.0] * size])) for key, size in sizes.items()}
        for name, sizes in DIMENSIONS.items()
    }
    sizes = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2}
    save_checkpoint(directory, *build_small_model({"new_embodiment": (modalities, limits)}, sizes=sizes))


class TestConformance(PolicyConformance):
    policy_class = Gr00tClosedloopPolicy

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def checkpoint(cls, tmp_path_factory):
        directory = tmp_path_factory.mktemp("conformance")
        save_limb_checkpoint(directory / "checkpoint", steps=[-3, 0])
        yaml_path = write_policy_yaml(directory, model_path="checkpoint", policy_device="cpu")
        cls.options = {"policy_config_yaml_path": yaml_path}

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


# A model package that ignores what it is told about noise promises the plan, whatever it says of itself.


class Honouring(RandomModel):
    """Says that it honours seeds, and does."""

    def __init__(self) -> None:
        super().__init__("noise_seeds")


class Lying(Honouring):
    """Says that it honours seeds, and draws from torch's generator."""

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        return torch.randint(2**31, (batch_size,)).tolist()


class Ignoring(RandomModel):
    """Documents its options as unused, as NVIDIA's does."""

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        assert options is None
        return torch.randint(2**31, (batch_size,)).tolist()


class LimbBuilder(CoinBuilder):
    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> Any:
        return LimbEnvironment(num_envs)


def played(directory: Path, package: type[RandomModel], num_envs: int, shares: list, **options: Any) -> tuple:
    """Return the reports of ranks that share a job, and the checksums of its episodes' arrays."""
    yaml = write_policy_yaml(directory.parent, model_path="owner/name", policy_device="cpu")

    class Policy(Gr00tClosedloopPolicy):
        @classmethod
        def from_dict(cls, config_dict: Any) -> Any:
            return cls(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, num_envs=num_envs, **options))

        def load_policy(self) -> Any:
            return package()

    job = coin_job("limb", LimbBuilder(), policy_class=Policy, num_envs=num_envs, num_episodes=8)
    reports: list[JobReport] = []
    for rank, share in enumerate(shares):
        ranks = settings(directory, rank=rank, world_size=len(shares), no_dataset=False)
        reports.append(JobRunner(ranks).run(FixedShare(job=job, share=share)))
    assert [report.error for report in reports] == [None] * len(shares)
    return reports, {line.episode_index: line.checksum for line in read_commits(directory / "limb", "limb").lines}


ALL, TWO = [((0, 8),)], [((0, 3),), ((3, 8),)]


@pytest.mark.parametrize(("package", "because"), [(Ignoring, "noise_seeds"), (Lying, "its neighbours")])
def test_a_package_that_ignores_it_promises_the_plan_and_says_why(tmp_path, package, because):
    [report], first = played(tmp_path / "one", package, 3, ALL)
    assert report.reproducible is Reproducible.PLAN
    assert because in (report.plan_because or "")
    # Its noise still follows from the episodes that share a query.
    torch.rand(100)
    assert played(tmp_path / "two", package, 3, ALL)[1] == first
    assert len(set(first.values())) == 8


def test_torchs_generators_are_put_back_after_each_query(tmp_path):
    yaml = write_policy_yaml(tmp_path, model_path="owner/name", policy_device="cpu")
    policy = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml), model=Ignoring())
    shown = {
        "video": {key: np.zeros((2, 1, 4, 4, 3), np.uint8) for key in ("ego", "aside")},
        "state": {key: np.zeros((2, 1, 2), np.float32) for key in ("arm", "leg", "hand")},
        "language": {"annotation.human.task_description": [["move"]] * 2},
    }
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, again, other = (policy.query(shown, seeds)["arm"].tolist() for seeds in ([1, 2], [1, 2], [2, 1]))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == again != other
