"""A length for every prompt: a dataset whose lines name `max_new_tokens`, sampled with `ignore_eos`, gives exactly those lengths, and the same weights with
one server, with two unlike ones, and when everybody is killed in the middle.  What would break: a workload whose lengths are not those that were written; a
limit that is forgotten by a restart, or that depends on who samples."""
import json
import shutil
import signal

import pytest

from harness import DATA, SLOWLY, Cluster, HttpError, call, digests, grpo_config

ROUNDS, GROUPS, SAMPLES = 4, 8, 4
SHORT, LONG, MOST = 5, 28, 32  # a line in five has none of its own, and so the run's
EOS = 256
WAITING, LEASED, DONE = 0, 1, 2
FINISH_LENGTH = 1
QUICK = ["--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--batch-tokens", 700]
SLOTS = 3
SLOW = ["--slots", SLOTS, "--isa", "v2", SLOWLY]


def limit_of(index):
    return MOST if index % 5 == 0 else LONG if index % 5 == 1 else SHORT


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()[:64]]
    for index, line in enumerate(lines):
        if limit_of(index) != MOST:
            line["max_new_tokens"] = limit_of(index)
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copy(DATA / "validation.jsonl", folder)
    return folder


def config(mode="pipelined", **sampling):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made.update(mode=mode, sampling={"temperature": 1, "max_new_tokens": MOST, "ignore_eos": True, **sampling})
    return made


def start(folder, model, data):
    return Cluster(folder, model=model, coordinator=["--data-dir", data, *QUICK])


def samples_of(cluster):
    """(line of the dataset from 0, the group's stored limit, tokens, how it ended) of every sample of the run r1."""
    join = "FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal"
    return cluster.query(f"SELECT g.dataset_index, g.max_new_tokens, s.tokens, s.finish {join} WHERE s.run = 1 AND s.state = ?", DONE)


def assert_exact_lengths(cluster, status):
    samples = samples_of(cluster)
    assert len(samples) == ROUNDS * GROUPS * SAMPLES
    for index, stored, tokens, finish in samples:
        assert stored == tokens == limit_of(index) and finish == FINISH_LENGTH, (index, stored, tokens, finish)
    assert {tokens for _, _, tokens, _ in samples} == {SHORT, LONG, MOST}
    assert status["totals"]["logprob_unequal"] == 0 and all(row["exact"] for row in status["history"])
    assert cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'") == []


