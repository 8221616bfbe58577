"""What can never work is refused where it is posted, with the field, and for a dataset with the file and the line: no run is made of it that ends later."""
import json

import pytest

from harness import DATA, Cluster, HttpError, call, grpo_config, warmup_config

GOOD = '{"prompt":"1+1=","answer":"2"}\n\n{"prompt":"1+2=","answer":3}\n'
LINE = "bad.jsonl line 4: "
BAD_LINES = {
    "no JSON": '{"prompt":"1+1=","answer":"2"',
    "no object": "[1]",
    "no prompt": '{"answer":"2"}',
    "no text": '{"prompt":1,"answer":"2"}',
    "no gold": '{"prompt":"1+1="}',
    "a tuple": '{"prompt":"1+1=","answer":"(3,4)"}',
    "a fraction in TeX": r'{"prompt":"1+1=","answer":"\\frac{3}{4}"}',
    "words": '{"prompt":"1+1=","answer":"two"}',
    "a limit beyond the run's 32": '{"prompt":"1+1=","answer":"2","max_new_tokens":33}',
    "no limit": '{"prompt":"1+1=","answer":"2","max_new_tokens":0}',
    "no content": '{"messages":[{"role":"user"}],"answer":"2"}',
}


class WithoutTrainer(Cluster):
    def __init__(self, folder, data):
        self.folder, self.services = folder, []
        folder.mkdir()
        self.coordinator = self.start("coordinator", "coordinator", ["--db", folder / "coordinator.db", "--data-dir", data])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "good.jsonl").write_text(GOOD)
    (folder / "warmup.jsonl").write_text('{"prompt":"1+1=","completion":"2"}\n')
    return folder


@pytest.fixture(scope="module", params=["with a trainer", "without a trainer"])
def cluster(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused") / "cluster"
    if request.param == "without a trainer":
        with WithoutTrainer(folder, data) as made:
            yield made
        return
    with Cluster(folder, trainer=["--random-init", 1, "--chunk-tokens", 128], coordinator=["--data-dir", data]) as made:
        made.wait_until("the trainer is registered", lambda: call("GET", made.coordinator.url + "/v1/workers")["workers"])
        yield made


def config(**changes):
    made = grpo_config(1)
    made["training"]["chunk_tokens"] = 128
    return {**made, "dataset": {"path": "good.jsonl"}, **changes}


def supervised(path):
    return {**warmup_config(1), "dataset": {"path": path}, "groups_per_round": 1, "samples_per_group": 1, "training": {"objective": "cross_entropy", "chunk_tokens": 128}}


def refused(cluster, posted):
    """The error; and nothing has come of the run."""
    with pytest.raises(HttpError) as caught:
        cluster.create_run(posted)
    assert caught.value.status == 422, caught.value
    assert call("GET", cluster.coordinator.url + "/v1/runs")["runs"] == []
    return caught.value.json()["error"]


@pytest.mark.parametrize("fault", BAD_LINES)
def test_a_bad_line_is_refused_with_its_file_and_number(cluster, data, fault):
    (data / "bad.jsonl").write_text(GOOD + BAD_LINES[fault] + "\n")
    error = refused(cluster, config(dataset={"path": "bad.jsonl"}))
    assert error["field"] == "dataset.path" and LINE in error["message"], error
    error = refused(cluster, config(evaluation={"path": "bad.jsonl", "every_rounds": 1}))
    assert error["field"] == "evaluation.path" and LINE in error["message"], error
    error = refused(cluster, {**config(dataset={"path": "bad.jsonl"}), "training": {"objective": "evaluate"}})
    assert error["field"] == "dataset.path" and LINE in error["message"], error


def test_what_no_line_is_to_blame_for(cluster, data):
    (data / "empty.jsonl").write_text("\n")
    assert refused(cluster, config(dataset={"path": "empty.jsonl"}))["field"] == "dataset.path"
    assert refused(cluster, config(dataset={"path": "nowhere.jsonl"}))["field"] == "dataset.path"
    assert "line 1: completion" in refused(cluster, supervised("good.jsonl"))["message"]
    assert "line 1: answer" in refused(cluster, config(dataset={"path": "warmup.jsonl"}))["message"]
    assert "line 1: expected `numbers`" in refused(cluster, config(verifier={"kind": "countdown"}))["message"]
    assert refused(cluster, config(sampling={"ignore_eos": True, "stop_token_ids": [7]}))["field"] == "sampling.ignore_eos"
    long_samples = config(sampling={"max_new_tokens": 64})
    long_samples["training"]["chunk_tokens"] = 64
    assert refused(cluster, long_samples)["field"] == "sampling.max_new_tokens"


@pytest.fixture(scope="module")
def tight(data, tmp_path_factory):
    """A trainer of few tokens and little memory."""
    with Cluster(tmp_path_factory.mktemp("tight"), trainer=["--random-init", 1, "--threads", 1, "--chunk-tokens", 128, "--context-max", 64], coordinator=["--data-dir", data]) as made:
        planned = float(made.trainer.wait_log(r"memory planned: (\S+) MiB")[1])
        made.trainer.stop()
        made.trainer.restart([*made.trainer.args, "--memory-max", str(int((planned + 0.1) * 2**20))])
        made.wait_until("the trainer is registered", lambda: [w for w in call("GET", made.coordinator.url + "/v1/workers")["workers"] if w["live"]])
        yield made


def test_what_the_trainer_could_not_carry_out(tight, data):
    def training(**changes):
        made = config()
        made["training"].update(kl_coefficient=0, **changes)
        return made

    error = refused(tight, training(chunk_tokens=256))
    assert error["field"] == "training.chunk_tokens" and "--chunk-tokens" in error["message"], error
    error = refused(tight, config())
    assert error["field"] == "training.kl_coefficient" and "reference" in error["message"], error
    error = refused(tight, {**training(), "sampling": {"max_new_tokens": 64}})
    assert error["field"] == "sampling.max_new_tokens" and "--context-max" in error["message"], error
    (data / "long.jsonl").write_text(GOOD + json.dumps({"prompt": "1" * 40, "answer": 1}) + "\n")
    error = refused(tight, {**training(), "dataset": {"path": "long.jsonl"}})
    assert error["field"] == "dataset.path" and "long.jsonl line 4: prompt" in error["message"], error
    (data / "long.jsonl").write_text(json.dumps({"prompt": "1" * 40, "completion": "2" * 40}) + "\n")
    error = refused(tight, supervised("long.jsonl"))
    assert "long.jsonl line 1: completion" in error["message"], error
    assert len(tight.run(supervised("warmup.jsonl"))["history"]) == 1


def test_a_trainer_that_does_not_answer_refuses_nothing(data, tmp_path):
    """The run waits for it, as for any trainer."""
    with Cluster(tmp_path, trainer=["--random-init", 1], coordinator=["--data-dir", data]) as cluster:
        cluster.wait_until("the trainer is registered", lambda: call("GET", cluster.coordinator.url + "/v1/workers")["workers"])
        cluster.trainer.freeze()
        run = cluster.create_run(supervised("warmup.jsonl"))
        cluster.trainer.thaw()
        cluster.wait(run)


def test_every_dataset_of_the_demo_is_taken(tmp_path):
    with WithoutTrainer(tmp_path / "cluster", DATA) as cluster:
        for name in ("warmup", "grpo", "evaluate"):
            assert cluster.create_run(json.loads((DATA / f"runs/{name}.json").read_text()))
