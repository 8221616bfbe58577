import os

import pytest

from harness import Standalone, make_base_model, wider_model

BASE_ROUNDS = int(os.environ.get("LEASEHOLD_TEST_BASE_ROUNDS", 120))


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: it holds times against each other, and runs while no other test does (make e2e runs these last)")
    config.addinivalue_line("markers", "load: timed under load, on a quiet machine (make load)")
    config.addinivalue_line("markers", "bench: that the benchmarks run, at their smallest size (make bench-smoke)")
    config.addinivalue_line("markers", "long: more of what a shorter test has already (make long)")


def pytest_collection_modifyitems(config, items):
    """Timings, benchmarks and long tests wait for somebody who asks for them: `pytest -m load`.  A file that takes long begins first: begun last, it alone
    would be waited for."""
    items.sort(key=lambda item: item.path.name != "test_ranks.py")
    if config.option.markexpr not in ("", "alone", "not alone"):
        return
    asked_for = [item for item in items if any(item.get_closest_marker(name) for name in ("load", "bench", "long"))]
    config.hook.pytest_deselected(items=asked_for)
    items[:] = [item for item in items if item not in asked_for]


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """A base that writes digits now and then, so that rewards differ within groups and every round has a gradient.  (The sanitizers, under which 120 rounds
    take minutes, ask for fewer: what they look for needs no rewards.)"""
    return make_base_model(tmp_path_factory.mktemp("base"), rounds=BASE_ROUNDS)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """The same model with other weights."""
    return make_base_model(tmp_path_factory.mktemp("other"), rounds=4)


@pytest.fixture(scope="session")
def larger_model(tmp_path_factory):
    """A base like base_model, of nine times its weights: what lies between the steps of a server is little beside them."""
    folder = tmp_path_factory.mktemp("larger")
    return make_base_model(folder, rounds=BASE_ROUNDS, model=wider_model(folder, 3))


@pytest.fixture(scope="session")
def wide_models(tmp_path_factory):
    """Two with 16 times the weights, whose texts say nothing: a decode step takes so long that one can step in."""
    folders = [tmp_path_factory.mktemp("wide") for _ in range(2)]
    return [make_base_model(folder, rounds=rounds, model=wider_model(folder, 4)) for folder, rounds in zip(folders, (1, 2))]


@pytest.fixture(scope="module")
def slow_server(wide_models, tmp_path_factory):
    """Alone, with the first of the wide models."""
    with Standalone(tmp_path_factory.mktemp("slow")) as alone:
        yield alone.start("slow", "generation-server", ["--model", wide_models[0], "--slots", 4, "--threads", 1, "--isa", "v2"])
