"""Metrics, alerts and the dashboard, judged by Debian's Prometheus, which scrapes real services while a run goes on.

Prometheus is taken from the PATH, or from Debian's package, which is unpacked in build/prometheus and not installed.  Long, because that is 100 MB.
"""
import copy
import functools
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse

import pytest
import yaml

from authority import Authority, Tls
from foreign_engine import ForeignEngine
from harness import DATA, ROOT, TOKEN_OF, Cluster, call, exchange, grpo_config

pytestmark = pytest.mark.long

LABELS = {"as", "cause", "class", "end", "le", "part", "rows_max", "state", "version", "way", "where", "why"}  # each with a fixed set of values; the build has one version
NEVER_IN_A_SOUND_RUN = {"sum(increase(leasehold_agent_doubts_total[5m]))", "sum(rate(leasehold_agent_results_handed_back_total[1m]))"}
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
KUBERNETES_FILES = ROOT / "deploy/kubernetes"
DASHBOARD = ROOT / "deploy/grafana/leasehold.json"
SCRAPED = {"leasehold-coordinator": "coordinator", "leasehold-trainer": "trainer", "leasehold-generation": "gen", "leasehold-preprocessor": "pre", "leasehold-rollout-agent": "agent"}  # jobs' services, as their names here begin
KUBERNETES = {"leasehold-coordinator": "coordinator", "leasehold-trainer": "trainer-server", "leasehold-generation": "generation-server", "leasehold-preprocessor": "preprocessor",
              "leasehold-rollout-agent": "rollout-agent"}  # their workloads


@functools.cache
def program(name):
    folder = ROOT / "build/prometheus"
    if found := shutil.which(name):
        return found
    if not (folder / "usr/bin" / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=folder, check=True)
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    return str(folder / "usr/bin" / name)


def promtool(*args, text=None):
    done = subprocess.run([program("promtool"), *map(str, args)], input=text, capture_output=True, text=True)
    assert done.returncode == 0 and not (text and done.stderr.strip()), done.stdout + done.stderr


