"""Commands that say which of two policies is better, and how many episodes that takes."""
