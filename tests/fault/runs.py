"""The runs that faults strike: small, of random weights, and what must be true of each at its end."""
import dataclasses
import typing

from rig import ROLES  # rig puts tests/e2e on the path

from harness import grpo_config, warmup_config
from test_inflight import audit_stream
from test_overlap import audit

ROUNDS = 3


def letters(groups, **changes):
    """A reward for a letter that comes now and then."""
    made = grpo_config(ROUNDS, groups=groups, samples=4)
    made["sampling"]["max_new_tokens"] = 12
    made["verifier"] = {"kind": "regex", "pattern": "[a-h]"}
    made["training"].update(lr=0.001, schedule="cosine", warmup_steps=1, total_steps=12, checkpoint_every=2)
    return {**made, "stage_timeout_ms": 2000, **changes}


def refill():
    """Every group may be filtered, and another comes in its place."""
    return letters(3, filter={"zero_advantage": "refill", "refill_max": 3})


def minibatch():
    """Several steps a round over a mixture of files."""
    sources = [{"path": "train.jsonl", "weight": 2}, {"path": "test.jsonl", "weight": 1, "template": "{prompt}"}]
    return letters(4, update="minibatch", groups_per_step=2, filter={"zero_advantage": "refill", "refill_max": 3}, dataset={"sources": sources, "shuffle": True})


def curriculum():
    """Prompts chosen by how often they passed, evaluations between the rounds, old checkpoints dropped but for the best."""
    made = letters(3, filter={"zero_advantage": "keep"}, mode="sync", keep_last=1, keep_best={"set": "held out", "figure": "pass@1"})
    made["dataset"] = {"path": "validation.jsonl", "shuffle": True, "curriculum": {"rate_min": 0.1, "rate_max": 0.9}}
    made["evaluation"] = {"before": True, "every_rounds": 1, "samples": 2, "sets": [{"name": "held out", "path": "test.jsonl", "problems": 4}]}
    return made


def supervised():
    """Completions that are in the dataset; servers get the weights and sample nothing."""
    made = warmup_config(ROUNDS)
    made.update(groups_per_round=4, samples_per_group=4, publish_every=1, stage_timeout_ms=2000)
    made["training"].update(total_steps=5, warmup_steps=1, checkpoint_every=2)
    return made


def inflight():
    """Weights swapped while sampling: which tokens are of which version is a matter of timing."""
    return letters(4, mode="inflight", max_lag=2, rounds=4, filter={"zero_advantage": "keep"})


@dataclasses.dataclass(frozen=True)
class Kind:
    config: typing.Callable
    roles: tuple = ROLES
    audit: typing.Callable = lambda rig, run: None  # of the ledger, with AssertionError; none where rounds are of another kind than the audits know
    visited: bool = False  # is everything asked of the services meanwhile?
    repeats: bool = True  # it ends with the same weights to the bit, whatever strikes it; else with those that its own record leads to again


RUNS = {
    "refill": Kind(refill, audit=audit),
    "minibatch": Kind(minibatch, audit=audit),
    "preprocessed": Kind(refill, roles=(*ROLES, "pre"), audit=audit),
    "curriculum": Kind(curriculum),
    "visited": Kind(curriculum, visited=True),
    "supervised": Kind(supervised),
    "inflight": Kind(inflight, audit=audit_stream, repeats=False),
}
