"""The runs that are compared."""
import json
import typing

from harness import DATA, digests


class Reference(typing.NamedTuple):
    config: dict  # of the run; it starts from a version of the warm-up in the stack's database
    warmup: int  # rounds of the warm-up
    of_the_base: list  # digests of its last rounds
    digests: list  # of the run's rounds, all of them


def demo_config(rounds, start):
    """The demo's own run, with its seed."""
    config = json.loads((DATA / "runs/grpo.json").read_text())
    config.update(rounds=rounds, seed=1, start=start)
    return config


def begin(stack, reference, round=2):
    """The same run again; returns its id when that round has begun."""
    run = stack.create_run(reference.config)
    stack.wait_until(f"round {round} has begun", lambda: stack.under_way(run, round), seconds=120)
    return run


def same_weights(stack, run, reference):
    """Waits for the run, and compares; returns its status."""
    status = stack.wait(run, seconds=900)
    totals = status["totals"]
    assert totals["logprob_unequal"] == 0 and totals["stale_results_trained_on"] == 0, totals
    assert digests(status) == reference.digests, "the disturbed run ended with other weights than the undisturbed one"
    return status
