"""Metrics, alerts and the dashboard, judged by Debian's Prometheus, which scrapes real services while a run goes on.

Prometheus is taken from the PATH, or from Debian's package, which is unpacked in build/prometheus and not installed.  Long, because that is 100 MB.
"""
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

from harness import ROOT, Cluster, call, grpo_config

pytestmark = pytest.mark.long

LABELS = {"as", "cause", "class", "le", "part", "rows_max", "state", "way", "why"}  # each with a fixed set of values
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/leasehold.json"


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


def dashboard_expressions():
    return [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


def test_every_alert_fires_when_it_should_and_only_then(tmp_path):
    promtool("check", "rules", ALERTS)
    promtool("check", "config", "--syntax-only", ROOT / "deploy/prometheus/prometheus.yml")
    played = tmp_path / "alerts_test.yml"
    played.write_text((ROOT / "tests/prometheus/alerts_test.yml").read_text().replace("[ALERTS]", f"[{ALERTS}]"))
    promtool("test", "rules", played)


class Prometheus:
    def __init__(self, folder, cluster):
        jobs = {"leasehold-coordinator": [cluster.coordinator], "leasehold-trainer": [cluster.trainer], "leasehold-generation": [s for s in cluster.services if s.program == "generation-server"]}
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{service.port}" for service in services]}]} for job, services in jobs.items()],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
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
        return self.url and call("GET", self.url + "/-/ready", raw=True)

    def query(self, expression):
        answer = call("GET", f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    def stop(self):
        self.process.terminate()
        self.process.wait()


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
        prometheus = Prometheus(tmp_path, cluster)
        try:
            cluster.wait_until("Prometheus is ready", prometheus.ready)
            config = grpo_config(40, groups=16, samples=8)
            config["training"]["kl_coefficient"] = 0.01
            run = cluster.create_run(config)
            cluster.wait_until("rounds were scraped", lambda: any(float(series["value"][1]) >= 3 for series in prometheus.query("leasehold_run_rounds_done")))
            cluster.wait(run)
            time.sleep(2)  # four scrapes more
            empty = [expression for expression in dashboard_expressions() if not prometheus.query(expression)]
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
        finally:
            prometheus.stop()
