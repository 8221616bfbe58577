"""Installs TRL and what it needs into build/trl by the pinned requirements, unless they are there: 6 GB, because PyTorch brings CUDA's libraries.

For make bench-trl and make losses.  BENCH_TRL_PYTHON names an interpreter that has them already.
"""
import os
import pathlib
import shutil
import subprocess
import sys

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"
VENV = pathlib.Path(__file__).resolve().parents[3] / "build/trl"


def python_with_trl():
    """The interpreter."""
    if "BENCH_TRL_PYTHON" in os.environ:
        return os.environ["BENCH_TRL_PYTHON"]
    wanted, stamp = REQUIREMENTS.read_text(), VENV / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS], check=True)
        stamp.write_text(wanted)
    return str(VENV / "bin/python")
