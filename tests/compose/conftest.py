"""`make test-compose`: the images and docker-compose.yml, on a real docker engine.

Every run that is disturbed must end with the weights of the undisturbed one, round by round.  With BOUNDED=1 (`-m bounded`) runs are shorter, and only the
tests so marked take place.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import pytest

import engine
from harness import digests, warmup_config
from runs import Reference, demo_config


def pytest_configure(config):
    config.addinivalue_line("markers", "bounded: of the part that .ci/run takes")


@pytest.fixture(scope="session", autouse=True)
def usable_engine():
    if missing := engine.why_not():
        pytest.skip(f"nothing of the containers was tested: {missing}")


@pytest.fixture
def say(capsys):
    """Prints a figure beside the dots."""

    def print_it(text):
        with capsys.disabled():
            print(f"\n  {text}", end="")

    return print_it


@pytest.fixture(scope="session")
def image():
    engine.build("coordinator")
    return engine.IMAGE


@pytest.fixture(scope="session")
def ranks_image(image):
    engine.build("trainer-server", files=["docker-compose.yml", "deploy/docker/ranks.yml"])
    return f"{image}-mpi"


@pytest.fixture(scope="session")
def stack(image):
    """One generation-server with few slots, so that it is at work most of the time and a run lasts."""
    with engine.Stack(GENERATION_SLOTS="4") as made:
        made.pool(1)
        yield made


@pytest.fixture(scope="session")
def reference(stack, request):
    """The demo's warm-up and its run, undisturbed."""
    bounded = request.config.option.markexpr == "bounded"
    warmup, rounds = (60, 60) if bounded else (600, 120)
    base = stack.create_run(warmup_config(warmup))
    of_the_base = digests(stack.wait(base, seconds=600))
    config = demo_config(rounds, start={"run": base, "version": warmup})
    status = stack.run(config, seconds=900)
    assert len(set(digests(status))) == rounds, "every round must change the weights, or equal digests would prove nothing"
    assert status["totals"]["leases_lost"] == 0
    return Reference(config, warmup, of_the_base, digests(status))
