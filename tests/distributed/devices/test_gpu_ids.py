import pytest

from isaaclab_arena.distributed.devices import joined_gpu_ids, select_gpus
from isaaclab_arena.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0 1", ("0", "1")),
        ("0,1", ("0", "1")),
        ("[0, 1]", ("0", "1")),
        ("3 0", ("3", "0")),
        ("2", ("2",)),
        ("all", ("0", "1", "2", "3")),
        ("none", ()),
        ("None", ()),
        ("", ()),
        ("[]", ()),
    ],
)
def test_every_spelling_chooses_its_gpus_in_the_order_given(text, ids):
    selection = select_gpus(text, mask=None, visible_gpus=4)
    assert selection.ids == ids
    assert selection.note is None


@pytest.mark.parametrize(
    ("mask", "visible", "text", "ids"),
    [
        ("4,6,7", 3, "0 2", ("4", "7")),
        ("4,6,7", 3, "all", ("4", "6", "7")),
        ("GPU-5ebe9087,GPU-3f4c", 2, "1", ("GPU-3f4c",)),
        ("MIG-b6b2,MIG-7a01", 2, "1,0", ("MIG-7a01", "MIG-b6b2")),
        (" 5 , ,6,", 2, "all", ("5", "6")),
        ("2,9", 1, "all", ("2",)),
    ],
)
def test_indices_count_what_cuda_visible_devices_shows(mask, visible, text, ids):
    assert select_gpus(text, mask=mask, visible_gpus=visible).ids == ids


@pytest.mark.parametrize("mask", ["", " , ", "-1"])
@pytest.mark.parametrize("text", ["all", "0 1"])
def test_a_mask_that_hides_every_gpu_means_the_cpu_and_says_so(mask, text):
    selection = select_gpus(text, mask=mask, visible_gpus=0)
    assert selection.ids == ()
    assert "on the CPU" in (selection.note or "")


def test_all_gpus_of_a_machine_without_any_is_one_process_on_the_cpu():
    selection = select_gpus("all", mask=None, visible_gpus=0)
    assert selection.ids == ()
    assert "no GPU is visible" in (selection.note or "")


@pytest.mark.parametrize(
    ("text", "mask", "visible", "message"),
    [
        ("0", None, 0, "GPU 0 does not exist; no GPU is visible here"),
        ("1", None, 1, "GPU 1 does not exist; there is 0$"),
        ("0 5 4", "2,3", 2, r"GPUs 5, 4 do not exist; there are 0 to 1 \(CUDA_VISIBLE_DEVICES is '2,3'\)"),
        ("1 0 1", None, 2, "GPU 1 is named twice"),
        ("gpu0", None, 2, "'gpu0' is no GPU index"),
        ("-1", None, 2, "'-1' is no GPU index"),
        ("0 all", None, 2, "'all' is no GPU index"),
        ("\u0661", None, 2, "'\u0661' is no GPU index"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_what_exists(text, mask, visible, message):
    with pytest.raises(ConfigError, match=f"--gpu_ids: {message}"):
        select_gpus(text, mask=mask, visible_gpus=visible)


@pytest.mark.parametrize(
    ("typed", "joined"),
    [
        (["--gpu-ids", "0", "1", "--seed", "3"], ["--gpu_ids=0 1", "--seed", "3"]),
        (["--gpu_ids", "0", "1", "lift_object"], ["--gpu_ids=0 1", "lift_object"]),
        (["--gpu-ids", "[0,", "1]", "agent.gamma=1"], ["--gpu_ids=[0, 1]", "agent.gamma=1"]),
        (["--gpu-ids=0", "1"], ["--gpu_ids=0 1"]),
        (["--gpu-ids", "all", "reach"], ["--gpu_ids=all", "reach"]),
        (["--gpu-ids", "None"], ["--gpu_ids=none"]),
        (["--gpu-ids", ""], ["--gpu_ids="]),
        (["--gpu-ids", "-1"], ["--gpu_ids=-1"]),
        (["reach", "--seed", "0", "1"], ["reach", "--seed", "0", "1"]),
    ],
)
def test_the_option_takes_its_indices_and_no_other_word(typed, joined):
    assert joined_gpu_ids(typed) == joined


@pytest.mark.parametrize("typed", [["--gpu-ids"], ["--gpu-ids", "--seed", "3"]])
def test_the_option_without_any_is_refused(typed):
    with pytest.raises(ConfigError, match="--gpu_ids: give indices such as 0 1, all or none"):
        joined_gpu_ids(typed)
