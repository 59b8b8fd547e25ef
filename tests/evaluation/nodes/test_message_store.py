import pytest
from torch._C._distributed_c10d import HashStore

from isaaclab_arena.evaluation.nodes.message_store import MessageStore, StoreLostError


class Store:
    """Answers as torch's store does, until it goes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.has_gone = False
        self.num_questions = 0

    def set(self, key: str, value: str) -> None:
        self._answer()
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def _answer(self) -> None:
        self.num_questions += 1
        if self.has_gone:
            raise RuntimeError("Connection reset by peer\nsome frames")


def test_what_a_rank_says_of_itself_last_is_heard():
    store = HashStore()
    speaker, listener = MessageStore(store), MessageStore(store)
    assert listener.status(1) is None
    speaker.publish_status(1, "at work")
    speaker.publish_status(1, "done")
    assert listener.status(1) == "done"


def test_messages_are_received_once_and_in_order():
    store = HashStore()
    sender, reader = MessageStore(store), MessageStore(store)
    for number, message in enumerate(["a", "b"]):
        sender.send(1, number, message)
    assert list(reader.received(1)) == ["a", "b"]
    assert list(reader.received(1)) == []
    sender.send(1, 2, "c")
    assert list(reader.received(1)) == ["c"]
    assert list(reader.received(2)) == []


def test_whoever_goes_on_for_a_reader_gets_what_it_had_not_put_away():
    store = HashStore()
    for number, message in enumerate(["a", "b", "c"]):
        MessageStore(store).send(1, number, message)
    messages = MessageStore(store).received(1)
    assert [next(messages), next(messages)] == ["a", "b"]
    assert list(MessageStore(store).received(1)) == ["b", "c"]


def test_a_store_that_has_gone_is_asked_once():
    store = Store()
    messages = MessageStore(store)  # pyright: ignore[reportArgumentType]  a fake
    messages.publish_status(0, "at work")
    store.has_gone = True
    for _ in range(2):
        with pytest.raises(StoreLostError, match=r"^Connection reset by peer$"):
            messages.status(0)
    assert messages.is_lost
    assert store.num_questions == 2
