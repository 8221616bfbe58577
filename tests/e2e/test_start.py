"""How services start: a database has one coordinator, whatever path leads to it."""
import os
import re
import subprocess

import pytest

from harness import BIN, DATA, Service, call


class Folder:
    """What a Service needs of a cluster, for services that are started one by one; leaving the `with` block stops them."""

    def __init__(self, folder):
        self.folder = folder
        self.services = []

    def start(self, name, program, *args, **more):
        service = Service(self, name, program, args, more.pop("bin_dir", BIN), **more)
        self.services.append(service)
        return service

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for service in self.services:
            service.stop()


def coordinator(folder, name, database):
    return folder.start(name, "coordinator", "--db", database, "--data-dir", DATA)


def refusal(database, cwd="/"):
    """What a second coordinator says before it ends."""
    ended = subprocess.run([BIN / "coordinator", "--port", "0", "--db", database], cwd=cwd, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1, ended
    said = [line for line in ended.stderr.splitlines() if line.startswith("coordinator: ")]
    assert len(said) == 1, ended.stderr
    return said[0]


def symbolic(real, alias):
    alias.symlink_to(real.name)


def hard(real, alias):
    os.link(real, alias)


@pytest.mark.parametrize("link", [symbolic, hard])
@pytest.mark.parametrize("first_by_its_own_name", [True, False])
def test_no_link_lets_a_second_coordinator_into_a_database(tmp_path, link, first_by_its_own_name):
    real, alias = tmp_path / "coordinator.db", tmp_path / "elsewhere" / ".." / "alias.db"
    (tmp_path / "elsewhere").mkdir()
    with Folder(tmp_path) as folder:
        coordinator(folder, "before", real).stop()  # a database that was closed in good order, so that a hard link is the whole of it
        link(real, alias)
        first, second = (real, alias) if first_by_its_own_name else (alias, real)
        holder = coordinator(folder, "holder", first)
        said = refusal(second)
        assert re.search(rf"another coordinator \(process {holder.process.pid}\) has the database {re.escape(str(second))} open", said), said
        assert call("GET", holder.url + "/readyz")["epoch"] == 2
        run = {"dataset": {"path": "warmup.jsonl"}, "rounds": 1, "training": {"objective": "cross_entropy"}}
        assert call("POST", holder.url + "/v1/runs", run)["id"] == "r1"  # the refused one left the holder's locks alone


def test_a_database_that_does_not_exist_yet_has_one_coordinator_by_either_spelling(tmp_path):
    with Folder(tmp_path) as folder:
        coordinator(folder, "holder", "coordinator.db")  # relative to the folder that it is started in
        assert "another coordinator" in refusal(tmp_path / "coordinator.db")
        assert "another coordinator" in refusal("coordinator.db", cwd=tmp_path)
    with Folder(tmp_path) as folder:
        coordinator(folder, "next", tmp_path / "coordinator.db")  # it is free once the holder has ended
        folder.services[0].kill()
        coordinator(folder, "after a kill", tmp_path / "coordinator.db")


def test_a_dangling_link_makes_the_database_that_it_names(tmp_path):
    (tmp_path / "alias.db").symlink_to(tmp_path / "real.db")
    with Folder(tmp_path) as folder:
        coordinator(folder, "holder", tmp_path / "alias.db")
        assert "another coordinator" in refusal(tmp_path / "real.db")
