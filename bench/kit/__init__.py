"""Shared by the benchmark programs: cases (models with inputs), ways to run them, rounds, rows, bars."""
