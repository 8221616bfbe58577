"""`coordinator --backup` in the middle of a run: the copy is whole, nobody waits for it, and a run goes on from it to the same weights, though the trainer is steps ahead
of it.  What would break: a copy of half a transaction; a restored coordinator that the trainer takes for somebody else's, or that loses what it cannot know of."""
import shutil
import signal
import sqlite3
import subprocess

import pytest

from harness import BIN, SLOWLY, Cluster, call, digests, grpo_config

ROUNDS = 8


@pytest.fixture(scope="module")
def undisturbed(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("undisturbed"), model=base_model) as cluster:
        cluster.add_server("one")
        return digests(cluster.run(grpo_config(ROUNDS)))


def backup(cluster, to):
    return subprocess.run([BIN / "coordinator", "--db", cluster.database, "--backup", to], capture_output=True, text=True, check=False, timeout=30)


def go_back(cluster, name):
    return subprocess.run([BIN / "trainer-server", "--state-dir", cluster.folder / "state", "--go-back", name], capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize("kept", [8, 1])
def test_a_run_goes_on_from_a_copy_that_was_made_while_it_worked(base_model, undisturbed, tmp_path, kept):
    """With one kept checkpoint the trainer has none that the copy knows, but version 0: it computes the rounds up to the copy again."""
    with Cluster(tmp_path, model=base_model, trainer=["--keep-checkpoints", kept]) as cluster:
        server = cluster.add_server("one", SLOWLY)
        config = grpo_config(ROUNDS)
        config["training"]["checkpoint_every"] = 1
        run = cluster.create_run(config)
        cluster.wait_until("two rounds", lambda: (cluster.status(run)["version"] or 0) >= 2)
        copy = tmp_path / "copy.db"
        made = backup(cluster, copy)
        assert made.returncode == 0 and f"{copy} is a copy of {cluster.database}" in made.stderr
        with sqlite3.connect(copy) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            then = database.execute("SELECT max(version) FROM versions").fetchone()[0]
        cluster.wait_until("two rounds more", lambda: (cluster.status(run)["version"] or 0) >= then + 2)
        cluster.coordinator.stop(signal.SIGKILL)
        server.hurry()
        for end in ("", "-wal", "-shm"):
            cluster.database.with_name(cluster.database.name + end).unlink(missing_ok=True)
        shutil.copy(copy, cluster.database)
        cluster.coordinator.restart()
        why = cluster.wait(run, state="paused")["error"]
        assert f"recorded versions up to {then}; if its database is a restored copy, set the trainer back by --go-back" in why
        in_use = go_back(cluster, f"{run}/v0")
        assert in_use.returncode != 0 and "another trainer" in in_use.stderr and "stop it" in in_use.stderr
        cluster.trainer.stop()
        there = {int(path.name[1:]) for path in (cluster.folder / "state" / run).glob("v*")}
        missing = go_back(cluster, f"{run}/v{max(there) + 1}")
        assert missing.returncode != 0 and "of that run there are: " + ", ".join(f"v{version}" for version in sorted(there)) in missing.stderr
        goal = max(version for version in there if version <= then)
        assert go_back(cluster, f"{run}/v{goal}").returncode == 0 and (goal == 0) == (kept == 1), there
        cluster.trainer.restart()
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
        assert digests(cluster.wait(run)) == undisturbed


def test_copies_and_goals_that_cannot_be(tmp_path, base_model):
    with Cluster(tmp_path, model=base_model) as cluster:
        copy = tmp_path / "copy.db"
        assert backup(cluster, copy).returncode == 0
        written = copy.read_bytes()
        again = backup(cluster, copy)
        assert again.returncode != 0 and "is there already" in again.stderr and copy.read_bytes() == written
        assert "nowhere" in (nowhere := backup(cluster, tmp_path / "nowhere/copy.db")).stderr and nowhere.returncode != 0
        cluster.database = tmp_path / "missing.db"
        missing = backup(cluster, tmp_path / "other.db")
        assert missing.returncode != 0 and "there is no" in missing.stderr and not cluster.database.exists()
        assert not list(tmp_path.glob("*.partial"))
        cluster.trainer.stop()
        for name, why in (("r1", "expected <run>/v<version>"), ("r1/v1/..", "expected <run>/v<version>"), ("r1/v9", "there is no checkpoint")):
            refused = go_back(cluster, name)
            assert refused.returncode != 0 and why in refused.stderr
