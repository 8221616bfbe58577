"""docker-compose.yml's profile `prometheus`: it finds every service, shows the token, and our rules are at work."""
import pytest

import engine
from engine import Stack, docker
from harness import call


@pytest.fixture(scope="module")
def watched(image):
    engine.build("prometheus", profiles=["prometheus"])
    with Stack(profiles=["prometheus"]) as stack:
        stack.scale(2)
        yield stack


def test_prometheus_scrapes_every_service_and_its_rules_are_at_work(watched):
    def asked(path):
        answer = call("GET", f"{watched.prometheus}/api/v1/{path}")
        assert answer["status"] == "success"
        return answer["data"]

    def up():
        return sorted((target["labels"]["job"], target["health"]) for target in asked("targets")["activeTargets"])

    expected = [("leasehold-coordinator", "up"), ("leasehold-generation", "up"), ("leasehold-generation", "up"), ("leasehold-trainer", "up")]
    watched.wait_until("all targets are up", lambda: up() == expected, seconds=120)

    def rules():
        return [rule for group in asked("rules")["groups"] for rule in group["rules"]]

    watched.wait_until("every rule has been evaluated", lambda: rules() and all(rule["health"] == "ok" for rule in rules()), seconds=60)
    assert asked("query?query=ALERTS")["result"] == []
    docker("kill", watched.containers("generation-server")[0])
    watched.wait_until("an alarm is raised", lambda: [rule for rule in rules() if rule["name"] == "LeaseholdWorkerSilent" and rule["state"] != "inactive"], seconds=120)
    assert {rule["name"] for rule in rules() if rule["state"] != "inactive"} == {"LeaseholdWorkerSilent"}


def test_prometheus_may_do_little_either(watched):
    (container,) = watched.containers("prometheus")
    watched.wait_until("it is healthy", lambda: watched.inspect(container, ".State.Health.Status") == "healthy")
    assert docker("exec", container, "id", "-u") == "10001"
    assert watched.inspect(container, ".HostConfig.ReadonlyRootfs") == "true"
    assert docker("port", container) == f"9090/tcp -> 127.0.0.1:{watched.ports['PROMETHEUS_PORT']}"
