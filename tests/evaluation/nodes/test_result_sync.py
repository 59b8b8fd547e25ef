"""A sender on one node and a receiver on another, with directories of their own and a message store between them."""

import logging
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.nodes.file_parts import MAX_PART_BYTES, FilePart
from isaaclab_arena.evaluation.nodes.message_store import MessageStore
from isaaclab_arena.evaluation.nodes.result_receiver import ResultReceiver
from isaaclab_arena.evaluation.nodes.result_sender import ResultSender

LINES = "episode_results_rank1.jsonl"
RECEIVED = "episode_results_rank1_received.jsonl"


class Nodes:
    """Rank 0 at home and rank 1 away."""

    def __init__(self, directory: Path) -> None:
        self.home, self.away = directory / "home", directory / "away"
        self.store = MessageStore(HashStore())
        (self.away / "logs").mkdir(parents=True)
        (self.away / "lift").mkdir()

    def sender(self) -> ResultSender:
        return ResultSender(self.store, rank=1, output_directory=self.away, sends_files=True, interval_s=0.01)

    def receiver(self) -> ResultReceiver:
        return ResultReceiver(self.store, senders=[1], jobs=["lift"], output_directory=self.home)

    def write(self, name: str, content: bytes) -> None:
        with (self.away / "lift" / name).open("ab") as stream:
            stream.write(content)

    def send(self) -> None:
        with self.sender() as sender:
            sender.follow("lift")

    def received(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.glob("*/*")}


@pytest.fixture
def nodes(tmp_path) -> Nodes:
    return Nodes(tmp_path)


def test_lines_reports_and_tracebacks_arrive_and_recordings_stay(nodes):
    for name, content in (
        (LINES, b"line\n"), ("job_report_rank1.json", b"{}"), ("traceback_rank1.txt", b"why"),
        ("dataset_lift_rank1.hdf5", b"much"), ("episode_results_rank2.jsonl", b"another rank's\n"),
    ):  # fmt: skip
        nodes.write(name, content)
    nodes.send()
    nodes.receiver().receive()
    assert nodes.received() == {
        f"lift/{RECEIVED}": b"line\n",
        "lift/job_report_rank1.json": b"{}",
        "lift/traceback_rank1.txt": b"why",
    }


def test_a_file_that_grows_arrives_in_parts_of_any_size(nodes):
    content = "ä line\n".encode() * (MAX_PART_BYTES // 3)
    receiver = nodes.receiver()
    with nodes.sender() as sender:
        sender.follow("lift")
        for start in range(0, len(content), 100_001):
            nodes.write(LINES, content[start : start + 100_001])
            receiver.receive()
    receiver.receive()
    assert nodes.received() == {f"lift/{RECEIVED}": content}


def test_who_hears_that_a_rank_has_finished_finds_all_that_it_has_written(nodes):
    nodes.write(LINES, b"line\n")
    (nodes.away / "logs" / "rank1.status.json").write_text("finished")
    nodes.send()
    assert nodes.store.status(1) == "finished"
    nodes.receiver().receive()
    assert nodes.received() == {f"lift/{RECEIVED}": b"line\n"}


def test_a_receiver_that_takes_over_ends_with_the_same_file(nodes):
    nodes.write(LINES, b"line\n" * MAX_PART_BYTES)
    nodes.send()
    messages = nodes.store.received(1)
    FilePart.of_message(next(messages))
    nodes.receiver().receive()
    assert nodes.received() == {f"lift/{RECEIVED}": b"line\n" * MAX_PART_BYTES}


def test_what_cannot_be_written_stays_in_the_store(nodes):
    nodes.write(LINES, b"line\n")
    nodes.send()
    nodes.home.write_text("a file where the directory should be")
    with pytest.raises(StorageError, match="cannot write"):
        nodes.receiver().receive()
    nodes.home.unlink()
    nodes.receiver().receive()
    assert nodes.received() == {f"lift/{RECEIVED}": b"line\n"}


@pytest.mark.parametrize(
    ("job", "file"),
    [
        ("../lift", LINES),
        ("other", LINES),
        ("lift", "../../x"),
        ("lift", "episode_results_rank0.jsonl"),
        ("lift", "x.h5"),
    ],
)
def test_a_message_that_names_any_other_file_is_left_out(nodes, caplog, job, file):
    part = FilePart(job=job, file=file, offset=0, content=b"mischief")
    nodes.store.send(1, 0, part.as_message())
    nodes.store.send(1, 1, "no message at all")
    with caplog.at_level(logging.WARNING):
        nodes.receiver().receive()
    assert nodes.received() == {}
    assert caplog.text.count("a message of rank 1 is left out") == 2


def test_a_rank_whose_results_no_longer_arrive_says_once_where_they_are(nodes, caplog):
    class GoneStore:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

    nodes.store = MessageStore(GoneStore())  # pyright: ignore[reportArgumentType]  a fake
    nodes.write(LINES, b"line\n")
    with caplog.at_level(logging.WARNING):
        nodes.send()
    assert caplog.text.count("rank 0 cannot be reached any more (Broken pipe)") == 1
    assert str(nodes.away) in caplog.text