@pytest.fixture(scope="module")
def reference(base_model, data, tmp_path_factory):
    with start(tmp_path_factory.mktemp("one"), base_model, data) as cluster:
        cluster.add_server("alone", "--slots", 4)
        status = cluster.run(config("sync"))
        assert_exact_lengths(cluster, status)
        rollouts = [r for round_ in range(ROUNDS) for r in call("GET", f"{cluster.coordinator.url}/v1/runs/r1/rollouts?round={round_}&limit=100")["rollouts"]]
        assert {r["finish"] for r in rollouts} == {"length"}
        assert any(EOS in r["token_ids"][:-1] for r in rollouts), "no sample came to an end that it had to ignore"
        assert status["config"]["sampling"]["ignore_eos"] is True
    assert len(set(digests(status))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return digests(status)


def test_two_unlike_servers_sample_the_same_lengths(base_model, data, reference, tmp_path):
    with start(tmp_path, base_model, data) as cluster:
        cluster.add_server("small", "--slots", 2, "--page-tokens", 16, "--prefill-chunk", 5, "--isa", "v2")
        cluster.add_server("large", "--slots", 5, "--page-tokens", 64)
        cluster.wait_registered()
        status = cluster.run({**config(), "lease_samples_max": 2})
        assert_exact_lengths(cluster, status)
        assert digests(status) == reference
        assert all(worker["samples"] for worker in status["totals"]["workers"])


def freeze_in_middle(cluster, server, first):
    """Freezes the only server in the middle of a round, `first` or a later one that is seen in time, when it holds more than it decodes; which one it was."""
    def middle():
        for round_ in range(first, ROUNDS):
            states = dict(cluster.query("SELECT state, count(*) FROM samples WHERE run = 1 AND round = ? GROUP BY state", round_))
            if states.get(DONE) and states.get(LEASED, 0) > SLOTS:
                return round_ + 1
        return None

    return server.freeze_when(f"the middle of round {first} or of a later one", middle) - 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_lengths_survive_the_end_of_everybody(base_model, data, reference, tmp_path, how):
    """SIGTERM hands half-grown samples back, SIGKILL loses them; and the trainer's checkpoint is of the run's beginning, so that rounds are replayed."""
    made = config()
    made["training"]["checkpoint_every"] = ROUNDS
    with start(tmp_path, base_model, data) as cluster:
        server = cluster.add_server("alone", *SLOW)
        cluster.create_run(made)
        found = -1
        for _ in range(2):
            found = freeze_in_middle(cluster, server, found + 1)
            everybody = [server, cluster.coordinator, cluster.trainer]
            for service in everybody:
                service.process.send_signal(how)
                service.thaw()
                service.wait_end()
            for service in reversed(everybody):
                service.restart()
        cluster.add_server("helper", "--slots", 4)
        status = cluster.wait("r1")
        assert_exact_lengths(cluster, status)
        assert digests(status) == reference


def test_without_ignore_eos_a_limit_is_the_most(base_model, data, reference, tmp_path):
    with start(tmp_path, base_model, data) as cluster:
        cluster.add_server("alone", "--slots", 4)
        status = cluster.run(config(ignore_eos=False))
        samples = samples_of(cluster)
        assert all(tokens <= stored == limit_of(index) for index, stored, tokens, _ in samples)
        assert all(tokens == stored for _, stored, tokens, finish in samples if finish == FINISH_LENGTH)
        assert {finish for *_, finish in samples} == {0, FINISH_LENGTH}
        assert digests(status) != reference
        assert "ignore_eos" not in status["config"]["sampling"]


def test_a_server_too_short_for_the_longest_prompts_samples_the_others(base_model, data, reference, tmp_path):
    with start(tmp_path, base_model, data) as cluster:
        cluster.add_server("short", "--slots", 4, "--context-max", MOST)
        cluster.create_run(config())
        cluster.wait_until("the short server refuses", lambda: cluster.query("SELECT 1 FROM incidents WHERE kind = 'lease_refused'"))
        served = "SELECT DISTINCT g.max_new_tokens FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal WHERE s.state = ?"
        left = "SELECT count(*) FROM groups WHERE round = 0 AND samples_open > 0 AND max_new_tokens = ?"
        cluster.wait_until("what it can run is done", lambda: cluster.query(left, SHORT) == [(0,)])
        assert cluster.query(served, DONE) == [(SHORT,)]
        cluster.add_server("long", "--slots", 4)
        status = cluster.wait("r1")
        assert_exact_lengths(cluster, status)
        assert digests(status) == reference


def test_a_model_without_an_end_is_sampled_with_ignore_eos_alone(data, tmp_path):
    model = shutil.copytree(DATA / "model", tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((model / name).read_text())
        settings.pop("eos_token_id", None)
        (model / name).write_text(json.dumps(settings))
    with Cluster(tmp_path / "cluster", model=model, trainer=["--random-init", 1], coordinator=["--data-dir", data, *QUICK]) as cluster:
        cluster.wait_until("the trainer is registered", lambda: call("GET", cluster.coordinator.url + "/v1/workers")["workers"])
        with pytest.raises(HttpError) as caught:
            cluster.create_run(config(ignore_eos=False))
        assert caught.value.status == 422 and caught.value.json()["error"]["field"] == "sampling.stop_token_ids"
        cluster.add_server("alone", "--slots", 4)
        assert_exact_lengths(cluster, cluster.run(config()))


def test_the_tokenizers_end_of_text_ends_samples_that_the_configurations_would_let_go_on(data, tmp_path):
    model = shutil.copytree(DATA / "model", tmp_path / "model")
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"__type": "AddedToken", "content": "n"}, "model_max_length": 10**30}))
    end = ord("n")  # which these random weights draw now and then
    with Cluster(tmp_path / "cluster", model=model, trainer=["--random-init", 1], coordinator=["--data-dir", data, *QUICK]) as cluster:
        server = cluster.add_server("alone", "--slots", 4)
        run = {}
        for counts in (True, False):
            made = config(ignore_eos=False, tokenizer_eos=counts)
            made["rounds"] = 1
            status = cluster.run(made)
            assert status["config"]["sampling"].get("tokenizer_eos", False) == counts
            rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/{status['id']}/rollouts?round=0&limit=1000")["rollouts"]
            run[counts] = [sample["token_ids"] for sample in rollouts]
            assert status["totals"]["logprob_unequal"] == 0
        assert any(end in tokens[:-1] for tokens in run[False])
        assert any(tokens[-1] == end for tokens in run[True]) and not any({end, EOS} & set(tokens[:-1]) for tokens in run[True])
        assert call("GET", server.url + "/v1/model")["config"]["eos_token_ids"] == [EOS, end]
        chat = {"messages": [{"role": "user", "content": "1+1="}], "temperature": 1, "max_tokens": 32, "n": 64, "seed": 3, "return_token_ids": True}
        ended = [choice for choice in call("POST", server.url + "/v1/chat/completions", chat)["choices"] if choice["finish_reason"] == "stop"]
        assert ended and all(choice["token_ids"][-1] in (end, EOS) for choice in ended) and any(choice["token_ids"][-1] == end for choice in ended)
