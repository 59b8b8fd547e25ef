from isaaclab_arena.distributed.devices import describe_variables, narrow_gpus, visible_devices


def test_what_a_process_sees_is_narrowed_and_told():
    environ = {"MUJOCO_GL": "egl", "OTHER": ""}
    assert visible_devices(environ) is None
    narrow_gpus("2,3", environ)
    assert visible_devices(environ) == "2,3"
    assert describe_variables(environ) == {
        "CUDA_VISIBLE_DEVICES": "'2,3'",
        "MUJOCO_GL": "'egl'",
        "MUJOCO_EGL_DEVICE_ID": "none",
        "OMP_NUM_THREADS": "none",
    }
