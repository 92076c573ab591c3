"""Shakedown: the test run for a new LLM server."""

__version__ = "0.1.0"
