"""The scripts of deploy/ that make certificates, tokens and Prometheus' folder: a second call, one that was interrupted, and what others can read afterwards."""
import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import time

import pytest
import yaml

from harness import BIN, ROOT, Deadline

CERTIFICATES, TOKENS, CONFIGURE = (ROOT / "deploy" / name for name in ("security/make-certificates", "security/make-tokens", "prometheus/configure"))


def script(path, *args, **more):
    """(exit status, standard output, standard error)"""
    done = subprocess.run([path, *map(str, args)], capture_output=True, text=True, timeout=60, check=False, **more)
    return done.returncode, done.stdout, done.stderr


def certificates(folder, *args, **variables):
    return script(CERTIFICATES, folder, *args, env={**os.environ, **variables})


def verified(folder, certificate):
    return subprocess.run(["openssl", "verify", "-CAfile", folder / "ca.crt", certificate], capture_output=True, check=False).returncode == 0


@pytest.fixture
def files(tmp_path):
    assert certificates(tmp_path / "a pool", "pool", "localhost")[0] == 0
    return tmp_path / "a pool"


# ---- certificates ----


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given to others")
def test_a_certificate_that_is_made_anew_can_be_read_by_whom_it_could_before(files):
    """As deploy/security/tls.md has it for containers; a service that is started after a renewal would find no key."""
    key = files / "pool.key"
    os.chown(key, 0, 10001)
    key.chmod(0o640)
    before = key.read_bytes()
    assert certificates(files, "pool", "localhost")[0] == 0
    assert key.read_bytes() != before and (key.stat().st_gid, key.stat().st_mode & 0o777) == (10001, 0o640)
    assert verified(files, files / "pool.crt") and (files / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_user_who_cannot_give_the_new_key_to_its_readers_is_told_and_loses_nothing(files, tmp_path):
    (tmp_path / "chown").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "chown").chmod(0o755)
    before = [(files / name).read_bytes() for name in ("pool.key", "pool.crt")]
    status, _, error = certificates(files, "pool", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert status == 1 and "only root can give" in error, error
    assert [(files / name).read_bytes() for name in ("pool.key", "pool.crt")] == before


def test_a_first_call_that_was_interrupted_is_made_good(files):
    """The authority's key was there, its certificate was not: every later call ended without a word."""
    shutil.copy(files / "pool.crt", files / "before.crt")
    (files / "ca.crt").unlink()
    status, _, error = certificates(files, "other")
    assert status == 0 and not error, error
    assert verified(files, files / "other.crt") and verified(files, files / "before.crt"), "what it had signed holds on"
    assert not list(files.glob(".new.*"))


def test_an_authority_whose_key_lies_elsewhere_is_not_replaced(files):
    (files / "ca.key").unlink()
    before = (files / "ca.crt").read_bytes()
    status, _, error = certificates(files, "other")
    assert status == 1 and "without its key" in error and (files / "ca.crt").read_bytes() == before


def test_no_certificate_outlives_its_authority(tmp_path):
    assert certificates(tmp_path, "pool", DAYS="1")[0] == 0
    status, _, error = certificates(tmp_path, "pool", DAYS="30")
    assert status == 1 and "would outlive its authority" in error
    assert certificates(tmp_path, "pool", DAYS="5")[0] == 0


def test_what_openssl_refuses_is_told(files):
    before = (files / "pool.crt").read_bytes()
    status, _, error = certificates(files, "pool", "999.9.9.9")
    assert status == 1 and "bad ip address" in error and (files / "pool.crt").read_bytes() == before
    for days in ("a week", "0", "-1", "100000"):
        status, _, error = certificates(files, "pool", DAYS=days)
        assert status == 2 and "DAYS must be" in error and error.count("\n") == 1, error


# ---- tokens ----


def test_a_second_call_keeps_the_tokens_and_what_was_written_beside_them(tmp_path):
    assert script(TOKENS, tmp_path / "t")[0] == 0
    lines = tmp_path / "t/coordinator/worker"
    lines.write_text(f"{'a' * 64} gen-7\n{lines.read_text()}")
    (tmp_path / "t/pool/viewer").unlink()
    before = {path: path.read_text() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert script(TOKENS, tmp_path / "t")[0] == 0
    after = {path: path.read_text() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert after.pop(tmp_path / "t/pool/viewer") == after[tmp_path / "t/coordinator/viewer"]
    assert after == before


def test_a_token_that_was_removed_is_made_anew_everywhere(tmp_path):
    assert script(TOKENS, tmp_path)[0] == 0
    before = (tmp_path / "coordinator/worker").read_text()
    (tmp_path / "worker").unlink()
    assert script(TOKENS, tmp_path)[0] == 0
    assert (tmp_path / "pool/worker").read_text() == (tmp_path / "worker").read_text().strip() + " worker\n"
    assert (tmp_path / "coordinator/worker").read_text() == (tmp_path / "trainer-server/worker").read_text() != before


def lines_of(folder, role):
    return {service: (folder / service / role).read_text().splitlines() for service in ("coordinator", "trainer-server", "pool")}


def test_a_token_is_replaced_in_three_steps_beside_lines_of_ones_own(tmp_path):
    assert script(TOKENS, tmp_path)[0] == 0
    own = f"{'a' * 64} gen-7"
    with open(tmp_path / "coordinator/worker", "a") as file:
        file.write(own + "\n")
    before = lines_of(tmp_path, "worker")
    others = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != "worker"}
    status, _, error = script(TOKENS, tmp_path, "show", "worker")
    assert status == 1 and "add comes before show" in error and lines_of(tmp_path, "worker") == before
    assert script(TOKENS, tmp_path, "add", "worker")[0] == script(TOKENS, tmp_path, "add", "worker")[0] == 0  # the second one changes nothing
    successor = (tmp_path / "worker.next").read_text().strip()
    hashed = "sha256:" + hashlib.sha256(successor.encode()).hexdigest()
    behind = {service: f"{successor if service == 'pool' else hashed} worker" for service in before}
    assert lines_of(tmp_path, "worker") == {service: [*before[service], behind[service]] for service in before}
    assert script(TOKENS, tmp_path, "show", "worker")[0] == 0
    assert lines_of(tmp_path, "worker") == {service: [behind[service], *before[service]] for service in before}
    assert script(TOKENS, tmp_path, "end", "worker")[0] == 0
    assert lines_of(tmp_path, "worker") == {service: [behind[service], *before[service][1:]] for service in before} and own in lines_of(tmp_path, "worker")["coordinator"]
    assert (tmp_path / "worker").read_text().strip() == successor and not (tmp_path / "worker.next").exists()
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != "worker"} == others
    assert script(TOKENS, tmp_path)[0] == 0 and (tmp_path / "worker").read_text().strip() == successor
    assert script(TOKENS, tmp_path, "end", "worker")[0] == script(TOKENS, tmp_path, "add", "workers")[0] == script(TOKENS, tmp_path, "add")[0] == 1


# ---- Prometheus ----


def configured(folder, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    status, _, error = script(CONFIGURE, folder, env={**environment, **variables}, cwd=folder.parent)
    assert status == 0, error
    return yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"][0]


def test_prometheus_finds_certificates_that_were_named_from_another_folder(tmp_path):
    """A relative name is of the folder that `configure` is called in, as for the services; Prometheus would look beside its configuration."""
    tls = configured(tmp_path / "made", LEASEHOLD_TLS_CA="files/a&b.crt", LEASEHOLD_TLS_CERT="/etc/pool.crt", LEASEHOLD_TLS_KEY="pool.key")["tls_config"]
    assert tls == {"ca_file": f"{tmp_path}/files/a&b.crt", "cert_file": "/etc/pool.crt", "key_file": f"{tmp_path}/pool.key"}


def test_prometheus_can_read_what_another_user_has_made(tmp_path):
    configured(tmp_path / "made", LEASEHOLD_AUTH_TOKEN="secret")
    configured(tmp_path / "made", LEASEHOLD_AUTH_TOKEN="secret too")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755
    assert modes.pop("token") in (0o600, 0o640) and modes == {"prometheus.yml": 0o644, "alerts.yml": 0o644}
    assert (tmp_path / "made/token").read_text() == "secret too"


# ---- a pool by hand ----


def own_address():
    """Beyond loopback; None: this machine has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return probe.getsockname()[0]
    return None


def free_ports(address, count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return [made.getsockname()[1] for made in sockets]


def until_listens(address, port, process):
    deadline = Deadline(30)
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
            return
        assert process.poll() is None and not deadline.passed(), "a service that the page starts does not listen"
        time.sleep(0.05)


@pytest.mark.skipif(not own_address(), reason="this machine has no address beyond loopback")
def test_the_small_pool_of_the_page_on_tls_works_as_it_is_written(tmp_path):
    """Its services refused to start: they listen beyond loopback, and had no tokens."""
    page = (ROOT / "deploy/security/tls.md").read_text().partition("## A small pool")[2]
    address = own_address()
    ports = free_ports(address, 2)
    block = re.search(r"```sh\n(.*?)```", page, re.S)[1].replace("10.0.0.5", address).replace("build/bin", str(BIN)).replace("deploy/", f"{ROOT}/deploy/").replace(":8000", f":{ports[0]}")
    lines = [line.partition(" #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]
    exports = [line for line in lines if line.startswith("export ")]
    services, left = [], list(ports)
    try:
        for line in lines:
            command = ["bash", "-euc", "\n".join([*exports, ("exec " + line[:-1] + f" --port {left[0]}") if line.endswith("&") else line])]
            if line.endswith("&"):
                services.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL))
                until_listens(address, left.pop(0), services[-1])
            else:
                deadline = Deadline(30)
                while (done := subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)).returncode or ("workers" in line and "generation" not in done.stdout):
                    assert not deadline.passed(), (line, done)
                    time.sleep(0.1)
        assert len(services) == 2 and '"runs":[]' in done.stdout.replace(" ", ""), done
    finally:
        for process in services:
            process.terminate()
        assert [process.wait(20) for process in services] == [0, 0]
