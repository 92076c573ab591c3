"""One experiment: started, watched, asked, ended, written down."""

from shakedown.trial.attached import Arrival, attach_recorded, judge_attached, judge_unseen, phase_in
from shakedown.trial.conduct import Failed, Result, Subject, run_trial
from shakedown.trial.marks import Stated
from shakedown.trial.recorded import Occasion, run_recorded
from shakedown.trial.seeking import Elsewhere

__all__ = [
    "Arrival",
    "Elsewhere",
    "Failed",
    "Occasion",
    "Result",
    "Stated",
    "Subject",
    "attach_recorded",
    "judge_attached",
    "judge_unseen",
    "phase_in",
    "run_recorded",
    "run_trial",
]
