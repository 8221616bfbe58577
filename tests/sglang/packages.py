"""Installs an SGLang that computes on CPUs into build/sglang by the pinned version, unless it is there: 6 GB, because PyTorch brings CUDA's libraries.

SGLang asks for kernels for GPUs, which its engine for CPUs does without: what is named below is left out.  Of sgl_kernel, its own, PyPI has the one for GPUs alone;
on a CPU without AMX nothing is called of it but its name, so a module stands there which says what was missing when something is.
"""
import pathlib
import re
import shutil
import subprocess
import sys

VERSION = "0.5.23"
VENV = pathlib.Path(__file__).resolve().parents[2] / "build/sglang"
FOR_GPUS = r"(apache-tvm-ffi|av|build|cuda-python|decord2|deepseek-recipe|flash-attn|flashinfer|humming|kernels|modelscope|nvidia|nvshmem|quack|sgl-|sglang-kernel|smg-grpc|" \
           r"tilelang|tml-renderers|torch_memory_saver|torchaudio|torchcodec)"
STAND_IN = '''\
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no form for this CPU")

    return missing
'''


def pip(*args):
    subprocess.run([VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *args], check=True)


def sglang_python():
    """The Python that can run sglang.launch_server."""
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_text() == VERSION:
        return VENV / "bin/python"
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip("--no-deps", f"sglang=={VERSION}")
    (about,) = VENV.glob("lib/python3*/site-packages/sglang-*.dist-info")
    needs = re.findall(r"^Requires-Dist: (.*)$", (about / "METADATA").read_text(), re.MULTILINE)
    requirements = VENV / "requirements.txt"
    requirements.write_text("\n".join(need for need in needs if "extra ==" not in need and not re.match(FOR_GPUS, need)) + "\n")
    pip("-r", requirements)
    kernels = about.parent / "sgl_kernel"
    kernels.mkdir()
    (kernels / "__init__.py").write_text(STAND_IN)
    stamp.write_text(VERSION)
    return VENV / "bin/python"
