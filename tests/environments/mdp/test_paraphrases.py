"""Paraphrases say the task in other words, from near to far, and nothing else."""

import pytest

from isaaclab_arena.environments.variations.catalogue import check_paraphrases, word_distance
from isaaclab_arena.errors import ConfigError

OWN = "pick up the cube and lift it"


def test_the_distance_is_the_share_of_words_that_only_one_of_them_has():
    assert word_distance("open the drawer", "Open the drawer!") == 0.0
    assert word_distance("open the drawer", "please open the drawer") == 0.25
    assert word_distance("open the drawer", "pull it") == 1.0


def test_paraphrases_from_near_to_far_are_taken():
    check_paraphrases(OWN, ["please pick up the cube and lift it", "grab the cube and lift it", "raise that block"])
    check_paraphrases(OWN, [])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["pick up the cube and lift it, level 3"], "tells more than 'pick up the cube and lift it' does: 3, level"),
        (["paraphrase: lift the cube"], "tells more than .* does: paraphrase"),
        (["lift the cube in two seconds"], "does: two"),
        (["lift the cube by 10cm"], "does: 10"),
        (["lift it, and pick the cube up"], "has the words of"),
        (["raise that block", "please pick up the cube and lift it"], "is nearer to .* order them from near to far"),
    ],
    ids=str,
)
def test_one_that_tells_of_the_change_or_changes_nothing_or_is_out_of_order_is_refused(said, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_paraphrases(OWN, said)
    assert refused.value.problems[0].key == "paraphrases"


def test_a_number_that_the_task_itself_says_is_no_telltale():
    check_paraphrases("stack the two cubes", ["please stack the two cubes"])