def alert_expressions():
    return [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard_expressions(helpers):
    """Of preprocessors and rollout-agents, or of the others."""
    found = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    return [expression for expression in found if bool(re.search(r"leasehold[_-](preprocessor|passes|agent|rollout-agent)", expression)) == helpers]


def test_every_alert_fires_when_it_should_and_only_then(tmp_path):
    promtool("check", "rules", ALERTS)
    promtool("check", "config", "--syntax-only", ROOT / "deploy/prometheus/prometheus.yml")
    played = tmp_path / "alerts_test.yml"
    played.write_text((ROOT / "tests/prometheus/alerts_test.yml").read_text().replace("[ALERTS]", f"[{ALERTS}]"))
    promtool("test", "rules", played)


def targets_of(cluster, job):
    return [f"127.0.0.1:{service.port}" for service in cluster.services if service.name.startswith(SCRAPED[job])]


def scrape_configs(cluster):
    return [{"job_name": job, "static_configs": [{"targets": targets_of(cluster, job)}]} for job in SCRAPED]


class Prometheus:
    """Over these scrape_configs, whose files are looked for in the folder."""

    def __init__(self, folder, scrapes):
        config = {"global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"}, "rule_files": [str(ALERTS)], "scrape_configs": scrapes}
        folder.mkdir(exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        promtool("check", "config", folder / "prometheus.yml")
        with open(folder / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(
                [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", "--web.listen-address=127.0.0.1:0"],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "GOMAXPROCS": "1"},
            )
        self.log = folder / "prometheus.log"
        self.url = None

    def ready(self):
        if not self.url and (match := re.search(r"Listening on\" address=(\S+)", self.log.read_text())):
            self.url = f"http://{match[1]}"
        return self.url and exchange("GET", self.url + "/-/ready")[0] == 200  # 503 while it starts

    def query(self, expression):
        answer = call("GET", f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def targets(self):
        """(job, health, URL, error) of each."""
        return sorted((one["labels"]["job"], one["health"], one["scrapeUrl"], one["lastError"]) for one in call("GET", f"{self.url}/api/v1/targets")["data"]["activeTargets"])

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def check_exposition(service):
    """promtool finds nothing, units are base units, and labels are of those whose values are a fixed set."""
    text = call("GET", service.url + "/metrics", raw=True).decode()
    promtool("check", "metrics", text=text)
    for name in re.findall(r"^# TYPE (\S+)", text, re.M):
        assert name.startswith("leasehold_") and not re.search(r"_(ms|us|ns|milliseconds|minutes|kb|mb|mib|percent)(_|$)", name), name
    labels = set(re.findall(r'[{,]([a-z_]+)="', text))
    assert labels <= LABELS, labels - LABELS
    return text


def test_what_is_scraped_of_a_run_answers_every_panel_and_raises_no_alarm(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("gen-1", "--slots", 16)
        cluster.add_server("gen-2", "--slots", 16)
        with Prometheus(tmp_path, scrape_configs(cluster)) as prometheus:
            cluster.wait_until("Prometheus is ready", prometheus.ready)
            config = grpo_config(40, groups=16, samples=8)
            config["training"]["kl_coefficient"] = 0.01
            run = cluster.create_run(config)
            cluster.wait_until("rounds were scraped", lambda: any(float(series["value"][1]) >= 3 for series in prometheus.query("leasehold_run_rounds_done")))
            cluster.wait(run)
            time.sleep(2)  # four scrapes more
            empty = [expression for expression in dashboard_expressions(helpers=False) if not prometheus.query(expression)]
            assert empty == []
            assert all(isinstance(prometheus.query(expression), list) for expression in alert_expressions())
            assert prometheus.query('ALERTS{alertstate="firing"}') == []
            for service in cluster.services:
                check_exposition(service)
            assert [float(series["value"][1]) for series in prometheus.query('leasehold_runs{state="completed"}')] == [1]
            assert float(prometheus.query("leasehold_round_seconds_count")[0]["value"][1]) == 40
            assert float(prometheus.query("leasehold_round_reward_mean")[0]["value"][1]) == cluster.status(run)["history"][-1]["reward_mean"]
            cluster.services[-1].kill()
            cluster.wait_until("the server counts as silent", lambda: prometheus.query("leasehold_workers_silent_total > 0"))
            cluster.wait_until("that is an alert", lambda: prometheus.query('ALERTS{alertname="LeaseholdWorkerSilent"}'))


def test_what_is_scraped_of_preprocessors_and_agents_answers_their_panels_and_says_when_they_are_gone(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        tie = ["--coordinator", cluster.coordinator.url]
        preprocessor = cluster.start("pre-1", "trainer-server", ["--role", "preprocess", "--model", base_model, "--name", "pre-1", *tie])
        backend = cluster.start("backend", "generation-server", ["--model", base_model, "--slots", 8, "--context-max", 96])
        with ForeignEngine(backend.url, base_model) as engine:
            cluster.start("agent-1", "rollout-agent", ["--engine-url", engine.url, "--weights-dir", tmp_path / "versions", "--name", "agent-1", *tie])
            with Prometheus(tmp_path, scrape_configs(cluster)) as prometheus:
                cluster.wait_until("Prometheus is ready", prometheus.ready)
                config = grpo_config(1000, groups=8, samples=4)
                config["training"]["kl_coefficient"] = 0.01
                run = cluster.create_run(config)

                def without_data():
                    return [expression for expression in dashboard_expressions(helpers=True) if expression not in NEVER_IN_A_SOUND_RUN
                            and not prometheus.query(f"max_over_time(({expression})[10m:500ms]) > 0")]

                cluster.wait_until("every panel has shown something", lambda: without_data() == [], 90)
                assert all(prometheus.query(expression) for expression in dashboard_expressions(helpers=True))
                assert not prometheus.query('ALERTS{alertname!="LeaseholdInexactRound",alertstate="firing"}')
                for service in cluster.services:
                    check_exposition(service)
                engine.closed = True
                cluster.wait_until("an engine in doubt is an alert", lambda: prometheus.query('ALERTS{alertname="LeaseholdEngineInDoubt"}'))
                assert prometheus.query("sum(increase(leasehold_agent_doubts_total[5m])) > 0")
                preprocessor.kill()
                cluster.wait_until("a lost preprocessor is one too", lambda: prometheus.query('ALERTS{alertname="LeaseholdWorkerSilent",job="leasehold-preprocessor"}'))
                call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")


# --- over TLS ---

TOKEN = "viewers-and-everybodys"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("scraped") / "trusted")


@pytest.fixture(scope="module")
def secure(tmp_path_factory, authority):
    """Mutual TLS and a token; a certificate for the pool's name, besides the address that the tests call."""
    tls = Tls(authority, *authority.certificate("pool", "IP:127.0.0.1,DNS:leasehold"))
    shows = ["--auth-token", TOKEN]
    with Cluster(tmp_path_factory.mktemp("secure"), trainer=["--random-init", 1, *shows], coordinator=shows, tls=tls) as cluster:
        cluster.add_server("gen-1", *shows)
        pool = ["--coordinator", cluster.coordinator.url, *shows]
        cluster.start("pre-1", "trainer-server", ["--role", "preprocess", "--model", DATA / "model", "--name", "pre-1", *pool])
        (cluster.folder / "versions").mkdir()
        cluster.start("agent-1", "rollout-agent", ["--engine", "vllm", "--engine-url", "http://127.0.0.1:1", "--weights-dir", cluster.folder / "versions", "--name", "agent-1", *pool])
        TOKEN_OF.update({service.url: TOKEN for service in cluster.services})
        yield cluster


def environment_of(cluster, *without, **other):
    """What docker-compose.tls.yml gives Prometheus."""
    tls = cluster.tls
    shown = {"AUTH_TOKEN": TOKEN, "TLS_CA": tls.ca, "TLS_CERT": tls.certificate, "TLS_KEY": tls.key, "TLS_PEER_NAME": "leasehold", **other}
    return {"PATH": os.environ["PATH"], **{f"LEASEHOLD_{name}": str(value) for name, value in shown.items() if name not in without}}


def configured(folder, cluster, environment):
    """The scrape_configs that deploy/prometheus/configure makes, with the cluster's addresses."""
    subprocess.run([ROOT / "deploy/prometheus/configure", folder], env=environment, check=True)
    promtool("check", "config", folder / "prometheus.yml")
    scrapes = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert [scrape["job_name"] for scrape in scrapes] == list(SCRAPED)
    for scrape in scrapes:
        scrape.pop("dns_sd_configs", None)
        scrape["static_configs"] = [{"targets": targets_of(cluster, scrape["job_name"])}]
    return scrapes


def test_what_configure_makes_scrapes_services_with_mutual_tls(secure, tmp_path):
    with Prometheus(tmp_path / "p", configured(tmp_path / "p", secure, environment_of(secure))) as prometheus:
        secure.wait_until("Prometheus is ready", prometheus.ready)
        expected = [(job, "up", f"https://{target}/metrics", "") for job in sorted(SCRAPED) for target in targets_of(secure, job)]
        secure.wait_until("all are up", lambda: prometheus.targets() == expected)
        assert len(prometheus.query("leasehold_tls_certificate_expires_timestamp_seconds > time()")) == len(SCRAPED)
        for service in secure.services:
            check_exposition(service)


@pytest.mark.parametrize("without,other,error,why", [
    (["TLS_CERT", "TLS_KEY"], {}, "403", "certificate"),
    (["TLS_PEER_NAME"], {"TLS_PEER_NAME": "elsewhere"}, "not elsewhere", "refused"),
    (["AUTH_TOKEN"], {}, "401", None),
    (["TLS_CA", "TLS_CERT", "TLS_KEY"], {}, "400", "plain"),
])
def test_what_is_missing_shows_at_both_ends(secure, tmp_path, without, other, error, why):
    name = f'leasehold_tls_handshakes_failed_total{{why="{why}"}}'.replace("{", r"\{").replace("}", r"\}")
    before = secure.coordinator.metric(name) if why else 0
    with Prometheus(tmp_path / "p", configured(tmp_path / "p", secure, environment_of(secure, *[w for w in without if w not in other], **other))) as prometheus:
        secure.wait_until("Prometheus is ready", prometheus.ready)
        secure.wait_until(f"all say {error}", lambda: [(health, error in text) for _, health, _, text in prometheus.targets()] == len(SCRAPED) * [("down", True)])
        if why:
            secure.wait_until("the coordinator counts it", lambda: secure.coordinator.metric(name) > before)


def test_a_certificate_without_an_authority_to_ask_is_refused(secure, tmp_path):
    done = subprocess.run([ROOT / "deploy/prometheus/configure", tmp_path], env=environment_of(secure, "TLS_CA"), capture_output=True, text=True)
    assert done.returncode == 2 and "LEASEHOLD_TLS_CA" in done.stderr and not list(tmp_path.iterdir()), done


def test_the_clusters_scrape_configuration_finds_pods_by_their_annotations(secure, tmp_path):
    """deploy/kubernetes/metrics/prometheus.yml over what the overlay `tls` and its parts make of each pod: what Kubernetes would say of them is put in the place of asking it,
    which Debian's Prometheus is built without."""
    file = ROOT / "deploy/kubernetes/metrics/prometheus.yml"
    folder = tmp_path / "p"
    folder.mkdir()
    for name, source in (("ca.crt", secure.tls.ca), ("tls.crt", secure.tls.certificate), ("tls.key", secure.tls.key)):
        shutil.copy(source, folder / name)
    (folder / "token").write_text(TOKEN)
    text = file.read_text().replace("# tls_config:", "tls_config:").replace("/etc/leasehold", str(folder))
    (scrape,) = yaml.safe_load(text)["scrape_configs"]
    (found,) = scrape.pop("kubernetes_sd_configs")
    assert found == {"role": "pod", "namespaces": {"names": ["leasehold"]}}
    pods = []
    for job, name in KUBERNETES.items():
        base, tls = ("base", "overlays/tls") if (KUBERNETES_FILES / f"base/{name}.yaml").exists() else (f"parts/{name}", f"parts/{name}-tls")
        patch = yaml.safe_load((KUBERNETES_FILES / tls / f"{name}.yaml").read_text())
        base = next(one for one in yaml.safe_load_all((KUBERNETES_FILES / base / f"{name}.yaml").read_text()) if one["kind"] == patch["kind"])
        meta = copy.deepcopy(base["spec"]["template"]["metadata"])
        meta["annotations"].update(patch["spec"]["template"]["metadata"]["annotations"])
        for target in targets_of(secure, job):
            host, port = target.split(":")
            meta["annotations"]["prometheus.io/port"] = port  # this test's
            said = {f"__meta_kubernetes_pod_annotation_{key}": value for key, value in meta["annotations"].items()}
            said |= {f"__meta_kubernetes_pod_label_{key}": value for key, value in meta["labels"].items()}
            said = {re.sub(r"\W", "_", key): value for key, value in said.items()}
            pods.append({"targets": [f"{host}:1"], "labels": {**said, "__meta_kubernetes_namespace": "leasehold", "__meta_kubernetes_pod_name": f"{name}-0"}})
    pods.append({"targets": ["127.0.0.1:2"], "labels": {"__meta_kubernetes_namespace": "leasehold"}})  # another pod, which nobody is to scrape
    scrape["static_configs"] = pods
    with Prometheus(folder, [scrape]) as prometheus:
        secure.wait_until("Prometheus is ready", prometheus.ready)
        expected = [(job, "up", f"https://{target}/metrics", "") for job in sorted(KUBERNETES) for target in targets_of(secure, job)]
        secure.wait_until("all are up", lambda: prometheus.targets() == expected)
        assert prometheus.query('leasehold_samples_waiting{namespace="leasehold",pod="coordinator-0",job="leasehold-coordinator"}')
