import json

from isaaclab_arena.storage.reports import (
    JobReport,
    ReportedStatus,
    Reproducible,
    StartUp,
    read_job_reports,
    write_job_report,
)


def report(rank: int, **changes) -> JobReport:
    values = {
        "job": "lift",
        "rank": rank,
        "device": "cpu",
        "status": ReportedStatus.COMPLETED,
        "started_at": "a",
        "ended_at": "b",
        "wall_s": 2.0,
        "reproducible": Reproducible.BITWISE,
    }
    return JobReport(**{**values, **changes})


def test_reports_come_back_by_rank(tmp_path):
    for rank in (10, 2):
        write_job_report(tmp_path, report(rank))
    assert read_job_reports(tmp_path, "lift") == ([report(2), report(10)], [])


def test_a_report_that_does_not_say_how_the_job_began_is_read(tmp_path):
    path = write_job_report(tmp_path, report(0))
    document = json.loads(path.read_text())
    del document["start_up"]
    path.write_text(json.dumps(document))
    assert read_job_reports(tmp_path, "lift") == ([report(0)], [])


def test_a_report_says_how_the_job_began(tmp_path):
    began = report(0, start_up=StartUp(import_s=1.5, compile_s=14.0, first_step_s=0.5))
    write_job_report(tmp_path, began)
    assert read_job_reports(tmp_path, "lift") == ([began], [])


def test_a_later_report_stands_beside_the_earlier_one(tmp_path):
    failed = report(0, status=ReportedStatus.FAILED, error="no")
    write_job_report(tmp_path, failed)
    later = write_job_report(tmp_path, report(0, attempt=2))
    assert later.name == "job_report_rank0_life1.json"
    assert read_job_reports(tmp_path, "lift")[0] == [failed, report(0, attempt=2)]


def test_an_unreadable_report_is_told_and_the_others_are_read(tmp_path):
    write_job_report(tmp_path, report(0))
    (tmp_path / "job_report_rank1.json").write_text("{")
    reports, problems = read_job_reports(tmp_path, "lift")
    assert reports == [report(0)]
    [(path, problem)] = problems
    assert path.name == "job_report_rank1.json"
    assert "job_report_rank1.json: is not valid JSON" in problem


def test_a_report_of_another_job_is_told_and_does_not_count(tmp_path):
    path = write_job_report(tmp_path, report(0, job="push"))
    assert read_job_reports(tmp_path, "lift") == ([], [(path, f"{path}: is of job 'push'")])


def test_a_report_of_another_run_is_told_and_does_not_count(tmp_path):
    path = write_job_report(tmp_path, report(0, run="theirs"))
    assert read_job_reports(tmp_path, "lift", "ours") == ([], [(path, f"{path}: is of another run")])
    assert read_job_reports(tmp_path, "lift", "theirs")[0] == [report(0, run="theirs")]
    earlier = write_job_report(tmp_path, report(1))
    assert [each.rank for each in read_job_reports(tmp_path, "lift", "ours")[0]] == [1], earlier


def test_that_a_rank_has_begun_counts_until_it_says_how_it_ended(tmp_path):
    begun = [report(rank, status=ReportedStatus.BEGUN) for rank in (0, 1)]
    paths = [write_job_report(tmp_path, each) for each in begun]
    write_job_report(tmp_path, report(1, status=ReportedStatus.BEGUN, attempt=2))
    kept = paths[0].read_bytes()
    ended = report(0)
    assert write_job_report(tmp_path, ended).name == "job_report_rank0.json"
    assert not paths[0].exists()
    assert read_job_reports(tmp_path, "lift")[0] == [ended, begun[1], report(1, status=ReportedStatus.BEGUN, attempt=2)]
    # As a crash between the two leaves it.
    paths[0].write_bytes(kept)
    assert read_job_reports(tmp_path, "lift")[0][:2] == [ended, begun[1]]
