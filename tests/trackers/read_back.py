"""What the packages tensorboard and trackio read of a --track-dir: run by their Python, as JSON on stdout.

  read_back.py RUN_FOLDER TRACKIO_DIR     {"tensorboard": {tag: [[step, value], ...]}, "trackio": [{run, config, logs}], "imported": [n, n again]}
"""
import json
import os
import shutil
import sys

folder, trackio_dir = sys.argv[1:3]
os.environ["TRACKIO_DIR"] = trackio_dir

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

from trackio import fragments  # noqa: E402
from trackio.sqlite_storage import SQLiteStorage  # noqa: E402

inbox = os.path.join(trackio_dir, "inbox")
again = os.path.join(trackio_dir, "again")
shutil.copytree(inbox, again)
imported = fragments.import_inbox_dir()
shutil.rmtree(inbox, ignore_errors=True)
os.rename(again, inbox)  # as fragments are written once more after a crash
twice = fragments.import_inbox_dir()
runs = [
    {"run": record["name"], "logs": SQLiteStorage.get_logs("leasehold", run_id=record["id"]), "config": SQLiteStorage.get_run_config("leasehold", run_id=record["id"], run=record["name"])}
    for record in SQLiteStorage.get_run_records("leasehold")
]
json.dump({"tensorboard": scalars, "trackio": runs, "imported": [imported, twice]}, sys.stdout, default=str)
