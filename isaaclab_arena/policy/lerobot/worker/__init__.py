"""The programs of LeRobot policy workers, which run in interpreters that have LeRobot but not this package."""

# So nothing here imports anything of this package.
