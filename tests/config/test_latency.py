import pytest

from isaaclab_arena.config.loading import hash_jobs, read_jobs
from isaaclab_arena.config.schema import JobConfig, JobDefaults, LatencyConfig, Meanwhile, read_job, read_latency


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"steps": 2}, LatencyConfig(steps=(2, 2))),
        ({"steps": [1, 4], "meanwhile": "chunk"}, LatencyConfig(steps=(1, 4), meanwhile=Meanwhile.CHUNK)),
        ({"ms": 120}, LatencyConfig(ms=(120.0, 120.0))),
        ({"file": "latencies.csv", "meanwhile": "wait"}, LatencyConfig(file="latencies.csv", meanwhile=Meanwhile.WAIT)),
        ("measured", LatencyConfig(measured=True)),
        ({"measured": True, "meanwhile": "rtc"}, LatencyConfig(measured=True, meanwhile=Meanwhile.RTC)),
        (None, None),
    ],
)
def test_latency_is_given_in_one_of_four_ways(value, read):
    assert read_latency(value) == read


@pytest.mark.parametrize(
    ("value", "key", "why"),
    [
        ({"steps": -1}, "latency.steps", "must not be negative"),
        ({"ms": -0.5}, "latency.ms", "must not be negative"),
        ({"steps": 1.5}, "latency.steps", "no whole number"),
        ({"steps": True}, "latency.steps", "no whole number"),
        ({"steps": [4, 1]}, "latency.steps", "give the smaller one first"),
        ({"steps": [1, 2, 3]}, "latency.steps", "no two such as"),
        ({"ms": float("nan")}, "latency.ms", "no number"),
        ({"ms": 1e9}, "latency.ms", "at most 600000"),
        ({"steps": 1, "ms": 50}, "latency", "it has steps and ms"),
        ({"meanwhile": "hold"}, "latency", "it has none of them"),
        ({"step": 1}, "latency.step", "did you mean 'steps'?"),
        ({"steps": 1, "meanwhile": "hodl"}, "latency.meanwhile", "did you mean 'hold'?"),
        ({"measured": False, "steps": None}, "latency.measured", "is not true"),
        ({"file": 3}, "latency.file", "is no file name"),
        ("mesured", "latency", "not 'measured'"),
    ],
)
def test_what_cannot_be_a_latency_is_refused_with_its_key(value, key, why):
    fields = {"name": "late", "arena_env_args": {"environment": "reach"}, "policy_type": "zero", "latency": value}
    job, (problem,) = read_job(fields, index=0, label="late", defaults=JobDefaults())
    assert job is not None
    assert job.latency is None
    assert (problem.job, problem.key) == ("late", key)
    assert why in problem.message


def test_latency_can_be_swept():
    job = {
        "name": "late",
        "arena_env_args": {"environment": "reach"},
        "policy_type": "zero_action",
        "latency": {"meanwhile": "hold"},
        "sweep": {"latency.steps": [0, 4]},
    }
    jobs = read_jobs({"jobs": [job]}, source="jobs.yaml").jobs
    assert [(each.name, each.latency, each.swept) for each in jobs] == [
        (f"late-steps{steps}", LatencyConfig(steps=(steps, steps)), {"latency.steps": steps}) for steps in (0, 4)
    ]


def test_the_hash_tells_jobs_with_another_latency_apart_and_leaves_others_as_they_were():
    def hash_of(latency: LatencyConfig | None) -> str:
        return hash_jobs((JobConfig(index=0, name="late", environment="reach", policy_type="zero", latency=latency),))

    assert len({hash_of(None), hash_of(LatencyConfig(steps=(1, 1))), hash_of(LatencyConfig(steps=(2, 2)))}) == 3
    assert hash_of(None) == "00713920311338b9"
