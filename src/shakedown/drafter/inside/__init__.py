"""Programs that run in an engine's own interpreter, where Shakedown is not installed.

Nothing of ours imports them: they are started by path, and speak over one connection.
"""
