import json

from isaaclab_arena.cli.main import main
from tests.analysis.recorded_runs import write_run


def test_the_best_policy_stands_first(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"bad": "f" * 20, "good": "s" * 20})
    assert main(["leaderboard", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["good", "bad"]
    assert "adjusted by Holm's method for 1 comparisons" in lines[4]


def test_a_program_reads_json(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"bad": "f" * 20, "good": "s" * 20})
    assert main(["leaderboard", str(run), "--json"]) == 0
    assert [place["name"] for place in json.loads(capsys.readouterr().out)["places"]] == ["good", "bad"]


def test_what_cannot_be_compared_has_an_exit_code_of_its_own(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"a": "s-", "b": "ss"})
    assert main(["leaderboard", str(run)]) == 3
    assert "a has 1 episodes to go" in capsys.readouterr().err
