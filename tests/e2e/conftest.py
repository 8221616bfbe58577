import os

import pytest

from harness import make_base_model

BASE_ROUNDS = int(os.environ.get("LEASEHOLD_TEST_BASE_ROUNDS", 120))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """A base that writes digits now and then, so that rewards differ within groups and every round has a gradient.  (The sanitizers, under which 120 rounds
    take minutes, ask for fewer: what they look for needs no rewards.)"""
    return make_base_model(tmp_path_factory.mktemp("base"), rounds=BASE_ROUNDS)
