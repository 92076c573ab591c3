"""Take secrets out of text before any of it is written: by name, by value and by shape.

It imports the standard library only, so that the supervisor can start with it.
"""

from shakedown.redact.files import written_secrets
from shakedown.redact.names import REDACTED
from shakedown.redact.redactor import Redactor, keyed_hash, secret_names
from shakedown.redact.shapes import strip_controls

__all__ = ["REDACTED", "Redactor", "keyed_hash", "secret_names", "strip_controls", "written_secrets"]
