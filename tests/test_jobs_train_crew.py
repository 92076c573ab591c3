"""Training in several processes: what is left when the one that started them is killed."""

import subprocess
import sys

import psutil
from stand_ins import eventually

STARTER = """
import subprocess, sys, time
from shakedown.jobs.train_crew import end_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=end_with_parent)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_kill_of_the_starter_ends_what_it_started():
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout
    child = psutil.Process(int(starter.stdout.readline()))
    starter.kill()
    starter.communicate()
    assert eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, within_s=5)
