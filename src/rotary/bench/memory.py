"""Peak memory of a call, as the system counts it (Linux)."""

from __future__ import annotations

import subprocess
import sys

IS_MEASURED = sys.platform.startswith("linux")

_MEASURE = """
import ctypes
def _status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
def rise(call):
    try:  # What was freed before is not part of what is held.
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # The peak so far is forgotten.
    before = _status("VmRSS")
    result = call()
    print(_status("VmHWM") - before)
    return result
"""


def peak_rise(script: str) -> int:
    """Run a script in a process of its own; bytes by which its memory rose at most.

    Args:
        script: Calls ``rise(function)`` once, around what is measured.

    Returns:
        The peak while ``function`` ran, less what the process held before; its result counts.
    """
    run = [sys.executable, "-c", _MEASURE + script]
    return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
