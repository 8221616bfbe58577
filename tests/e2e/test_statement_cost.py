"""A round costs the coordinator the same however many came before it: no statement reads its way through the run's past."""
import pathlib
import subprocess

import pytest

from harness import BIN, DATA, Cluster, grpo_config

SHORT, LONG = 30, 150  # rounds; reading the whole past would cost a round of the long run five times that of the short one
TIMES, SPARE = 2.0, 300  # what a round may cost more, and instructions on top: depths of trees, and what goes by the clock
SPARE_OF_PASSES = 1000  # how many of a round's passes a preprocessor gets before the trainer begins them is chance
GROUPS, SAMPLES = 4, 2


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A folder with a coordinator that counts, and where it writes."""
    folder = tmp_path_factory.mktemp("counted")
    source, library, costs = pathlib.Path(__file__).with_name("statement_cost.c"), folder / "statement_cost.so", folder / "costs"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    program = folder / "coordinator"
    program.write_text(f'#!/bin/sh\nLD_PRELOAD={library} STATEMENT_COST={costs} exec {BIN}/coordinator "$@"\n')
    program.chmod(0o755)
    return folder, costs


def costs_a_round(counted, folder, mode, preprocessors, rounds):
    """{statement: instructions a round}"""
    config = {**grpo_config(rounds, groups=GROUPS, samples=SAMPLES), "mode": mode}
    config["training"].update(lr=0.0, checkpoint_every=rounds)
    config["sampling"]["max_new_tokens"] = 4
    with Cluster(folder, trainer=["--random-init", 1, "--threads", 1], coordinator_bin=counted[0]) as cluster:
        cluster.add_server("gen-1", "--threads", 1, "--slots", 16)
        for i in range(preprocessors):
            cluster.start(f"pre-{i}", "trainer-server", ["--role", "preprocess", "--coordinator", cluster.coordinator.url, "--model", DATA / "model", "--name", f"pre-{i}", "--threads", 1])
        run = int(cluster.create_run(config)[1:])  # what a look at the status costs is its reader's affair: the database is asked
        cluster.wait_until("the run is over", lambda: cluster.query("SELECT 1 FROM runs WHERE id = ? AND ended_ms IS NOT NULL", run))
        cluster.coordinator.stop()
    lines = (line.split("\t", 1) for line in counted[1].read_text().splitlines() if "\t" in line)
    return {text: int(instructions) / rounds for instructions, text in lines}


@pytest.mark.parametrize("mode, preprocessors", [("pipelined", 0), ("inflight", 0), ("pipelined", 1)])
def test_a_round_costs_no_more_for_the_rounds_before_it(counted, tmp_path, mode, preprocessors):
    short = costs_a_round(counted, tmp_path / "short", mode, preprocessors, SHORT)
    long = costs_a_round(counted, tmp_path / "long", mode, preprocessors, LONG)
    assert len(short) > 100 and sum(short.values()) > 1000, "nothing was counted"
    dear = {text: (round(short.get(text, 0)), round(now)) for text, now in long.items() if now > TIMES * short.get(text, 0) + (SPARE_OF_PASSES if preprocessors else SPARE)}
    assert not dear, dear
