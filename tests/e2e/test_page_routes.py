"""What the page at / is served with and what it reads: open files under a strict policy, and figures that are those of the stored rows.  The page itself is
tested in a browser: tests/page.
"""
import statistics
import struct

import pytest

from harness import ROOT, Cluster, HttpError, call, exchange, grpo_config
from reference_model import ReferenceModel
from zombie import Conversation

FILES = ROOT / "services/coordinator/page/files"
ROUNDS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, base_model):
    chart = tmp_path_factory.mktemp("chart") / "chart.min.js"
    chart.write_text("/* a chart */")
    with Cluster(tmp_path_factory.mktemp("page"), model=base_model, trainer=["--threads", 1], coordinator=["--auth-token", "secret", "--chart-js", chart]) as made:
        yield made


@pytest.fixture(scope="module")
def run(tmp_path_factory, base_model):
    with Cluster(tmp_path_factory.mktemp("run"), model=base_model, trainer=["--threads", 1]) as made:
        made.add_server("gen", "--slots", 16)
        config = grpo_config(ROUNDS, groups=4, samples=4)
        config["filter"] = {"zero_advantage": "refill", "refill_max": 2}
        status = made.run(config)
        yield made, status["id"], f"{made.coordinator.url}/v1/runs/{status['id']}"


TERMS = [{"kind": "numeric", "weight": 1}, {"kind": "length", "min": 2, "max": 6, "weight": 0.25}, {"kind": "length", "max": 7, "weight": -0.5}]


@pytest.fixture(scope="module")
def conversation(tmp_path_factory, base_model):
    """A run of one round whose samples have two turns, judged by a sum."""
    with Cluster(tmp_path_factory.mktemp("turns"), model=base_model, trainer=["--threads", 1]) as made:
        config = {**grpo_config(1, groups=2, samples=4), "verify_samples": False, "verifier": {"terms": TERMS}}  # what it samples is made up
        status = Conversation.play(made, made.create_run(config))
        yield made, f"{made.coordinator.url}/v1/runs/{status['id']}"


def test_the_page_is_open_and_the_data_is_not(cluster):
    url = cluster.coordinator.url
    status, headers, body = exchange("GET", url + "/")
    assert status == 200 and b"<title>Leasehold" in body and headers["Content-Type"].startswith("text/html")
    policy = headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
        assert rule in policy
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/v1/runs", "/v1/runs/r1", "/v1/runs/r1/samples", "/v1/runs/r1/spread", "/v1/groups/r1.0.0", "/metrics"):
        assert exchange("GET", url + path)[0] == 401
    assert exchange("GET", url + "/page/chart.js")[2] == b"/* a chart */"


def test_every_file_is_served_as_it_is_and_no_other(cluster):
    url = cluster.coordinator.url
    for file in sorted(FILES.iterdir()):
        status, headers, body = exchange("GET", f"{url}/page/{file.name}")
        assert status == 200 and body == file.read_bytes(), f"{file.name} is not in the table of page_files.c"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        again, _, nothing = exchange("GET", f"{url}/page/{file.name}", headers={"If-None-Match": headers["ETag"]})
        assert again == 304 and nothing == b""
        assert exchange("GET", f"{url}/page/{file.name}", headers={"If-None-Match": '"other"'})[0] == 200
    for name in ("none.js", "..%2f..%2fMakefile", "%2fetc%2fpasswd", "..", "README.md"):
        assert exchange("GET", f"{url}/page/{name}", headers={"Authorization": "Bearer secret"})[0] == 404


