import importlib.util

import pytest

from isaaclab_arena.cli.main import main
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    write_plan(directory, planned(num_episodes=2))
    write_lines(directory, commit_lines("sf"))
    write_report(directory, report())
    return directory


def test_a_run_is_exported_beside_itself_and_stays_as_it_is(run, capsys):
    before = sorted(run.rglob("*"))
    assert main(["export", str(run), "--arena"]) == 0
    assert sorted(run.rglob("*")) == before
    assert sorted(path.name for path in (run.parent / "run_arena").iterdir()) == [
        "arena_experiment_result.json",
        "experiment_manifest.json",
        "lift",
    ]
    assert f"2 episodes of 1 job in {run.parent / 'run_arena'}" in capsys.readouterr().out


def test_an_empty_directory_may_be_named(run, tmp_path):
    (tmp_path / "there").mkdir()
    assert main(["export", str(run), "--arena", "--output", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "lift" / "episode_results_rebuild0.jsonl").is_file()


@pytest.mark.parametrize("kind", ["full", "file", "link", "run"])
def test_nothing_is_written_where_something_is(run, tmp_path, capsys, kind):
    output = run if kind == "run" else tmp_path / "there"
    if kind == "full":
        output.mkdir()
        (output / "thesis.txt").write_text("important")
    elif kind == "file":
        output.write_text("important")
    elif kind == "link":
        output.symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(run), "--arena", "--output", str(output)]) == 2
    assert "--output: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_format_has_to_be_named(run, capsys):
    assert main(["export", str(run)]) == 2
    assert "give the one format to write: --arena" in capsys.readouterr().err


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--arena", "--output", str(tmp_path / "there")]) == 2
    assert "holds no run.json" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_a_run_is_exported_for_lerobot(run, capsys):
    assert main(["export", str(run), "--lerobot"]) == 0
    exported = run.parent / "run_lerobot"
    assert f"{exported / 'eval_info.json'}: episodes 2, jobs 1" in capsys.readouterr().out
    assert (exported / "lift" / "eval_info.json").is_file()


def test_a_run_is_exported_for_tensorboard(run, capsys):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    assert main(["export", str(run), "--tensorboard"]) == 0
    assert f"tensorboard --logdir {run.parent / 'run_tensorboard' / 'tensorboard'}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["wandb", "mlflow", "rerun", "tensorboard"])
def test_a_library_that_is_missing_is_named_with_its_extra(run, capsys, name):
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed here")
    assert main(["export", str(run), f"--{name}"]) == 2
    assert f"--{name}: needs the package {name}; install it with: pip install" in capsys.readouterr().err
    assert not (run.parent / f"run_{name}").exists()


def test_jobs_are_chosen_only_where_a_format_has_files_for_each(run, capsys):
    assert main(["export", str(run), "--lerobot", "--job", "lift"]) == 2
    assert "--job: is for --robomimic and --rerun alone" in capsys.readouterr().err
