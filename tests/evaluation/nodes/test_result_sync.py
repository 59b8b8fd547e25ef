"""A courier on one machine and a collector on another, with folders of their own and a store between them."""

import logging
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from isaaclab_arena.distributed.mailbox import Mailbox
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.nodes.file_parts import MAX_PART_BYTES, FilePart
from isaaclab_arena.evaluation.nodes.result_receiver import Collector
from isaaclab_arena.evaluation.nodes.result_sender import Courier

ROWS = "episode_results_rank1.jsonl"
RECEIVED = "episode_results_rank1_received.jsonl"


class Machines:
    """Rank 0 at home and rank 1 away."""

    def __init__(self, folder: Path) -> None:
        self.home, self.away = folder / "home", folder / "away"
        self.mailbox = Mailbox(HashStore(), "")
        (self.away / "logs").mkdir(parents=True)
        (self.away / "lift").mkdir()

    def courier(self) -> Courier:
        return Courier(self.mailbox, rank=1, output_directory=self.away, sends_files=True, interval_s=0.01)

    def collector(self) -> Collector:
        return Collector(self.mailbox, senders=[1], jobs=["lift"], output_directory=self.home)

    def write(self, name: str, content: bytes) -> None:
        with (self.away / "lift" / name).open("ab") as stream:
            stream.write(content)

    def send(self) -> None:
        with self.courier() as courier:
            courier.follow("lift")

    def received(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.glob("*/*")}


@pytest.fixture
def machines(tmp_path) -> Machines:
    return Machines(tmp_path)


def test_rows_reports_and_tracebacks_arrive_and_recordings_stay(machines):
    for name, content in (
        (ROWS, b"row\n"), ("job_report_rank1.json", b"{}"), ("traceback_rank1.txt", b"why"),
        ("dataset_lift_rank1.hdf5", b"much"), ("episode_results_rank2.jsonl", b"another rank's\n"),
    ):  # fmt: skip
        machines.write(name, content)
    machines.send()
    machines.collector().collect()
    assert machines.received() == {
        f"lift/{RECEIVED}": b"row\n",
        "lift/job_report_rank1.json": b"{}",
        "lift/traceback_rank1.txt": b"why",
    }


def test_a_file_that_grows_arrives_in_parts_of_any_size(machines):
    content = "ä row\n".encode() * (MAX_PART_BYTES // 3)
    collector = machines.collector()
    with machines.courier() as courier:
        courier.follow("lift")
        for start in range(0, len(content), 100_001):
            machines.write(ROWS, content[start : start + 100_001])
            collector.collect()
    collector.collect()
    assert machines.received() == {f"lift/{RECEIVED}": content}


def test_who_hears_that_a_rank_has_finished_finds_all_that_it_has_written(machines):
    machines.write(ROWS, b"row\n")
    (machines.away / "logs" / "rank1.status.json").write_text("finished")
    machines.send()
    assert machines.mailbox.status(1) == "finished"
    machines.collector().collect()
    assert machines.received() == {f"lift/{RECEIVED}": b"row\n"}


def test_a_collector_that_takes_over_ends_with_the_same_file(machines, monkeypatch):
    machines.write(ROWS, b"row\n" * MAX_PART_BYTES)
    machines.send()
    letters = machines.mailbox.letters(1)
    FilePart.of_letter(next(letters))
    machines.collector().collect()
    assert machines.received() == {f"lift/{RECEIVED}": b"row\n" * MAX_PART_BYTES}


def test_what_cannot_be_written_stays_in_the_mailbox(machines):
    machines.write(ROWS, b"row\n")
    machines.send()
    machines.home.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot write"):
        machines.collector().collect()
    machines.home.unlink()
    machines.collector().collect()
    assert machines.received() == {f"lift/{RECEIVED}": b"row\n"}


@pytest.mark.parametrize(
    ("job", "file"),
    [
        ("../lift", ROWS),
        ("other", ROWS),
        ("lift", "../../x"),
        ("lift", "episode_results_rank0.jsonl"),
        ("lift", "x.h5"),
    ],
)
def test_a_letter_that_names_any_other_file_is_left_out(machines, caplog, job, file):
    part = FilePart(job=job, file=file, offset=0, content=b"mischief")
    machines.mailbox.post(1, 0, part.as_letter())
    machines.mailbox.post(1, 1, "no letter at all")
    with caplog.at_level(logging.WARNING):
        machines.collector().collect()
    assert machines.received() == {}
    assert caplog.text.count("a letter of rank 1 is left out") == 2


def test_a_rank_whose_results_no_longer_arrive_says_once_where_they_are(machines, caplog):
    class GoneStore:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

    machines.mailbox = Mailbox(GoneStore(), "")  # pyright: ignore[reportArgumentType]  a fake
    machines.write(ROWS, b"row\n")
    with caplog.at_level(logging.WARNING):
        machines.send()
    assert caplog.text.count("rank 0 cannot be reached any more (Broken pipe)") == 1
    assert str(machines.away) in caplog.text
