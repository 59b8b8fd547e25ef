"""Which policy is better: tests, intervals, numbers of episodes, and decisions while a run goes on."""
