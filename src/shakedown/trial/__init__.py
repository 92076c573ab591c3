"""One experiment: started, watched, asked, ended, written down."""

from shakedown.trial.conduct import Result, Subject, run_trial
from shakedown.trial.recorded import Occasion, run_recorded

__all__ = ["Occasion", "Result", "Subject", "run_recorded", "run_trial"]
