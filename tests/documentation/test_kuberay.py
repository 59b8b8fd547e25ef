"""The description of a run for KubeRay's operator."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documentation.test_slurm_scripts import accepted, given

FILE = Path(__file__).parents[2] / "jobs" / "kuberay" / "rayjob.yaml"


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    document = yaml.safe_load(FILE.read_text())
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    return document["spec"]


def test_every_option_of_its_command_exists(spec):
    pytest.importorskip("ray")
    program, *arguments = shlex.split(spec["entrypoint"])
    assert program == "python"
    assert accepted(arguments)["resume"] == ""


def test_a_rank_fits_on_a_worker_and_each_has_its_own(spec):
    options = given(shlex.split(spec["entrypoint"])[1:])
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert (float(options["gpus_per_rank"]), float(options["cpus_per_rank"])) == (
        float(container["resources"]["limits"]["nvidia.com/gpu"]),
        float(container["resources"]["limits"]["cpu"]),
    )
    assert int(options["num_ranks"]) == workers["maxReplicas"]


def test_what_the_command_names_is_mounted_where_it_is_needed(spec):
    cluster = spec["rayClusterSpec"]
    head, worker = (each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]))
    for pod in (head, worker):
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    options = given(shlex.split(spec["entrypoint"])[1:])
    paths = {mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]}
    assert paths == {str(Path(options["eval_jobs_config"]).parent), str(Path(options["output_dir"]).parent)}
    assert str(Path(options["eval_jobs_config"]).parent) in {
        mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"]
    }
