"""Sums by window, and the errors that they and samples of them have."""
