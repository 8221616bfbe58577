"""What `tests/contract/run` puts between schemathesis and a service, in schemathesis' own process (SCHEMATHESIS_HOOKS): requests are kept short, and
failures that explained.yaml accounts for are dropped, each use noted so that an entry which explains nothing any more is found."""
import json
import os
import pathlib

import schemathesis

import explained

SERVICE = os.environ["CONTRACT_SERVICE"]
USED = pathlib.Path(os.environ["CONTRACT_USED"])
used = set()

# What the contract allows may take minutes, or more than the server was started with, or leave the trainer waiting for a replay that nobody feeds it.  Values
# up to the contract's maximum, the second number, are brought down to the first.
SHORT = {
    "wait_ms": (20, 60000),
    "max_new_tokens": (8, 131072),
    "max_tokens": (8, 131072),
    "n": (2, 256),
    "chunk_tokens": (4096, 262144),
    "current_version": (0, 2**53 - 1),
}


def tamed(value, name=None):
    """The same, shortened.  Whole numbers from 2^53 on lose their fraction: with it they are refused (they may have been rounded), which no schema can say."""
    if isinstance(value, dict):
        return {key: tamed(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [tamed(item) for item in value]
    if isinstance(value, float) and 2**53 <= abs(value) < 2**63:
        return int(value)
    if name in SHORT and type(value) in (int, float):
        low, high = SHORT[name]
        return low if low < value <= high and value == int(value) else value
    return value


@schemathesis.hook
def before_call(context, case, kwargs):
    # The stream of a run that goes on has no end, and a run that is stopped does not go on.
    instead = {"GET /v1/runs/{id}/events": "r1", "POST /v1/runs/{id}/stop": "r3"}.get(case.operation.label)
    if instead and case.path_parameters.get("id") == "r2":
        case.path_parameters["id"] = instead
    if isinstance(case.query, dict):
        case.query = tamed(case.query)
    if isinstance(case.body, (dict, list)):
        case.body = tamed(case.body)


def error_of(response):
    try:
        return json.loads(response.content)["error"]
    except (ValueError, KeyError, TypeError):
        return {}


@schemathesis.hook
def filter_failure(context, failure, case, response):
    for check in failure.checks:
        number = explained.met(SERVICE, case.operation.label, check, response.status_code, error_of(response))
        if number is None:
            continue
        if number not in used:
            used.add(number)
            with USED.open("a") as out:
                out.write(f"{number}\n")
        return False
    return True
