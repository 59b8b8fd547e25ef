"""On a GPU training learns what it learns on the CPU, to the last weight, as both are computed by the CPU here."""

from collections.abc import Iterator

import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.training.checkpoints import packed, unpacked
from isaaclab_arena.training.config import default_document, merged, overrides_document, read_training, task_document
from isaaclab_arena.training.learner import Learner, learned_state, named_digests
from tests.pretend_backend import pretended_environments, there
from tests.pretend_gpu import GPU, PretendGpu
from tests.training.learner.test_learner import GRPO, RECURRENT
from tests.training.learning import SMALL

TASKS = ("cartpole", "reach", pytest.param("track_motion", marks=pytest.mark.slow))


@pytest.fixture(autouse=True)
def _physics_on_the_gpu(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    autocast = torch.amp.autocast
    # rsl_rl asks for mixed precision, which is off, and torch knows none on the pretended device.
    monkeypatch.setattr(torch.amp, "autocast", lambda device_type, **options: autocast("cpu", **options))
    with pretended_environments():
        yield


def learner(*words: str, task: str = "cartpole", backend: str = "warp") -> Learner:
    """Return a learner whose env slots and networks are on the GPU, or both on the CPU with the backend ``mujoco``."""
    base = merged(default_document(), task_document(task), {**SMALL, "environment": there(task)})
    words = (f"env.backend={backend}", "num_envs=4", "agent.num_steps_per_env=4", *words)
    config = read_training(merged(base, overrides_document(words, base)), task=task, source="test")
    context = DistributedContext() if backend == "mujoco" else DistributedContext(device=GPU)
    return Learner(config, context, num_threads=1)


def digests(trained: Learner) -> dict[str, int]:
    return named_digests(learned_state(trained.algorithm))


def assert_learned_the_same(told: dict[str, float], expected: dict[str, float]) -> None:
    # The times of a rank are its own.
    own, others = ({name: value for name, value in each.items() if "Perf" not in name} for each in (told, expected))
    assert own == others


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learned_on_a_gpu_as_on_the_cpu(task):
    here, there = (learner("agent.init_at_random_ep_len=true", task=task, backend=name) for name in ("mujoco", "warp"))
    assert there.environment.get_observations().device == GPU
    torch.manual_seed(0)
    expected = here.iterate()
    torch.manual_seed(0)
    assert_learned_the_same(there.iterate(), expected)
    assert there.environment.episode_length_buf.device == GPU
    assert digests(there) == digests(here)


@pytest.mark.parametrize(
    "words",
    [pytest.param((), marks=pytest.mark.slow), pytest.param(GRPO, marks=pytest.mark.slow), RECURRENT],
    ids=["ppo", "grpo", "recurrent"],
)
def test_training_on_a_gpu_is_taken_up_again_as_if_nothing_had_happened(words):
    first, again = learner(*words), learner(*words)
    first.iterate()
    learned = unpacked(packed({**first.algorithm.save(), "iter": first.iterations}))
    assert again.load(learned, unpacked(packed(first.rank_state())))
    state = torch.get_rng_state()
    expected = first.iterate()
    torch.set_rng_state(state)
    assert_learned_the_same(again.iterate(), expected)
    assert digests(again) == digests(first)


@pytest.mark.parametrize("num_mini_batches", [1, 4])
def test_grpo_reads_its_losses_back_once_an_iteration_however_many_mini_batches_it_learns_from(gpu, num_mini_batches):
    there = learner(*GRPO, "agent.algorithm.kl_coef=0.1", f"agent.algorithm.num_mini_batches={num_mini_batches}")
    there._collect()
    gpu.waits.clear()
    there.algorithm.update()
    # Numbers that go to the GPU, such as the normaliser's count of samples, wait for nothing that was computed there.
    reads = [wait.what for wait in gpu.waits if not wait.what.endswith("to the GPU")]
    assert reads == ["tolist"], "the CPU waits where the losses are told, and nowhere else"
