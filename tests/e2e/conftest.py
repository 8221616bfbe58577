import pytest

from harness import make_base_model


@pytest.fixture(scope="session")
def base_model(tmp_path_factory):
    """A base that writes digits now and then, so that rewards differ within groups and every round has a gradient."""
    return make_base_model(tmp_path_factory.mktemp("base"), rounds=120)
