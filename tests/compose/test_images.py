"""The targets of deploy/docker/Dockerfile."""
import pathlib
import secrets
import subprocess

import pytest

import engine
from engine import docker

OVER_BASE_MB = 30
CUDA = pathlib.Path("/usr/local/cuda")
PROGRAMS = ("coordinator", "generation-server", "trainer-server", "rollout-agent", "leasehold")


def starts(image, *programs):
    for program in programs:
        assert docker("run", "--rm", "--read-only", "--network", "none", image, program, "--version")
    assert docker("run", "--rm", "--network", "none", image, "id", "-u") == "10001"


@pytest.mark.bounded
def test_the_image_adds_little_to_its_base(image, say):
    added = engine.image_mb(image) - engine.image_mb(engine.BASE_IMAGE)
    say(f"{engine.image_mb(image):.0f} MB, {added:.1f} MB over its base")
    assert added <= OVER_BASE_MB
    starts(image, *PROGRAMS)


def test_the_image_for_ranks_has_their_programs(ranks_image):
    starts(ranks_image, *PROGRAMS, "trainer-server-mpi", "generation-server-mpi")


def test_the_image_for_gpus_starts_without_one(image, say):
    """Built with this machine's toolkit: Debian has none that new, and no registry is asked."""
    if not (CUDA / "bin/nvcc").exists():
        pytest.skip(f"the target cuda was not built: there is no CUDA Toolkit in {CUDA}")
    toolkit, built = f"leasehold-toolkit:{secrets.token_hex(4)}", f"{engine.IMAGE}-cuda"
    names = sorted({str(path).lstrip("/") for path in (CUDA, CUDA.resolve())})
    with subprocess.Popen(["tar", "-C", "/", "-c", "--exclude=*cudnn*", *names], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", toolkit], stdin=packed.stdout, check=True, capture_output=True)
    assert packed.returncode == 0
    try:
        docker("build", "--target", "cuda", "-t", built, "-f", "deploy/docker/Dockerfile", "--build-arg", f"BASE_IMAGE={engine.BASE_IMAGE}", "--build-arg", f"CUDA_IMAGE={toolkit}", ".")
    finally:
        docker("rmi", toolkit)
    starts(built, *PROGRAMS)
    say(f"the image for GPUs: {engine.image_mb(built):.0f} MB")
    refused = docker("run", "--rm", built, "trainer-server", "--device", "cuda", "--model", "/usr/share/leasehold/demo/model", "--random-init", "1", fails=True)
    assert "cuda" in refused.lower()
