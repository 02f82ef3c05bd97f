"""A finished run: its tables, what is known of it, and what it says in words."""

from sinkscope.report.report import Report

__all__ = ["Report"]
