"""What workers of LeRobot's policies answer by, in interpreters that have LeRobot but not this package."""

# So nothing here imports anything of this package.
