"""On-policy distillation from a teacher of another family, shape and padded vocabulary, which shares the student's tokenizer alone.

What would break: the teacher's numbers are those of other weights, a student does not come nearer to it, a run goes on without its
teacher, or what a run ends with depends on who was killed meanwhile.
"""
import array
import json
import random
import shutil
import time

import pytest

from harness import DATA, Cluster, call, digests, grpo_config, make_base_model

ROUNDS, MANY_ROUNDS, GROUPS, SAMPLES = 10, 60, 24, 8
QUICK = ["--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--batch-tokens", 3000]
OTHER = {"model_type": "llama", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 304, "tie_word_embeddings": False}
KILLS = 6  # of each role
ALIVE_SECONDS_MAX, DEAD_SECONDS_MAX = 0.8, 0.5


@pytest.fixture(scope="module")
def teacher_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    shutil.copytree(DATA / "model", folder / "model")
    config = json.loads((folder / "model/config.json").read_text())
    for key in ("architectures", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"):
        config.pop(key)
    (folder / "model/config.json").write_text(json.dumps({**config, **OTHER}))
    return make_base_model(folder, rounds=60, model=folder / "model")


def taught(cluster, teacher_model):
    """The teacher's process, and the digest by which runs name it."""
    service = cluster.start("teacher", "trainer-server", ["--role", "teach", "--model", teacher_model, "--coordinator", cluster.coordinator.url, "--name", "teacher", "--threads", 1])
    return service, service.wait_log(r'runs name it in training.teacher "(\w+)"')[1]


def distill(teacher, rounds=ROUNDS, **more):
    made = grpo_config(rounds, groups=GROUPS, samples=SAMPLES)
    for key in ("advantage", "filter", "overlong", "mode", "verifier"):
        made.pop(key, None)
    made.update(recipe="distill", start="model", training={"lr": 0.002, "teacher": teacher, "checkpoint_every": 3})
    made.update(more)
    return made


def numbers(kind, blob):
    made = array.array(kind)
    made.frombytes(blob)
    return made.tolist()


def packed(blob, count):
    """Ids as rollouts hold them: so many bytes each as the number of tokens tells."""
    width = len(blob) // count
    return [int.from_bytes(blob[at : at + width], "little") for at in range(0, len(blob), width)]


def told(cluster, run, round_):
    """(prompt, completion, the student's log-probabilities, the teacher's) of each sample, as the ledger has them."""
    passes = {group: numbers("f", logprobs) for group, logprobs in cluster.query("SELECT group_ordinal, logprobs FROM passes WHERE run = ? AND round = ? AND state = 2", int(run[1:]), round_)}
    rows = cluster.query("SELECT g.ordinal, g.prompt_ids, r.token_ids, r.logprobs FROM groups g JOIN rollouts r ON r.run = g.run AND r.round = g.round AND r.group_ordinal = g.ordinal "
                         "WHERE g.run = ? AND g.round = ? AND g.purpose = 0 ORDER BY g.ordinal, r.sample", int(run[1:]), round_)
    for group, prompt, tokens, logprobs in rows:
        own = numbers("f", logprobs)
        mine, passes[group] = passes[group][: len(own)], passes[group][len(own) :]
        yield numbers("i", prompt), packed(tokens, len(own)), own, mine


def gap(cluster, run, round_):
    squares = [(a - b) ** 2 for _, _, own, mine in told(cluster, run, round_) for a, b in zip(own, mine, strict=True)]
    return sum(squares) / len(squares)


def test_a_teacher_of_another_family_is_followed(other_model, teacher_model, tmp_path):
    with Cluster(tmp_path, model=other_model, coordinator=QUICK, trainer=["--threads", 1]) as cluster:
        cluster.add_server("gen-1", "--threads", 1)
        _, digest = taught(cluster, teacher_model)
        status = cluster.run(distill(digest))
        assert all(row["exact"] for row in status["history"]) and len(set(digests(status))) == ROUNDS
        first, last = gap(cluster, status["id"], 0), gap(cluster, status["id"], ROUNDS - 1)
        assert last < 0.85 * first, (first, last)
        # an ordinary server with the teacher's weights says the same of the same tokens, bit for bit
        scorer = cluster.start("scorer", "generation-server", ["--model", teacher_model, "--threads", 1])
        for prompt, completion, _, mine in list(told(cluster, status["id"], 0))[::SAMPLES]:
            body = {"input_ids": prompt + completion, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
            scored = call("POST", scorer.url + "/generate", body)["meta_info"]["input_token_logprobs"][len(prompt) :]
            assert array.array("f", [pair[0] for pair in scored]).tolist() == mine


@pytest.mark.long
def test_every_role_of_a_distilling_run_is_killed(other_model, teacher_model, tmp_path):
    with Cluster(tmp_path / "undisturbed", model=other_model, coordinator=QUICK, trainer=["--threads", 1]) as cluster:
        cluster.add_server("gen-1", "--threads", 1)
        _, digest = taught(cluster, teacher_model)
        expected = digests(cluster.run(distill(digest, MANY_ROUNDS, mode="sync")))
    dice = random.Random(11)
    with Cluster(tmp_path / "killed", model=other_model, coordinator=QUICK, trainer=["--threads", 1]) as cluster:
        one, two = (cluster.add_server(name, "--slots", 4, "--threads", 1) for name in ("gen-1", "gen-2"))
        teacher, _ = taught(cluster, teacher_model)
        victims = [cluster.coordinator, cluster.trainer, one, two, teacher] * KILLS
        dice.shuffle(victims)
        run = cluster.create_run(distill(digest, MANY_ROUNDS))
        killed = 0
        for victim in victims:
            time.sleep(dice.uniform(0, ALIVE_SECONDS_MAX))
            if cluster.query("SELECT ended_ms FROM runs") != [(None,)]:
                break
            victim.kill()
            killed += 1
            time.sleep(dice.uniform(0, DEAD_SECONDS_MAX))
            victim.restart()
        status = cluster.wait(run)
        assert killed >= len(victims) // 2, f"the run was over after {killed} kills"
        assert cluster.query("SELECT kind, detail FROM incidents WHERE kind = 'nondeterminism'") == []
    assert digests(status) == expected and len(set(expected)) == MANY_ROUNDS
