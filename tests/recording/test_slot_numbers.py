from isaaclab_arena.recording.arrays import SlotNumbers
from tests.fakes import CoinConfig, CoinEnvironment


def test_env_slots_are_numbered_through_the_environments_of_a_job():
    first, second, stranger = (CoinEnvironment(CoinConfig(), size) for size in (3, 2, 4))
    slots = SlotNumbers([first, second])
    assert [slots.of(first, env_id) for env_id in range(3)] == [0, 1, 2]
    assert [slots.of(second, env_id) for env_id in range(2)] == [3, 4]
    assert slots.of(stranger, 1) == 1
