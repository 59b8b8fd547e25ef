"""Names of tasks."""

ALL_V3_ENVIRONMENTS = {"reach-v3": None}
