from benchmarks.gr00t.policies import swapped


def test_red_and_blue_are_exchanged():
    assert swapped("put the red cube on the blue one") == "put the blue cube on the red one"
