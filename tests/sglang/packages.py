"""Installs an SGLang that computes on CPUs into build/sglang by the pinned version, unless it is there: 6 GB, because PyTorch brings CUDA's libraries.

SGLang asks for kernels for GPUs, which its engine for CPUs does without: what is named below is left out.  Of sgl_kernel, its own, PyPI has the one for GPUs alone;
on a CPU without AMX nothing is called of it but its name, so a module stands there which says what was missing when something is.
"""
from engine_packages import installed

VERSION = "0.5.23"
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


def stand_in(about):
    kernels = about.parent / "sgl_kernel"
    kernels.mkdir()
    (kernels / "__init__.py").write_text(STAND_IN)


def sglang_python():
    """The Python that can run sglang.launch_server."""
    return installed("sglang", VERSION, f"sglang=={VERSION}", FOR_GPUS, finish=stand_in) / "python"
