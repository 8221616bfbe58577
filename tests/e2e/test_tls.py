"""TLS between all parts: a run over it ends with the weights that it ends with over http; whoever is not let in is told why; certificates are replaced while a
run goes on; who connects and does not speak holds nobody up."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
import urllib.error
import urllib.request
from types import SimpleNamespace as Namespace

import pytest
import yaml

from authority import Authority, Tls, client_context
from harness import BIN, DATA, ROOT, Cluster, Standalone, call, digests, exchange, grpo_config, wait_until

ROUNDS = 4
NAMES = "IP:127.0.0.1,DNS:pool.leasehold"


def config():
    return {**grpo_config(ROUNDS, groups=4, samples=4), "start": "model", "verifier": {"kind": "regex", "pattern": "[0-4]"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder):
    return Authority(folder / "trusted")


@pytest.fixture(scope="module")
def stranger(folder):
    return Authority(folder / "stranger")


@pytest.fixture(scope="module")
def pair(authority):
    return authority.certificate("pool", NAMES)


@pytest.fixture(scope="module")
def expected(folder):
    """The weights that the run leads to over http."""
    with Cluster(folder / "plain", trainer=["--random-init", 1]) as cluster:
        cluster.add_server("gen", "--slots", 16)
        return digests(cluster.run(config()))


@pytest.fixture(scope="module")
def cluster(folder, authority, pair):
    live = [shutil.copy(file, folder / f"live.{ending}") for file, ending in zip(pair, ("pem", "key"))]
    with Cluster(folder / "secure", trainer=["--random-init", 1], tls=Tls(authority, *live)) as made:
        made.servers = [made.add_server(name, "--slots", 8) for name in ("gen-1", "gen-2")]
        yield made


def replace(file, by):
    """As certificate managers do: a new file takes the old one's name."""
    new = shutil.copy(by, f"{file}.new")
    os.rename(new, file)


def answer(url, path, context):
    """Status and body of one GET, whatever it is."""
    try:
        with urllib.request.urlopen(url + path, timeout=30, context=context) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def served(service):
    """The certificate that a service shows to a new connection."""
    with socket.create_connection(("127.0.0.1", service.port), 30) as plain, service.tls.context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        return secure.getpeercert(binary_form=True)


def der(file):
    return ssl.PEM_cert_to_DER_cert(open(file).read())


def test_a_run_over_mutual_tls_ends_as_over_http(cluster, expected):
    assert digests(cluster.run(config())) == expected
    workers = call("GET", f"{cluster.coordinator.url}/v1/workers")["workers"]
    assert len(workers) == 3 and all(worker["url"].startswith("https://") for worker in workers), workers
    assert "push of version" not in cluster.trainer.log_text()


def test_files_are_replaced_in_the_middle_of_a_run(cluster, authority, stranger, expected):
    live, key = cluster.tls.certificate, cluster.tls.key
    new, new_key = authority.certificate("renewed", NAMES)
    with contextlib.ExitStack() as slow:
        for server in cluster.servers:
            slow.enter_context(server.slowly())
        run = cluster.create_run(config())
        cluster.wait_until("the run is under way", lambda: cluster.status(run)["state"] == "running")
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/pause")
    assert len(cluster.status(run)["history"]) <= ROUNDS  # not at its end: it goes on below
    first = served(cluster.coordinator)
    replace(live, new)  # for a while the key is another one's
    cluster.wait_until("the old pair stays", lambda: served(cluster.coordinator) == first and "cannot be used" in cluster.coordinator.log_text())
    assert "is not the key of the first certificate" in cluster.coordinator.log_text()
    replace(key, new_key)
    for service in cluster.services:
        cluster.wait_until(f"{service.name} shows the new one", lambda: served(service) == der(new))
    cluster.tls.context.load_cert_chain(live, key)
    assert cluster.status(run)["state"] == "paused"
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
    assert digests(cluster.wait(run)) == expected
    assert all(service.process.poll() is None for service in cluster.services)


