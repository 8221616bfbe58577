"""Halts a process again and again until it has ended: it runs for a millisecond and stands still for 24.

    python3 halt_often.py PID

A process of its own, above all others, because a thread of the tests would come too late whenever they are kept from running.
"""
import contextlib
import os
import signal
import sys
import time

pid = int(sys.argv[1])
with contextlib.suppress(PermissionError):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
with contextlib.suppress(ProcessLookupError):
    while True:
        for how, seconds in ((signal.SIGSTOP, 0.024), (signal.SIGCONT, 0.001)):
            os.kill(pid, how)
            time.sleep(seconds)
