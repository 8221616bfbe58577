"""Runs in containers, disturbed in their middle: a pool scaled up and down, each role killed, a server cut off from the network."""
import time

import pytest

from engine import Stack, docker
from runs import begin, demo_config, same_weights
from harness import digests, warmup_config

DEMO = "49aaac685ecca198"  # what `make demo` ends with, on every machine


def test_the_demo_ends_with_the_weights_that_it_has_outside(reference, request, say):
    say(f"the run ends with {reference.digests[-1]}")
    if request.config.option.markexpr != "bounded":
        assert reference.digests[-1].startswith(DEMO)


@pytest.mark.bounded
def test_a_pool_scaled_to_three_and_back_in_mid_run(stack, reference):
    (first,) = stack.pool(1)
    run = begin(stack, reference)
    stack.scale(3)
    joined = set(stack.containers("generation-server")) - {first}
    assert len(joined) == 2
    stack.wait_until("both new servers contribute", lambda: stack.under_way(run, 2) and all(stack.samples(run, server) for server in joined), seconds=120)
    since = time.time()
    stack.scale(1)
    assert stack.under_way(run, 2)
    assert stack.exits(since) == ["0", "0"], "a surplus server ends by itself"
    same_weights(stack, run, reference)


@pytest.mark.parametrize("role", ["coordinator", "trainer-server"])
def test_a_role_killed_in_mid_run(stack, reference, role):
    stack.pool(1)
    (victim,) = stack.containers(role)
    run = begin(stack, reference)
    docker("kill", victim)
    docker("start", victim)
    stack.wait_registered(1)
    assert stack.under_way(run, 2)
    same_weights(stack, run, reference)


@pytest.mark.bounded
def test_a_server_killed_at_work(stack, reference):
    """It stays down, as the engine leaves what an operator kills, and the other one does its work again."""
    victim, other = stack.pool(2)
    run = begin(stack, reference)
    stack.at_work(victim, lambda container: docker("kill", container))
    assert stack.under_way(run, 2)
    status = same_weights(stack, run, reference)
    assert status["totals"]["leases_lost"] > 0, "it held no work, so nothing was proven"
    assert stack.containers("generation-server") == [other]
    docker("start", victim)
    stack.wait_registered(2)


def test_a_server_cut_off_from_the_network_and_back(stack, reference):
    """It holds leases and cannot say so; others do its work.  Then it is back, with another address, and works on the same run again."""
    cut, _ = stack.pool(2)
    network = f"{stack.project}_default"
    run = begin(stack, reference)

    def cut_off(container):
        docker("network", "disconnect", network, container)
        docker("unpause", container)

    stack.at_work(cut, cut_off)
    stack.wait_until("it counts as silent", lambda: stack.worker(cut) is None)
    before = stack.status(run)
    stack.wait_until("the others go on", lambda: stack.under_way(run, before["round"] + 2), seconds=120)
    done = stack.samples(run, cut)
    docker("network", "connect", "--alias", "generation-server", network, cut)
    stack.wait_until("it contributes again", lambda: stack.under_way(run, 2) and stack.samples(run, cut) > done, seconds=120)
    status = same_weights(stack, run, reference)
    assert status["totals"]["leases_lost"] > 0, "it held no work, so nothing was proven"


@pytest.mark.bounded
def test_containers_may_do_little(stack):
    """No root, no capabilities, no new privileges; nothing can be written but in a volume; only the coordinator is reached from outside, over loopback."""
    stack.pool(1)
    volumes = {"coordinator": True, "trainer-server": True, "generation-server": False}
    published = []
    for service, has_volume in volumes.items():
        (container,) = stack.containers(service)
        status = docker("exec", container, "cat", "/proc/1/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(fields["Uid"].split()) == {"10001"} and set(fields["Gid"].split()) == {"10001"}
        assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0} and fields["NoNewPrivs"] == "1"
        assert stack.inspect(container, ".HostConfig.ReadonlyRootfs") == "true"
        for folder in ("/tmp", "/usr/local/bin"):
            assert "Read-only file system" in docker("exec", "-u", "0", container, "touch", f"{folder}/planted", fails=True)
        docker("exec", container, "touch", "/var/lib/leasehold/planted", fails=not has_volume)
        published += docker("port", container).splitlines()
    assert published == [f"8000/tcp -> 127.0.0.1:{stack.ports['COORDINATOR_PORT']}"]


@pytest.mark.bounded
def test_health_checks_tell_the_sound_from_the_frozen(stack):
    (server,) = stack.pool(1)
    stack.wait_until("three containers are healthy", lambda: {stack.inspect(one, ".State.Health.Status") for one in stack.containers()} == {"healthy"}, seconds=90)
    assert "401" in docker("exec", server, "leasehold-healthcheck", "8100", "/nothing", fails=True)  # it shows no token
    assert "refused" in docker("exec", server, "leasehold-healthcheck", "8101", "/healthz", fails=True)
    docker("kill", "--signal", "STOP", server)
    try:
        assert "no answer" in docker("exec", server, "leasehold-healthcheck", "8100", "/healthz", fails=True)
    finally:
        docker("kill", "--signal", "CONT", server)
    docker("exec", server, "leasehold-healthcheck", "8100", "/healthz")


def test_an_engine_sees_that_a_server_is_frozen_and_recovers(stack):
    (server,) = stack.pool(1)
    docker("kill", "--signal", "STOP", server)
    try:
        stack.wait_until("the engine calls it unhealthy", lambda: stack.inspect(server, ".State.Health.Status") == "unhealthy", seconds=120)
    finally:
        docker("kill", "--signal", "CONT", server)
    stack.wait_until("and healthy again", lambda: stack.inspect(server, ".State.Health.Status") == "healthy", seconds=60)
    stack.wait_registered(1)


def test_two_ranks_in_a_container_reach_the_weights_of_one(ranks_image, reference):
    with Stack(files=("docker-compose.yml", "deploy/docker/ranks.yml"), TRAINER_RANKS="2", TRAINER_THREADS="1") as stack:
        stack.pool(1)
        (trainer,) = stack.containers("trainer-server")
        assert [line.split(maxsplit=1)[1] for line in docker("top", trainer, "-eo", "pid,args").splitlines()].count("trainer-server-mpi") == 2
        base = stack.run(warmup_config(reference.warmup), seconds=600)
        assert digests(base) == reference.of_the_base
        played = stack.run(demo_config(10, start={"run": base["id"], "version": reference.warmup}), seconds=300)
        assert digests(played) == reference.digests[:10]


@pytest.mark.bounded
def test_sigterm_ends_every_container_by_itself_and_down_leaves_nothing(image, stack):
    """The last one: the stack is gone afterwards."""
    stack.pool(1)
    count = len(stack.containers())
    since = time.time()
    stack.compose("stop")
    assert stack.exits(since) == ["0"] * count, "137 is SIGKILL, after the grace period"
    stack.close()
    assert stack.left_behind() == []