def test_who_has_no_good_certificate_is_told_why(cluster, authority, stranger):
    url = cluster.coordinator.url
    nobody, late, foreign = (client_context(authority, *files) for files in ((), authority.certificate("late", days=-1), stranger.certificate("foreign")))
    assert answer(url, "/healthz", nobody)[0] == 200  # probes have none
    for context, words in ((nobody, "none came"), (late, "expired"), (foreign, "issuer is unknown")):
        status, body = answer(url, "/v1/runs", context)
        assert status == 403 and words in json.loads(body)["error"]["message"], (words, body)
        assert answer(url, "/nowhere", context)[0] == 403  # nor is told what there is
    assert answer(url, "/v1/runs", cluster.tls.context)[0] == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        answer(url, "/healthz", client_context(stranger))
    old = ["openssl", "s_client", "-connect", url.removeprefix("https://"), "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]
    done = subprocess.run(old, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Cipher is (NONE)" in done.stdout, done
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        one = client_context(authority, cluster.tls.certificate, cluster.tls.key)
        one.minimum_version = one.maximum_version = version
        assert answer(url, "/v1/runs", one)[0] == 200, version


def test_a_worker_that_trusts_somebody_else_says_so(cluster, authority, stranger, pair, folder):
    """The wrong authority, the wrong host, the name in its place."""
    def join(name, url, *flags):
        with Standalone(folder, tls=None) as alone:
            server = alone.start(name, "generation-server", ["--coordinator", url, "--name", name, "--tls-cert", pair[0], "--tls-key", pair[1], *flags])
            return server.wait_log(r"(certificate is refused: .*|registered as .*)")[1]

    url, other = cluster.coordinator.url, cluster.coordinator.url.replace("127.0.0.1", "localhost")
    assert "unable to get local issuer certificate" in join("doubter", url, "--tls-ca", stranger.file)
    assert "localhost" in join("elsewhere", other, "--tls-ca", authority.file)
    assert "registered as" in join("by-name", other, "--tls-ca", authority.file, "--tls-peer-name", "pool.leasehold")
    assert "other.leasehold" in join("by-other-name", url, "--tls-ca", authority.file, "--tls-peer-name", "other.leasehold")


def test_curl_and_the_command_line_speak_it(cluster, folder):
    url, tls = cluster.coordinator.url, cluster.tls
    curl = ["curl", "-sS", "--cacert", tls.ca, "--cert", tls.certificate, "--key", tls.key]
    assert json.loads(subprocess.run([*curl, f"{url}/v1/runs"], check=True, capture_output=True, timeout=60).stdout)["runs"]
    command = [BIN / "leasehold", "workers", "-v", "--coordinator", url]
    done = subprocess.run([*command, *tls.client_flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "gen-1" in done.stdout, done
    by_hand = subprocess.run(["bash", "-c", done.stderr], capture_output=True, text=True, timeout=60)
    assert by_hand.returncode == 0 and "gen-1" in by_hand.stdout, (done.stderr, by_hand)
    done = subprocess.run([*command, "--tls-ca", tls.ca], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "a client certificate" in done.stderr, done
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "its certificate is refused" in done.stderr, done


def test_the_other_listeners_speak_it_and_join(cluster, tmp_path):
    url = cluster.coordinator.url
    agent = ["--coordinator", url, "--engine-url", "https://127.0.0.1:1", "--weights-dir", tmp_path]
    preprocessor = ["--coordinator", url, "--role", "preprocess", "--model", DATA / "model", "--random-init", 1]
    with Standalone(tmp_path, tls=cluster.tls) as alone:
        for service in (alone.start("agent", "rollout-agent", agent), alone.start("preprocess", "trainer-server", preprocessor)):
            assert exchange("GET", service.url + "/healthz")[0] == 200
            service.wait_log("registered as w")
            assert answer(service.url, "/metrics", client_context(Namespace(file=cluster.tls.ca)))[0] == 403


def test_streams_long_polls_and_large_bodies(cluster):
    run = cluster.create_run(config())
    with urllib.request.urlopen(f"{cluster.coordinator.url}/v1/runs/{run}/events", timeout=60, context=cluster.tls.context) as stream:
        events = [line.decode().strip() for line in stream if line.startswith(b"event:")]
    assert cluster.status(run)["state"] == "completed" and len(events) > ROUNDS, events
    version = cluster.status(run)["version"]
    weights = call("GET", f"{cluster.trainer.url}/v1/weights/{version}?run={run}", raw=True)
    assert len(weights) > 100_000
    late = cluster.add_server("late", "--slots", 4)  # it pulls them
    run = cluster.create_run(config())
    late.wait_log("loaded|version")
    cluster.wait(run)


def to_its_end(connection):
    """Until the peer has ended it."""
    connection.settimeout(30)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass


def test_plain_http_on_a_tls_port_is_answered_and_noise_ends(cluster):
    port = cluster.coordinator.port
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    plain.request("GET", "/healthz")
    got = plain.getresponse()
    assert got.status == 400 and "https://" in json.loads(got.read())["error"]["message"]
    for noise in (b"\x00" * 100, b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 5000, bytes(range(20)) * 10):
        with socket.create_connection(("127.0.0.1", port), 30) as one:
            one.sendall(noise)
            with contextlib.suppress(OSError):  # ended already
                one.shutdown(socket.SHUT_WR)
            to_its_end(one)
    with Standalone(cluster.folder) as alone:
        unsafe = alone.start("unsafe", "coordinator", ["--db", cluster.folder / "unsafe.db"])
        done = subprocess.run([BIN / "leasehold", "workers", "--coordinator", unsafe.url.replace("http:", "https:")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and re.search("that port (speaks|may speak) plain http", done.stderr), done
    assert answer(cluster.coordinator.url, "/healthz", cluster.tls.context)[0] == 200


def failures(service):
    """What the listener has counted, by why."""
    text = call("GET", service.url + "/metrics", raw=True).decode()
    return {why: int(float(count)) for why, count in re.findall(r'^leasehold_tls_handshakes_failed_total\{why="(\w+)"\} (\S+)', text, re.M)}


def test_connections_that_come_to_nothing_are_counted_by_why(authority, stranger, pair, folder):
    """Each in its own way once, one with a good certificate, and one without any that asks for what is open to all."""
    with Standalone(folder / "counted", tls=Tls(authority, *pair)) as alone:
        alone.folder.mkdir()
        service = alone.start("counted", "coordinator", ["--db", alone.folder / "db"])
        nobody, expected = client_context(authority), dict.fromkeys(("silent", "plain", "unfit", "refused", "ended", "certificate"), 0)
        assert failures(service) == expected

        def counts(why):
            expected[why] += 1
            alone.wait_until(f"{why} is counted once: {expected}", lambda: failures(service) == expected)

        def sends(words):
            with socket.create_connection(("127.0.0.1", service.port), 30) as one:
                one.sendall(words)
                with contextlib.suppress(OSError):  # ended already
                    one.shutdown(socket.SHUT_WR)
                to_its_end(one)

        sends(b"")
        counts("silent")
        sends(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        counts("plain")
        sends(client_hello()[:40])
        counts("ended")
        sends(b"\x00" * 100)
        counts("unfit")
        old = ["openssl", "s_client", "-connect", f"127.0.0.1:{service.port}", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]
        subprocess.run(old, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        counts("unfit")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            doubter = client_context(stranger)
            doubter.minimum_version = doubter.maximum_version = version
            with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
                answer(service.url, "/healthz", doubter)
            counts("refused")
        kept = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=30, context=nobody)
        for path, status in (("/healthz", 200), ("/v1/runs", 403), ("/v1/workers", 403)):
            kept.request("GET", path)
            got = kept.getresponse()
            got.read()
            assert got.status == status
        kept.close()
        counts("certificate")
        for context in (nobody, alone.tls.context):
            assert answer(service.url, "/healthz", context)[0] == 200
        assert failures(service) == expected


def computed_seconds(service):
    """Of all its threads, to the nanosecond."""
    tasks = pathlib.Path(f"/proc/{service.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def is_at_rest(service):
    """However busy the machine is: a thread that spins would have computed more."""
    before, begun = computed_seconds(service), time.monotonic()
    time.sleep(0.2)
    return computed_seconds(service) - before < 0.02 * (time.monotonic() - begun)


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


def test_silent_handshakes_do_not_stop_the_service(authority, pair, folder):
    """They end by --head-timeout-ms, cost no computing once they are read, and others are served."""
    hello = client_hello()
    words = [b"", hello[:1], hello[:40], hello]
    with Standalone(folder / "silent", tls=Tls(authority, *pair)) as alone:
        alone.folder.mkdir()

        def knock(service, count):
            made = []
            for i in range(count):
                made.append(socket.create_connection(("127.0.0.1", service.port), 30))
                made[-1].sendall(words[i % len(words)])
            return made

        patient = alone.start("patient", "coordinator", ["--db", alone.folder / "patient.db", "--head-timeout-ms", 600000])
        few = knock(patient, len(words))
        wait_until("the service is at rest", lambda: is_at_rest(patient), 30)
        assert select.select(few[:3], [], [], 0)[0] == [], "half a handshake keeps a thread of libmicrohttpd spinning where it waits by epoll, until its deadline"
        service = alone.start("silent", "coordinator", ["--db", alone.folder / "db", "--head-timeout-ms", 3000, "--connections-max", 300])
        few += knock(service, len(words))
        for one in few[len(words):]:
            to_its_end(one)
        many = knock(service, 400)  # more than there are places
        assert call("GET", service.url + "/v1/runs") == {"runs": []}
        for _ in range(10):
            assert exchange("GET", service.url + "/healthz")[0] == 200
        for one in many:
            to_its_end(one)
        for one in many + few:
            one.close()
        assert call("GET", service.url + "/v1/runs") == {"runs": []}


def test_an_authority_that_is_taken_out_lets_nobody_in_any_more(authority, stranger, pair, folder):
    trusted = folder / "clients.pem"
    shutil.copy(authority.file, trusted)
    tls = Tls(authority, *pair, mutual=False)
    tls.flags += ["--tls-client-ca", trusted]
    with Standalone(folder / "taken", tls=tls) as alone:
        alone.folder.mkdir()
        service = alone.start("taken", "coordinator", ["--db", alone.folder / "db"])
        kept = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=30, context=tls.context)

        def status():
            kept.request("GET", "/v1/runs")
            got = kept.getresponse()
            got.read()
            return got.status

        assert status() == 200
        socket_then = kept.sock
        replace(trusted, stranger.file)
        alone.wait_until("the open connection is refused", lambda: status() == 403)
        assert kept.sock is socket_then
        replace(trusted, authority.file)
        alone.wait_until("and let in again", lambda: status() == 200)


@pytest.mark.parametrize("what", ["mismatch", "missing", "half", "expired", "garbage", "encrypted", "alone", "authority"])
def test_files_that_are_of_no_use_are_refused_at_start(what, authority, pair, tmp_path):
    certificate, key = pair
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM\n")
    flags, words = {
        "mismatch": (["--tls-cert", certificate, "--tls-key", authority.certificate("another")[1]], "is not the key of the first certificate"),
        "missing": (["--tls-cert", certificate, "--tls-key", tmp_path / "none"], "name a file that the user of this process can read"),
        "half": (["--tls-cert", certificate], "--tls-key is missing"),
        "expired": (["--tls-cert", *authority.certificate("over", days=-1)], "have it signed anew"),
        "garbage": (["--tls-cert", garbage, "--tls-key", key], "certificates in PEM"),
        "encrypted": (["--tls-cert", certificate, "--tls-key", tmp_path / "locked.key"], "without a passphrase"),
        "alone": (["--tls-client-ca", authority.file], "--tls-cert and --tls-key are missing"),
        "authority": (["--tls-ca", garbage], "--tls-ca"),
    }[what]
    if what == "expired":
        flags.insert(2, "--tls-key")
    if what == "encrypted":
        authority.openssl("pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", tmp_path / "locked.key")
    for program in ("coordinator", "generation-server", "trainer-server", "rollout-agent"):
        done = subprocess.run([BIN / program, *map(str, flags)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1, (program, done)


def test_a_key_that_everybody_can_read_is_warned_of(authority, pair, tmp_path):
    loose = shutil.copy(pair[1], tmp_path / "loose.key")
    os.chmod(loose, 0o644)
    with Standalone(tmp_path, tls=Tls(authority, pair[0], loose)) as alone:
        service = alone.start("loose", "coordinator", ["--db", tmp_path / "db"])
        assert "chmod 600" in service.log_text()
        expires = service.metric("leasehold_tls_certificate_expires_timestamp_seconds")
        assert expires == ssl.cert_time_to_seconds(re.search("notAfter=(.*)", subprocess.run(["openssl", "x509", "-enddate", "-noout", "-in", pair[0]], check=True, capture_output=True, text=True).stdout)[1])
        service.process.send_signal(signal.SIGTERM)
        assert service.wait_end() == 0


def test_the_script_makes_certificates_that_serve_and_renews_them(tmp_path):
    files = tmp_path / "made"

    def make(*hosts):
        subprocess.run([ROOT / "deploy/security/make-certificates", files, "pool", *hosts], check=True, capture_output=True, timeout=60)

    make("127.0.0.1", "localhost", "::1")
    assert stat.S_IMODE(os.stat(files / "pool.key").st_mode) == stat.S_IMODE(os.stat(files / "ca.key").st_mode) == 0o600
    tls = Tls(Namespace(file=files / "ca.crt"), files / "pool.crt", files / "pool.key")
    with Standalone(tmp_path, tls=tls) as alone:
        service = alone.start("made", "coordinator", ["--db", tmp_path / "db"])
        assert call("GET", service.url + "/v1/runs") == {"runs": []}
        first = served(service)
        make("127.0.0.1")
        alone.wait_until("the new one is shown", lambda: served(service) != first)
        assert call("GET", service.url + "/v1/runs") == {"runs": []}
        asked = subprocess.run([ROOT / "deploy/docker/healthcheck", str(service.port), "/healthz"], env={**os.environ, "LEASEHOLD_TLS_CERT": "x"}, capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0, asked
        asked = subprocess.run([ROOT / "deploy/docker/healthcheck", str(service.port), "/v1/runs"], env={**os.environ, "LEASEHOLD_TLS_CERT": "x"}, capture_output=True, text=True, timeout=60)
        assert asked.returncode == 1 and "403" in asked.stdout, asked
    refused = subprocess.run([ROOT / "deploy/security/make-certificates", files, "pool", "a b"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "neither a host's name nor an address" in refused.stderr


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_the_compose_override_gives_every_service_its_files(tmp_path):
    files = [flag for name in ("docker-compose.yml", "docker-compose.tls.yml") for flag in ("-f", ROOT / name)]
    shown = subprocess.run(["docker-compose", *files, "config"], env={**os.environ, "TLS_DIR": str(tmp_path)}, check=True, capture_output=True, text=True, timeout=60)
    services = yaml.safe_load(shown.stdout)["services"]
    assert set(services) == set(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])
    for name, service in services.items():
        own = service["environment"]
        if name == "prometheus":  # Debian's program, which speaks to others only, as `configure` is told
            known = "".join(f"variable {variable}," for variable in re.findall(r"LEASEHOLD_TLS_\w+", (ROOT / "deploy/prometheus/configure").read_text()))
            known += "variable LEASEHOLD_TLS_CLIENT_CA,"  # of no use to it
        else:
            known = subprocess.run([BIN / service["command"][0], "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
        tls = {variable: value for variable, value in own.items() if variable.startswith("LEASEHOLD_TLS_")}
        assert len(tls) == 5 and all(f"variable {variable}," in known for variable in tls), name
        (folder,) = {value.rsplit("/", 1)[0] for variable, value in tls.items() if variable != "LEASEHOLD_TLS_PEER_NAME"}
        assert f"{tmp_path}:{folder}:ro" in service["volumes"], name
        assert own.get("LEASEHOLD_COORDINATOR", "https://coordinator:8000") == "https://coordinator:8000", name
