import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import EvalOptions
from isaaclab_arena.evaluation.options import Assignment, read_command_line, refuse_unknown

JOBS = ("--eval_jobs_config", "jobs.json")


def read(*arguments: str) -> tuple[EvalOptions, list[str]]:
    return read_command_line(EvalOptions, [*JOBS, *arguments], program="test")


def test_resume_without_a_directory_means_the_run_of_the_same_command():
    assert read("--resume")[0].resume == ""
    assert read("--resume", "--output_dir", "out")[0].resume == ""
    assert read()[0].resume is None


def test_no_arguments_are_a_command_line_that_lacks_its_job_file(capsys):
    with pytest.raises(SystemExit):
        read_command_line(EvalOptions, [], program="test")
    assert "eval_jobs_config" in capsys.readouterr().err


def test_resume_takes_the_directory_that_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").touch()
    assert read("--resume", "out")[0].resume == "out"
    assert read("--resume", "gone/2026-01-01")[0].resume == "gone/2026-01-01"
    assert read("--resume=gone")[0].resume == "gone"


def test_resume_leaves_an_environments_name_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lift_object").mkdir()
    options, rest = read("--resume", "lift_object")
    assert (options.resume, rest) == ("", ["lift_object"])


def test_a_word_after_resume_that_names_no_run_is_refused_as_that():
    options, rest = read("--resume", "outptus")
    with pytest.raises(ConfigError, match="--resume: there is no run in 'outptus'"):
        refuse_unknown(rest, options)


def test_one_directory_may_be_named_in_two_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read("--resume=out", "--output_dir", str(tmp_path / "out"))[0].check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--retry_errors",), "--retry_errors: needs --resume"),
        (("--lease_s", "0"), "--lease_s: must be at least 1.0, got 0.0"),
        (("--policy_batch", "0"), "--policy_batch: must be at least 1, got 0"),
        (("--step_timeout_s=-1",), "--step_timeout_s: must be at least 0.0, got -1.0"),
        (("--assignment", "dinamic"), "--assignment: there is no 'dinamic'; did you mean 'dynamic'?"),
        (("--assignment", "contiguous"), "no 'contiguous'; known are: dynamic, round_robin, split"),
        (("--tracking", "tensorbord"), '--tracking: there is no tracker "tensorbord"; did you mean'),
        (("--resume=a", "--output_dir", "b"), "--resume: names 'a', but --output_dir 'b'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read(*arguments)[0].check()


def test_split_jobs_is_another_word_for_the_assignment_that_splits():
    assert read()[0].mode is Assignment.ROUND_ROBIN
    assert read("--split_jobs")[0].mode is Assignment.SPLIT
    assert read("--assignment", "split")[0].mode is Assignment.SPLIT
    assert read("--split_jobs", "--assignment", "dynamic")[0].mode is Assignment.DYNAMIC


def test_gpus_may_be_listed_as_arena_and_mjlab_users_type_them():
    for spelling in (("--gpu-ids", "0", "1"), ("--gpu_ids=0 1",), ("--gpu_ids", "0", "1")):
        options, rest = read(*spelling, "--seed", "3")
        assert (options.gpu_ids, options.seed, rest) == ("0 1", 3, [])
    assert read("--gpu-ids", "None")[0].gpu_ids == "none"
    assert read("--gpu-ids", "")[0].gpu_ids == ""
    assert read()[0].gpu_ids is None


def test_an_environments_name_may_follow_the_gpus():
    options, rest = read("--gpu-ids", "0", "1", "lift_object")
    assert (options.gpu_ids, rest) == ("0 1", ["lift_object"])


def test_what_may_vary_is_shown_of_jobs_without_a_length_too():
    job = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "num_rebuilds": 3}
    defaults = read("--list_variations")[0].job_defaults()
    assert len(read_jobs({"jobs": [job]}, source="jobs.json", defaults=defaults).jobs) == 1


def test_an_option_under_two_names_is_refused():
    with pytest.raises(
        ConfigError, match="--video_base_dir: is the same option as --output_base_dir; give one of them"
    ):
        read("--output-base-dir", "a", "--video_base_dir", "b")


def test_a_word_that_sets_a_key_of_an_experiment_is_no_run_to_resume():
    options, rest = read("--resume", "runs.a.policy.path=out/model")
    assert (options.resume, rest) == ("", ["runs.a.policy.path=out/model"])


def test_trajectories_cannot_be_recorded_without_a_dataset():
    with pytest.raises(ConfigError, match="--record_trajectories: contradicts --no_dataset"):
        read("--record_trajectories", "--no_dataset")[0].check()


@pytest.mark.parametrize("option", ["cpus_per_rank", "gpus_per_rank", "start_timeout_s"])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "-1e400"])
def test_every_number_of_a_cluster_is_finite(option, text):
    with pytest.raises(ConfigError) as refused:
        read(f"--{option}={text}")[0].check()
    assert str(refused.value) == f"--{option}: {float(text)} is no finite number"
