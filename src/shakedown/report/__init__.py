"""Findings in, text out: JSON documents, Markdown, and what a terminal shows."""

from shakedown.report.chain import show
from shakedown.report.checks import check_lines
from shakedown.report.document import run_document, runs_document
from shakedown.report.markdown import isolate_report, run_report
from shakedown.report.recipe import Recipe
from shakedown.report.search_document import isolate_document
from shakedown.report.text import isolate_summary, run_summary, runs_table

__all__ = [
    "Recipe",
    "check_lines",
    "isolate_document",
    "isolate_report",
    "isolate_summary",
    "run_document",
    "run_report",
    "run_summary",
    "runs_document",
    "runs_table",
    "show",
]
