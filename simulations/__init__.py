"""Environments that stand in for an engine and drive the same learner offline."""
