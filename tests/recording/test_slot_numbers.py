from isaaclab_arena.recording.recorder import first_slots
from tests.fakes import CoinConfig, CoinEnvironment


def test_env_slots_are_numbered_through_the_environments_of_a_job():
    first, second = (CoinEnvironment(CoinConfig(), size) for size in (3, 2))
    assert first_slots([first, second]) == {first: 0, second: 3}
