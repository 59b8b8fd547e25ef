import json

from isaaclab_arena.storage.run.job_reports import (
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
    assert read_job_reports(tmp_path) == ([report(2), report(10)], [])


def test_a_report_that_does_not_say_how_the_job_began_is_read(tmp_path):
    path = write_job_report(tmp_path, report(0))
    document = json.loads(path.read_text())
    del document["start_up"]
    path.write_text(json.dumps(document))
    assert read_job_reports(tmp_path) == ([report(0)], [])


def test_a_report_says_how_the_job_began(tmp_path):
    began = report(0, start_up=StartUp(import_s=1.5, compile_s=14.0, first_step_s=0.5))
    write_job_report(tmp_path, began)
    assert read_job_reports(tmp_path) == ([began], [])


def test_a_later_report_stands_beside_the_earlier_one(tmp_path):
    failed = report(0, status=ReportedStatus.FAILED, error="no")
    write_job_report(tmp_path, failed)
    later = write_job_report(tmp_path, report(0, attempt=2))
    assert later.name == "job_report_rank0_life1.json"
    assert read_job_reports(tmp_path)[0] == [failed, report(0, attempt=2)]


def test_an_unreadable_report_is_told_and_the_others_are_read(tmp_path):
    write_job_report(tmp_path, report(0))
    (tmp_path / "job_report_rank1.json").write_text("{")
    reports, problems = read_job_reports(tmp_path)
    assert reports == [report(0)]
    assert "job_report_rank1.json: is not valid JSON" in problems[0]