def test_spread_is_that_of_the_stored_samples(run):
    cluster, _, url = run
    spreads = call("GET", url + "/spread")
    assert spreads["next"] is None and [spread["round"] for spread in spreads["rounds"]] == list(range(ROUNDS))
    assert call("GET", url + "/spread?from=2")["rounds"] == spreads["rounds"][2:]
    for spread in spreads["rounds"]:
        rows = cluster.query("SELECT s.group_ordinal, s.reward, s.tokens, s.finish, g.state FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal WHERE s.round = ? AND g.purpose = 0", spread["round"])
        assert spread["samples"] == len(rows) and spread["truncated"] == sum(row[3] == 1 for row in rows)
        assert spread["terms"] == [] and spread["turns"]["min"] == spread["turns"]["max"] == 1
        for key, column in (("reward", 1), ("tokens", 2)):
            values = sorted(row[column] for row in rows)
            assert spread[key]["mean"] == pytest.approx(statistics.fmean(values)) and spread[key]["std"] == pytest.approx(statistics.pstdev(values))
            assert (spread[key]["min"], spread[key]["max"]) == (values[0], values[-1])
            for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
                assert spread[key][name] == values[max(0, -(-len(values) * round(share * 10) // 10) - 1)]
        groups = {row[0]: {other[1] for other in rows if other[0] == row[0]} for row in rows}
        states = {row[0]: row[4] for row in rows}
        assert spread["groups"]["without_signal"] == sum(len(rewards) == 1 for rewards in groups.values())
        assert spread["groups"]["filtered"] == sum(state == 4 for state in states.values()) and spread["groups"]["trained"] == sum(state == 3 for state in states.values())
        assert spread["groups"]["refills"] == cluster.query("SELECT count(*) FROM refills WHERE round = ?", spread["round"])[0][0]
    assert any(spread["groups"]["without_signal"] for spread in spreads["rounds"])


def test_samples_are_found_over_all_rounds_page_by_page(run):
    cluster, _, url = run
    rows = cluster.query("SELECT s.round, s.group_ordinal, s.sample, s.reward, g.prompt, o.text, s.finish FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal JOIN rollouts o ON o.run = s.run AND o.round = s.round AND o.group_ordinal = s.group_ordinal AND o.sample = s.sample ORDER BY 1 DESC, 2 DESC, 3 DESC")
    ids = ["r1.%d.%d.%d" % row[:3] for row in rows]

    def found(query="", limit=7):
        got, before = [], ""
        while True:
            answer = call("GET", f"{url}/samples?limit={limit}{query}{before}")
            assert len(answer["samples"]) <= limit
            got += [row["id"] for row in answer["samples"]]
            if answer["next"] is None:
                return got
            before = f"&before={answer['next']}"

    assert found() == ids and found(limit=200) == ids
    assert found("&reward_min=0.5") == [i for i, row in zip(ids, rows) if row[3] >= 0.5]
    assert found("&reward_max=0.5&finish=length") == [i for i, row in zip(ids, rows) if row[3] <= 0.5 and row[6] == 1]
    assert found("&round_min=1&round_max=1") == [i for i, row in zip(ids, rows) if row[0] == 1]
    part = rows[len(rows) // 2][4][:4]
    encoded = part.replace("+", "%2B").replace("=", "%3D").replace("#", "%23")
    assert found(f"&text={encoded}") == [i for i, row in zip(ids, rows) if part in row[4] or part in (row[5].decode(errors="replace") if isinstance(row[5], bytes) else row[5])] != []
    assert found("&purpose=evaluation") == [] and found("&group_state=filtered") != []
    assert found("&text=nowhere%20to%20be%20found") == []
    for query, field in (("reward_min=x", "reward_min"), ("finish=abort2", "finish"), ("before=1.2", "before"), ("before=1.2.3x", "before"), ("before=-1.0.0", "before"), ("before=%201.2.3", "before"), ("before=1.%202.3", "before"),
                         ("before=1.2.3.", "before"), ("before=1.2.1234567890123", "before"), ("reward_min=0x1p3", "reward_min"), ("reward_max=%201", "reward_max"), ("reward_min=nan", "reward_min"), ("group_state=", "group_state"), ("limit=201", "limit")):
        with pytest.raises(HttpError) as refused:
            call("GET", f"{url}/samples?{query}")
        assert refused.value.status == 422 and refused.value.json()["error"]["field"] == field


def test_a_group_is_shown_token_by_token(run):
    cluster, run_id, url = run
    rollouts = [row for row in call("GET", url + "/rollouts?round=1&limit=4096")["rollouts"] if row["group"] == "r1.1.0"]
    group = call("GET", f"{cluster.coordinator.url}/v1/groups/r1.1.0")
    assert group["run"] == run_id and group["prompt"] == rollouts[0]["prompt"] and len(group["samples"]) == len(rollouts) == group["samples_asked"]
    for sample, rollout in zip(group["samples"], rollouts):
        for key in ("id", "text", "token_ids", "logprobs", "reward", "terms", "advantage", "finish", "worker"):
            assert sample[key] == rollout[key]
        assert sum(span["count"] for span in sample["version_spans"]) == len(sample["token_ids"]) and sample["version_spans"][0]["version"] == 1
        assert sample["segments"] == [{"start": 0, "count": len(sample["token_ids"]), "loss_mask": True}]
        # The run has ended: the tokenizer is asked of the trainer.  Special tokens are shown, and are not in the text; bytes that are no character make U+FFFD.
        assert len(sample["token_texts"]) == len(sample["token_ids"])
        if "\ufffd" not in sample["text"]:
            assert "".join(text for text in sample["token_texts"] if not text.startswith("<")) == sample["text"]
    assert [sample["sample"] for sample in call("GET", f"{cluster.coordinator.url}/v1/groups/r1.1.0?from=1&limit=2")["samples"]] == [1, 2]
    for unknown in ("r1.1.99", "r9.0.0", "r1.1", "x"):
        with pytest.raises(HttpError) as missing:
            call("GET", f"{cluster.coordinator.url}/v1/groups/{unknown}")
        assert missing.value.status == 404 and "there is no group" in missing.value.json()["error"]["message"]


def test_entropies_are_those_of_an_independent_computation(run, base_model):
    """Round 0 was sampled and trained under the base model's weights.  bf16 operands cost two hundredths of a nat at most."""
    cluster, _, url = run
    model, compared, off_by_one = ReferenceModel(base_model), [], []
    row = call("GET", url + "?history=10")["history"][0]
    groups = [call("GET", f"{cluster.coordinator.url}/v1/groups/r1.0.{ordinal}") for (ordinal,) in cluster.query("SELECT ordinal FROM groups WHERE round = 0")]
    trained = [group for group in groups if group["trained_in"] == 0]
    assert trained and all(sample["entropies"] is None for group in groups if group["trained_in"] is None for sample in group["samples"])
    for sample in (sample for group in trained for sample in group["samples"]):
        assert len(sample["entropies"]) == len(sample["token_ids"]) and min(sample["entropies"]) >= 0
    for group in trained[:2]:
        for sample in group["samples"][:2]:
            judged = list(model.judged(group["prompt_ids"], sample["token_ids"]))
            assert max(abs(own - told) for (own, _), told in zip(judged, sample["logprobs"])) < 0.15, "the reference is another model"
            compared += [abs(own - told) for (_, own), told in zip(judged, sample["entropies"])]
            off_by_one += [abs(own - told) for (_, own), told in zip(judged, sample["entropies"][1:])]
    assert max(compared) < 0.05 and statistics.fmean(compared) < 0.005
    assert max(off_by_one) > 0.5, "the test could not tell one token's entropy from another's"
    every = [value for group in trained for sample in group["samples"] for value in sample["entropies"]]
    assert row["groups"] == len(trained) and statistics.fmean(every) == pytest.approx(row["entropy"], abs=1 / 4096)


def test_terms_of_a_reward_are_kept_with_each_sample(conversation):
    cluster, url = conversation
    rollouts = call("GET", url + "/rollouts?round=0&limit=4096")["rollouts"]
    assert len(rollouts) == 8
    for rollout in rollouts:
        assert [(term["name"], term["kind"], term["weight"]) for term in rollout["terms"]] == [("numeric", "numeric", 1), ("length", "length", 0.25), ("length_2", "length", -0.5)]
        values, length = [term["value"] for term in rollout["terms"]], len(rollout["token_ids"])
        assert values[0] in (0, 1) and values[1:] == [float(2 <= length <= 6), float(length <= 7)]
        assert rollout["reward"] == sum(term["weight"] * term["value"] for term in rollout["terms"])
        (stored,) = cluster.query("SELECT term_values FROM samples WHERE group_ordinal = ? AND sample = ?", int(rollout["group"].rsplit(".", 1)[1]), rollout["sample"])[0]
        assert list(struct.unpack("<3d", stored)) == values
    (spread,) = call("GET", url + "/spread")["rounds"]
    assert [(term["name"], term["weight"]) for term in spread["terms"]] == [("numeric", 1), ("length", 0.25), ("length_2", -0.5)]
    for i, term in enumerate(spread["terms"]):
        values = [rollout["terms"][i]["value"] for rollout in rollouts]
        assert term["value"]["mean"] == pytest.approx(statistics.fmean(values)) and term["value"]["std"] == pytest.approx(statistics.pstdev(values))


def test_turns_are_shown_with_their_masks(conversation):
    cluster, url = conversation
    (spread,) = call("GET", url + "/spread")["rounds"]
    assert (spread["turns"]["min"], spread["turns"]["mean"], spread["turns"]["max"]) == (2, 2, 2)
    for ordinal in range(2):
        group = call("GET", f"{cluster.coordinator.url}/v1/groups/r1.0.{ordinal}")
        for sample in group["samples"]:
            assert sample["segments"] == Conversation.segments(len(sample["token_ids"]))
            if sample["entropies"] is not None:
                assert [value is None for value in sample["entropies"]] == [False] * 3 + [True] * 2 + [False] * (len(sample["token_ids"]) - 5)
        if group["trained_in"] is not None:
            assert all(sample["entropies"] for sample in group["samples"])


def test_a_tokenizer_is_asked_for_once(run):
    """Groups are looked at one after the other, and a tokenizer has megabytes: the trainer is asked when another has come."""
    cluster, _, _ = run
    url = f"{cluster.coordinator.url}/v1/groups/r1.0.0"
    assert call("GET", url)["samples"][0]["token_texts"]
    cluster.trainer.freeze()
    try:
        assert call("GET", url)["samples"][0]["token_texts"], "the trainer stands still, and its tokenizer is known"
    finally:
        cluster.trainer.thaw()


def test_only_what_is_to_come_is_told_without_the_past(run):
    _, _, url = run
    assert call("GET", url + "/events?past=0", raw=True) == b"retry: 1000\n\n"
    assert call("GET", url + "/events", raw=True).count(b"event: round") == ROUNDS
    assert call("GET", url + "?history=0")["history"] == [] and len(call("GET", url + "?history=2")["history"]) == 2


def test_the_document_asks_for_every_module_at_once():
    document = (FILES / "index.html").read_text()
    for module in FILES.glob("*.js"):
        assert f'"/page/{module.name}"' in document, f"{module.name} is loaded only when another module has come"
