"""Where single environments come from: modules with ``find`` and ``make``, by the kind that a name begins with."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.
