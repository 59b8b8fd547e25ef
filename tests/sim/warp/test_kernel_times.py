import pytest

from isaaclab_arena.sim.threads import KernelLedger, KernelTimes, module_times

LINE = "Module mujoco_warp._src.forward 68fa608 load on device 'cuda:0' took 1500.00 ms"


@pytest.mark.parametrize(
    ("message", "times"),
    [
        (f"{LINE}  (compiled)", KernelTimes(compile_s=1.5)),
        (f"    {LINE}  (cached)", KernelTimes(load_s=1.5)),
        (f"{LINE}  (error)", KernelTimes()),
        ("Warp 1.19.0 initialized:", KernelTimes()),
    ],
)
def test_warp_says_how_long_a_module_took_and_whether_it_was_compiled(message, times):
    assert module_times(message) == times


def test_what_is_reported_adds_up_and_differences_say_what_has_come_since():
    ledger = KernelLedger()
    ledger.add(KernelTimes(compile_s=1.0, wait_s=0.5))
    before = ledger.times()
    ledger.add(KernelTimes(compile_s=2.0, load_s=0.25))
    assert ledger.times() == KernelTimes(compile_s=3.0, load_s=0.25, wait_s=0.5)
    assert ledger.times().since(before) == KernelTimes(compile_s=2.0, load_s=0.25)
    assert ledger.times().total_s == 3.75
