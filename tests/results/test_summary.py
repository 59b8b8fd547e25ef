import dataclasses
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from isaaclab_arena.results.console import MAX_JOBS_SHOWN, print_summary
from isaaclab_arena.results.merge import LATER_COLUMNS, merge_results, stale_tables, write_tables
from isaaclab_arena.storage.reports import RESULTS_FILE, ReportedStatus, tables_are_current
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report


def shown(directory: Path) -> str:
    stream = io.StringIO()
    print_summary(merge_results(directory), directory, Console(file=stream, width=140))
    return stream.getvalue()


def test_a_failed_job_names_its_rank_its_cause_and_the_traceback(tmp_path):
    write_plan(tmp_path, planned(rank=2))
    failure = {"status": ReportedStatus.FAILED, "error": "ValueError: no", "traceback_file": "lift/traceback.txt"}
    write_report(tmp_path, report(rank=2, **failure))
    assert "failed: job 'lift' on rank 2: ValueError: no (traceback in lift/traceback.txt)" in shown(tmp_path)


def test_missing_episodes_are_named(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss-s-sssss"))
    assert "missing: job 'lift' on rank 0 lacks 2 episodes (2, 4)" in shown(tmp_path)


def test_a_rate_that_leaves_episodes_out_is_marked_and_bounded(tmp_path):
    """Three successes and six failures are known; one error and ten missing could be either."""
    write_plan(tmp_path, planned(num_episodes=20))
    write_lines(tmp_path, commit_lines("sssffffffe"))
    write_report(tmp_path, report())
    text = shown(tmp_path)
    assert "33.3 [12.1, 64.6]*" in text
    assert "1 errors and 10 missing episodes do not count" in text
    assert "15.0 % if they are counted as failures, 70.0 % as successes" in text


def test_a_job_limited_by_steps_says_how_many_episodes_were_cut(tmp_path):
    write_plan(tmp_path, planned(num_episodes=None, num_steps=50))
    write_lines(tmp_path, commit_lines("sss"))
    write_report(tmp_path, report(cut_episodes=7))
    assert "7 episodes were under way at its last step" in shown(tmp_path)


def test_a_job_limited_by_steps_in_which_no_episode_ended_says_so(tmp_path):
    write_plan(tmp_path, planned(num_episodes=None, num_steps=5))
    write_report(tmp_path, report(cut_episodes=4))
    assert "job 'lift': no episode ended within its control steps, so nothing is rated; 4 were under way" in shown(
        tmp_path
    )


def test_episodes_that_count_in_place_of_an_error_are_told_of(tmp_path):
    write_plan(tmp_path, planned(num_episodes=3))
    write_lines(tmp_path, commit_lines("ees"))
    write_lines(tmp_path, [dataclasses.replace(line, attempt=2) for line in commit_lines("ss")])
    write_report(tmp_path, report())
    assert "2 episodes count that had ended in an error before and were run again (--retry_errors)" in shown(tmp_path)


def test_episodes_that_were_solved_where_they_started_are_counted_apart(tmp_path):
    write_plan(tmp_path, planned())
    solved = [dataclasses.replace(each, termination="solved_at_start") for each in commit_lines("eee")]
    write_lines(tmp_path, [*solved, *commit_lines("fffffff", first=3)])
    write_report(tmp_path, report())
    assert "job 'lift': 3 of 10 episodes were solved where they started" in shown(tmp_path)


@pytest.mark.parametrize(("outcomes", "is_said"), [("ff", True), ("uu", True), ("f", False), ("ee", False)])
def test_a_job_says_when_a_fifth_of_its_episodes_end_in_their_first_step(tmp_path, outcomes, is_said):
    write_plan(tmp_path, planned())
    short = [dataclasses.replace(each, episode_length=1) for each in commit_lines(outcomes)]
    write_lines(tmp_path, [*short, *commit_lines("s" * (10 - len(short)), first=len(short))])
    write_report(tmp_path, report())
    assert ("job 'lift': 2 of 10 episodes ended in their first step" in shown(tmp_path)) is is_said


def test_where_doing_nothing_succeeds_the_rates_of_that_environment_are_to_be_read_beside_it(tmp_path):
    alike = {"environment_args": {"object": "mug"}}
    write_plan(
        tmp_path,
        planned("nothing", policy_type="zero_action", **alike),
        planned("mine", index=1, policy_type="scripted", **alike),
        planned("other", index=2, policy_type="scripted"),
    )
    for name in ("nothing", "mine", "other"):
        write_lines(tmp_path, commit_lines("ssffffffff", job=name))
        write_report(tmp_path, report(job=name))
    line = (
        "job 'nothing': a policy that does nothing succeeds in 2 of 10 episodes of its environment; read the rates of"
    )
    assert f"{line} mine beside that\n" in shown(tmp_path)


def test_many_jobs_beside_one_that_does_nothing_are_counted_and_jobs_that_do_nothing_either_are_not(tmp_path):
    names = ["nothing", "idle", *(f"step_{number}" for number in range(8))]
    for name in names:
        write_lines(tmp_path, commit_lines("sfffffffff", job=name))
        write_report(tmp_path, report(job=name))
    types = dict.fromkeys(names, "scripted") | {"nothing": "zero_action", "idle": "zero_action"}
    write_plan(tmp_path, *(planned(name, index=at, policy_type=types[name]) for at, name in enumerate(names)))
    told = "of its environment; read the rates of step_0, step_1, step_2, step_3, step_4 and 3 others beside that\n"
    assert shown(tmp_path).count(told) == 2


def test_what_ranks_have_noticed_of_a_job_is_said_once(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ffffffffff"))
    for rank in (0, 1):
        write_report(tmp_path, report(rank=rank, remarks=("it was told something else",)))
    assert shown(tmp_path).count("* job 'lift': it was told something else\n") == 1


def test_a_complete_job_needs_no_caveat(tmp_path):
    write_plan(tmp_path, planned(policy_type="scripted"))
    write_lines(tmp_path, commit_lines("ssssssssff"))
    write_report(tmp_path, report())
    assert "*" not in shown(tmp_path)


def test_tables_are_current_until_a_rank_writes_again(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss"))
    assert not tables_are_current(tmp_path)
    write_tables(tmp_path, merge_results(tmp_path))
    assert tables_are_current(tmp_path)
    write_lines(tmp_path, commit_lines("s", first=2))
    # The clock was set back in between: what is new looks older than the tables.
    for commit_file in tmp_path.glob("lift/*.jsonl"):
        os.utime(commit_file, ns=(0, 0))
    assert not tables_are_current(tmp_path)


def test_tables_that_are_half_written_are_not_current(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss"))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    assert stale_tables(tmp_path, merged) == []
    (tmp_path / "results.csv").unlink()
    assert stale_tables(tmp_path, merged) == [tmp_path / "results.csv"]
    (tmp_path / RESULTS_FILE).write_text("{")
    assert not tables_are_current(tmp_path)


def test_tables_of_a_version_that_counted_no_pictures_are_what_a_merge_gives(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss"))
    write_report(tmp_path, report(pictures_drawn=None, pictures_looked_at=None))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, dataclasses.replace(merged, jobs=merged.jobs.drop(columns=LATER_COLUMNS)))
    assert stale_tables(tmp_path, merged) == []
    (tmp_path / "timing.csv").write_text("name\n")
    assert stale_tables(tmp_path, merged) == [tmp_path / "timing.csv"]


def test_results_of_a_version_that_named_datasets_on_other_nodes_are_what_a_merge_gives(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss"))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    results = tmp_path / "results.json"
    assert "elsewhere" not in results.read_text()
    results.write_text(results.read_text().replace('  "sources"', '  "elsewhere": [],\n  "sources"'))
    assert stale_tables(tmp_path, merged) == []
    results.write_text(results.read_text().replace('"elsewhere": []', '"elsewhere": [{}]'))
    assert stale_tables(tmp_path, merged) == [results]


def test_tables_that_lack_pictures_which_were_counted_are_stale(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ss"))
    write_report(tmp_path, report(pictures_drawn=8, pictures_looked_at=1))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, dataclasses.replace(merged, jobs=merged.jobs.drop(columns=LATER_COLUMNS)))
    assert {path.name for path in stale_tables(tmp_path, merged)} == {"timing.csv", "timing.parquet", "results.json"}


def test_a_run_of_very_many_jobs_shows_the_first_of_them(tmp_path):
    jobs = [planned(f"lift{index}", index=index, num_episodes=1) for index in range(MAX_JOBS_SHOWN + 3)]
    write_plan(tmp_path, *jobs)
    for job in jobs:
        (tmp_path / job.name).mkdir()
        write_lines(tmp_path, commit_lines("s", job=job.name))
    text = shown(tmp_path)
    assert f"lift{MAX_JOBS_SHOWN - 1} " in text
    assert f"lift{MAX_JOBS_SHOWN} " not in text
    assert "... and 3 jobs more, all of which are in results.csv" in text
