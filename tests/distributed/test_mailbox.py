import pytest
from torch._C._distributed_c10d import HashStore

from isaaclab_arena.distributed.mailbox import Mailbox, MailboxLostError


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
    speaker, listener = Mailbox(store, "run/"), Mailbox(store, "run/")
    assert listener.status(1) is None
    speaker.say_status(1, "at work")
    speaker.say_status(1, "done")
    assert listener.status(1) == "done"
    assert Mailbox(store, "another run/").status(1) is None


def test_letters_are_taken_once_and_in_order():
    store = HashStore()
    sender, reader = Mailbox(store, ""), Mailbox(store, "")
    for number, letter in enumerate(["a", "b"]):
        sender.post(1, number, letter)
    assert list(reader.letters(1)) == ["a", "b"]
    assert list(reader.letters(1)) == []
    sender.post(1, 2, "c")
    assert list(reader.letters(1)) == ["c"]
    assert list(reader.letters(2)) == []


def test_whoever_goes_on_for_a_reader_gets_what_it_had_not_put_away():
    store = HashStore()
    for number, letter in enumerate(["a", "b", "c"]):
        Mailbox(store, "").post(1, number, letter)
    letters = Mailbox(store, "").letters(1)
    assert [next(letters), next(letters)] == ["a", "b"]
    assert list(Mailbox(store, "").letters(1)) == ["b", "c"]


def test_a_store_that_has_gone_is_asked_once():
    store = Store()
    mailbox = Mailbox(store, "")  # pyright: ignore[reportArgumentType]  a fake
    mailbox.say_status(0, "at work")
    store.has_gone = True
    for _ in range(2):
        with pytest.raises(MailboxLostError, match=r"^Connection reset by peer$"):
            mailbox.status(0)
    assert mailbox.is_lost
    assert store.num_questions == 2
