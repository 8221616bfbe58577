"""docker-compose.yml's profiles `preprocess` and `agent`: more workers, which join a run and leave it, and change no weight."""
import time

import pytest

from engine import docker
from runs import begin, same_weights


def join(stack, profile, service):
    """The container that the profile adds."""
    stack.profiles = (profile,)
    try:
        stack.scale(1)
    finally:
        stack.profiles = ()
    (container,) = stack.containers(service)
    return container


def leave(stack, container):
    since = time.time()
    docker("stop", container)
    assert stack.exits(since) == ["0"], "137 is SIGKILL, after the grace period"
    docker("rm", container)


@pytest.mark.bounded
def test_a_preprocessor_joins_and_leaves_in_mid_run(stack, reference):
    stack.pool(1)
    run = begin(stack, reference)
    container = join(stack, "preprocess", "preprocessor")
    stack.wait_until("it has computed passes", lambda: stack.under_way(run, 2) and any(row["reference"]["by_preprocessors"] for row in stack.status(run)["history"]), seconds=120)
    leave(stack, container)
    assert stack.under_way(run, 2)
    same_weights(stack, run, reference)


def test_an_agent_without_an_engine_lives_and_holds_nothing(stack, reference):
    """Its engine is started by others, later perhaps."""
    run = begin(stack, reference)
    container = join(stack, "agent", "rollout-agent")
    stack.wait_until("it is healthy, though not ready", lambda: stack.inspect(container, ".State.Health.Status") == "healthy")
    assert "503" in docker("exec", container, "leasehold-healthcheck", "8300", "/readyz", fails=True)

    def registered():
        return next((worker for worker in stack.workers() if worker["name"] == f"agent-{container}-8300"), None)

    agent = stack.wait_until("it is registered", registered)
    assert agent["live"] and agent["leases"] == 0 and agent["exactness"] == "foreign"
    leave(stack, container)
    same_weights(stack, run, reference)
