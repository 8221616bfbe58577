"""A trainer goes through lives of flags drawn with a seed, which say how it computes and what it keeps: none may move a bit.

What would break: one flag takes memory, or a share of the work, that another counts on; a checkpoint of one life is read otherwise by the next.
"""
import random
import signal

import pytest

from harness import Cluster, digests, grpo_config

LIVES = 4
FEWER_LANES = ["--threads", 4, "--memory-max", 300 << 20]  # room for two units side by side


def life_of(dice):
    """Flags of a trainer that promise the same weights."""
    bound = ["--memory-max", dice.choice((100, 200, 300, 420)) << 20, *(["--fit"] if dice.random() < 0.5 else [])]
    made = ["--threads", dice.choice((1, 2, 3, 4)), "--keep-checkpoints", dice.choice((1, 3)), "--chunk-tokens", dice.choice((2048, 4096)), *(bound if dice.random() < 0.5 else [])]
    for flags in (["--recompute-activations"], ["--push-changes", "false"], ["--optimizer-state", "mapped"], ["--lean"], ["--isa", "v2"]):
        made += flags if dice.random() < 0.4 else []
    return made


@pytest.mark.parametrize("seed", [1, 2])
def test_lives_of_drawn_flags_move_no_bit(tmp_path, seed):
    dice = random.Random(seed)
    made = grpo_config(12, seed=seed, groups=8, samples=4)
    made["verifier"] = {"kind": "regex", "pattern": "[a-h]"}
    made["training"]["checkpoint_every"] = 2
    with Cluster(tmp_path / "plain", trainer=["--random-init", 1, "--threads", 1]) as cluster:
        cluster.add_server("alone", "--threads", 1)
        expected = digests(cluster.run(made))
    assert len(set(expected)) == made["rounds"]
    with Cluster(tmp_path / "lives", trainer=["--random-init", 1, *FEWER_LANES]) as cluster:
        cluster.add_server("alone", "--threads", 1)
        run, base = cluster.create_run(made), cluster.trainer.args[: -len(FEWER_LANES)]
        for life in range(LIVES):
            cluster.wait_until("more versions", lambda: (cluster.status(run)["version"] or 0) > 2 * life)
            cluster.trainer.stop(dice.choice((signal.SIGTERM, signal.SIGKILL)))
            cluster.trainer.restart([*base, *life_of(dice)])
        assert digests(cluster.wait(run)) == expected
