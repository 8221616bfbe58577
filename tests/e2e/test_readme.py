"""The commands that the documentation gives go together: they start services and call the same ones, on the services' own ports."""
import functools
import re
import subprocess
import urllib.parse

import pytest
import yaml

from contract import OPENAPI, contract
from harness import BIN, ROOT

SERVICES = ("coordinator", "generation-server", "trainer-server")
README = (ROOT / "README.md").read_text()


@functools.cache
def default_port(program):
    text = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"^  --port [^\n]*\n[^\n]*\n[^\n]*default (\d+)", text, re.M)[1])


def commands(text):
    """One a line: continued lines are joined, mpirun's programs and pipes taken apart."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    return [part.strip() for line in text.splitlines() for part in re.split(r"\s:\s|\s\|\s", line)]


def listens(text):
    """Ports of the services that these commands start, in order."""
    ports = {service: [] for service in SERVICES}
    for command in commands(text):
        if found := re.search(r"(?:^|\s|/)(coordinator|generation-server|trainer-server)(?:-mpi)? (--.*)", command):
            port = re.search(r"--port (\d+)", found[2])
            ports[found[1]].append(int(port[1]) if port else default_port(found[1]))
    return ports


def sections_with_commands():
    parts = re.split(r"^## (.*)$", README, flags=re.M)
    blocks = {title: "\n".join(re.findall(r"```sh\n(.*?)```", body, re.S)) for title, body in zip(parts[1::2], parts[2::2])}
    return {title: block for title, block in blocks.items() if "127.0.0.1:" in block}


@pytest.mark.parametrize("title", sections_with_commands())
def test_readme_calls_services_where_it_starts_them_and_starts_them_on_their_own_ports(title):
    block = sections_with_commands()[title]
    ports = listens(block)
    started = [port for service in SERVICES for port in ports[service]]
    assert len(set(started)) == len(started), f"two services on one port: {ports}"
    for service in SERVICES:
        wanted = default_port(service)
        assert ports[service] in ([], [wanted], [wanted, wanted + 1]), f"{service} listens on {wanted} by default, the commands start it on {ports[service]}"
    for url in re.findall(r"--coordinator (\S+)", block):
        assert urllib.parse.urlsplit(url).port == default_port("coordinator"), url
    for method, url in re.findall(r"curl -[a-zN]+ (?:-X (\w+) )?'?(http://[^\s']+)", block):
        parts = urllib.parse.urlsplit(url)
        owners = [service for service in SERVICES if parts.port == default_port(service)]
        assert owners, f"{url}: no service listens there by default"
        method = method or ("POST" if parts.path == "/v1/generate" else "GET")
        assert contract(owners[0]).find(method, parts.path)[0], f"{owners[0]} has no {method} {parts.path}"


def test_every_other_example_names_the_same_ports():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    demo = (ROOT / "deploy/demo/demo.sh").read_text()
    for service in SERVICES:
        port = default_port(service)
        assert compose[service]["environment"]["LEASEHOLD_PORT"] == port
        assert compose[service]["healthcheck"]["test"][2] == str(port)
        assert yaml.safe_load((OPENAPI / f"{service}.yaml").read_text())["servers"][0]["url"] == f"http://127.0.0.1:{port}"
    assert set(re.findall(r"http://127\.0\.0\.1:(\d+)", demo)) == {str(default_port("generation-server"))}
    assert "--port 8" not in demo
