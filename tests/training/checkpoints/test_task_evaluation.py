import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.config import default_document, merged, read_training, task_document
from isaaclab_arena.training.learner import environment_job
from isaaclab_arena.training.training_run import evaluation_jobs
from tests.training.learning import small_config


def test_a_motion_is_learned_from_anywhere_and_judged_from_its_beginning():
    config = read_training(merged(default_document(), task_document("track_motion")), task="track_motion", source="")
    (job,) = evaluation_jobs(config).jobs
    assert job.environment_args["start"] == "beginning"
    assert environment_job(config).environment_config.start == "anywhere"


def test_evaluation_meets_episodes_that_training_does_not():
    config = small_config("evaluation.num_episodes=7", "evaluation.num_envs=3")
    (job,) = evaluation_jobs(config).jobs
    assert (job.num_episodes, job.num_envs, job.seed) == (7, 3, 10_000)
    assert config.agent.seed == 42


def test_a_mistake_is_told_in_words_of_the_training():
    with pytest.raises(ConfigError, match=r"^env\.strat: .* did you mean 'start'"):
        environment_job(small_config("env.strat=hanging"))
    with pytest.raises(ConfigError, match=r"^environment: no environment called 'cartpol'"):
        environment_job(small_config("environment=cartpol"))
