#!/usr/bin/env bash
# Replays a recorded run on this machine, without samplers, and compares the digest of every version with the record:
#
#   deploy/replay.sh coordinator.db r2 --model deploy/demo/model --random-init 1
#
# The database is copied and stays as it is; what follows the run goes to the trainer-server: the model that the first of the runs began with, threads, kernels.
# Runs that this one starts from are replayed first.  Variables: DATA_DIR (deploy/demo: where the runs' datasets lie), BIN (build/bin), OUT (a temporary folder, removed at the end).
# Status 0: the same weights, byte for byte.  1: not, or it could not be told; the log says why.
set -euo pipefail
unset "${!LEASEHOLD_TLS_@}" "${!LEASEHOLD_TRACK@}" LEASEHOLD_AUTH_TOKEN LEASEHOLD_TOKEN_DIR LEASEHOLD_BIND LEASEHOLD_ADVERTISE_URL # both ends are on this machine's loopback and talk http, and the run's curves are written
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
DB=$1 RUN=$2
shift 2
HERE=$(cd "$(dirname "$0")/.." && pwd)
DATA_DIR=${DATA_DIR:-$HERE/deploy/demo} BIN=${BIN:-$HERE/build/bin} pids=()
if [ -z "${OUT:-}" ]; then
  OUT=$(mktemp -d)
  trap 'kill "${pids[@]}" 2>/dev/null || :; wait 2>/dev/null || :; rm -rf "$OUT"' EXIT
else
  mkdir -p "$OUT"
  trap 'kill "${pids[@]}" 2>/dev/null || :; wait 2>/dev/null || :' EXIT
fi
[ -f "$DB" ] || { echo "replay: there is no database $DB" >&2; exit 1; }
rm -rf "$OUT/state" "$OUT/port" "$OUT/copy.db" "$OUT/copy.db-wal" "$OUT/copy.db-shm" # of a replay that was killed
if [ -e "$DB-shm" ]; then # a coordinator works with it, or was killed: parts of files that change do not fit together
  "$BIN/coordinator" --db "$DB" --backup "$OUT/copy.db" >"$OUT/backup.log" 2>&1 || { tail -1 "$OUT/backup.log" >&2; echo "replay: $DB could not be copied" >&2; exit 1; }
else
  cp "$DB" "$OUT/copy.db"
  if [ -f "$DB-wal" ]; then cp "$DB-wal" "$OUT/copy.db-wal"; fi
fi

"$BIN/coordinator" --db "$OUT/copy.db" --data-dir "$DATA_DIR" --port 0 --port-file "$OUT/port" --log-level info --replay "$RUN" >"$OUT/coordinator.log" 2>&1 &
pids+=($!) coordinator=$!
for _ in $(seq 400); do
  [ -s "$OUT/port" ] && break
  kill -0 "$coordinator" 2>/dev/null || break
  sleep 0.05
done
[ -s "$OUT/port" ] || { tail -3 "$OUT/coordinator.log" >&2; echo "replay: the coordinator did not start" >&2; exit 1; }
"$BIN/trainer-server" --coordinator "http://127.0.0.1:$(cat "$OUT/port")" --port 0 --name replay --state-dir "$OUT/state" "$@" >"$OUT/trainer.log" 2>&1 &
pids+=($!) trainer=$!

while kill -0 "$coordinator" 2>/dev/null; do
  kill -0 "$trainer" 2>/dev/null || { tail -3 "$OUT/trainer.log" >&2; echo "replay: the trainer-server has ended" >&2; exit 1; }
  sleep 0.1
done
status=0
wait "$coordinator" || status=$?
if [ $status -eq 0 ]; then
  grep -o 'run r[0-9]*: replayed to .*, as recorded' "$OUT/coordinator.log"
else
  tail -2 "$OUT/coordinator.log" >&2
  echo "replay: $RUN was not reached" >&2
  exit 1
fi
