"""What an older tree left behind goes on: its database and checkpoints, killed in the middle of a run, end with the digests it would have reached itself.

`tests/upgrade/<commit>/` was made once by that commit (tests/upgrade/make-fixture) and is never made again.
"""
import json
import pathlib
import shutil

import pytest

from harness import Cluster, call, digests

UPGRADE = pathlib.Path(__file__).resolve().parents[1] / "upgrade"
TREES = sorted(folder for folder in UPGRADE.iterdir() if folder.is_dir())


def left_by(tree, folder):
    """A copy of what `tree` left, where a Cluster in `folder` finds it."""
    folder.mkdir()
    shutil.copy(tree / "coordinator.db", folder / "coordinator.db")
    shutil.copytree(tree / "state", folder / "state")
    return folder


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_runs_of_an_older_tree_end_with_the_digests_that_it_would_have_reached(tree, tmp_path):
    expected = json.loads((tree / "expected.json").read_text())
    with Cluster(left_by(tree, tmp_path / "cluster"), model=tree / "model") as cluster:
        before = cluster.status("r2")
        assert before["state"] == "running" and before["round"] < len(expected["r2"]) - 1, "the fixture was not killed in the middle"
        cluster.add_server("gen-1", "--slots", 4)
        for run, hexes in expected.items():
            assert digests(cluster.wait(run)) == hexes, run
        assert cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'") == []


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_an_older_trees_rollouts_and_timeline_are_shown(tree, tmp_path):
    with Cluster(left_by(tree, tmp_path / "cluster"), model=tree / "model") as cluster:
        rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/r2/rollouts?round=0&limit=100")["rollouts"]
        assert len(rollouts) == 24 and all(sample["text"] for sample in rollouts)
        assert call("GET", f"{cluster.coordinator.url}/v1/runs/r2/timeline?round=0")["workers"]
