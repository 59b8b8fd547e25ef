"""Policies that ask a vision-language-action model for chunks of actions."""
