import json

import pytest

from isaaclab_arena.cli.main import main
from tests.analysis.recorded_runs import write_run


def test_the_number_of_pairs_is_told_for_outcomes_that_agree_more_or_less(capsys):
    assert main(["plan", "--baseline", "0.35", "--difference", "0.35"]) == 0
    out = capsys.readouterr().out
    assert "35.0 % against 70.0 %, to be found in 80 % of tries:" in out
    assert "other conditions for each policy: 33 episodes of either" in out


def test_the_rate_may_be_that_of_a_run(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"lift": "sssf", "reach": "ff"})
    assert main(["plan", "--from", str(run), "--job", "lift", "--difference", "-0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["baseline"], document["candidate"]) == (0.75, 0.25)
    assert [each["agreement"] for each in document["paired"]] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--difference", "0.1"], "give the baseline's rate with --baseline, or a run that has it with --from"),
        (["--difference", "0.3", "--baseline", "0.8"], "--difference: from a rate of 0.8 it must lead to another one"),
        (["--difference", "0", "--baseline", "0.8"], "--difference: from a rate of 0.8 it must lead to another one"),
        (["--difference", "0.1", "--baseline", "1.8"], "--baseline: must be 0 to 1, got 1.8"),
        (["--difference", "0.1", "--baseline", "0.8", "--power", "1"], "--power: must be between 0 and 1, got 1"),
    ],
)
def test_mistakes_in_the_request_are_one_sentence(options, message, capsys):
    assert main(["plan", *options]) == 2
    assert message in capsys.readouterr().err


def test_of_several_jobs_one_must_be_named_and_must_measure_success(tmp_path, capsys):
    run = write_run(tmp_path / "run", {"lift": "uu", "reach": "ff"})
    assert main(["plan", "--from", str(run), "--difference", "0.1"]) == 2
    assert "--job: say which of the run's jobs: lift, reach" in capsys.readouterr().err
    assert main(["plan", "--from", str(run), "--job", "lift", "--difference", "0.1"]) == 2
    assert "--job: 'lift' does not measure success" in capsys.readouterr().err
