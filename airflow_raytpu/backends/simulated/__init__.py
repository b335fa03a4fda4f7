"""Simulated TPU slices on this machine: one Ray head and one Ray node per TPU host, under a supervisor. Linux only."""
