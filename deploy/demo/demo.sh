#!/usr/bin/env bash
# The demo: a coordinator, generation-servers and a trainer-server as separate processes, and a whole reinforcement-learning run through their REST interfaces.
#
#   supervised warm-up -> cores shared out -> held-out accuracy -> GRPO -> held-out accuracy -> sync beside pipelined -> table and build/demo/summary.json
#
# The warm-up samples nothing, so the trainer has all cores; then each pool gets some of its own (layout.sh), and the trainer is started again with them.
#
# Variables: SEED (1), MODE (pipelined; sync for the baseline; inflight: weights are swapped while samples are drawn, a round is an optimizer step, and the seed alone
#            does not decide the weights), CONTROL ("", shuffled: rewards permuted within each group, lr0: learning rate 0), OUT (build/demo), BIN (build/bin),
#            KEEP=1 leaves the services running at the end, ROUNDS and WARMUP override the numbers of rounds (for smoke tests), CPUS (0,2,3) names processors to use instead
#            of all that this process may run on.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Everything here talks plain http on the loopback address and keeps its own curves, whatever the caller's services, command line and proxies are told.
unset "${!LEASEHOLD_TLS_@}" "${!LEASEHOLD_TRACK@}" LEASEHOLD_AUTH_TOKEN LEASEHOLD_TOKEN_DIR LEASEHOLD_BIND LEASEHOLD_ADVERTISE_URL
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

SEED=${SEED:-1} MODE=${MODE:-pipelined} CONTROL=${CONTROL:-} OUT=${OUT:-build/demo} BIN=${BIN:-build/bin} KEEP=${KEEP:-0} CPUS=${CPUS:-}
ROUNDS=${ROUNDS:-$(jq .rounds deploy/demo/runs/grpo.json)} WARMUP=${WARMUP:-$(jq .rounds deploy/demo/runs/warmup.json)}
DATA=deploy/demo
readonly COMPARED=8 # rounds of each mode at the end
. "$DATA/layout.sh"
case $SEED in '' | *[!0-9]*) echo "demo: SEED must be a whole number, got '$SEED'" >&2; exit 2 ;; esac
case $CONTROL in '' | shuffled | lr0) ;; *) echo "demo: CONTROL must be empty, shuffled or lr0, got '$CONTROL'" >&2; exit 2 ;; esac
case $MODE in pipelined | sync | inflight) ;; *) echo "demo: MODE must be pipelined, sync or inflight, got '$MODE'" >&2; exit 2 ;; esac
case $CPUS in *[!0-9,]* | ,* | *, | *,,*) echo "demo: CPUS must be processors separated by commas, as 0,2,3, got '$CPUS'" >&2; exit 2 ;; esac
for tool in curl jq taskset; do command -v $tool >/dev/null || { echo "demo: $tool is missing; 'make deps' installs curl and jq, util-linux has taskset" >&2; exit 2; }; done

# OUT is emptied: it must be a demo's, or new, and no demo's services may work in it (they have the lock for as long as they live).
mkdir -p "$OUT"
if [ -n "$(ls -A "$OUT")" ] && [ ! -d "$OUT/logs" ]; then echo "demo: OUT would be emptied, and $OUT holds other files than a demo's: name another folder" >&2; exit 2; fi
exec {lock}<"$OUT"
flock -n "$lock" || { echo "demo: the services of another demo work in $OUT: end it, or name another folder by OUT" >&2; exit 2; }
find "$OUT" -mindepth 1 -delete
mkdir "$OUT/logs" "$OUT/ports"
declare -A pids=()

# stop NAME...: ends these services, and waits for them.
stop() {
  local name stopped=()
  for name in "$@"; do
    stopped+=("${pids[$name]}")
    unset "pids[$name]"
  done
  kill "${stopped[@]}" 2>/dev/null || :
  for _ in $(seq 200); do kill -0 "${stopped[@]}" 2>/dev/null || break; sleep 0.025; done
  kill -9 "${stopped[@]}" 2>/dev/null || :
  wait "${stopped[@]}" 2>/dev/null || :
}

stop_services() {
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] || stop "${!pids[@]}"
}
trap 'stop_services' EXIT
trap 'echo; echo "demo: interrupted, stopping the services"; stop_services; exit 130' INT TERM

fail() { echo "demo: $*" >&2; echo "demo: the logs are in $OUT/logs" >&2; exit 1; }

# start NAME CPUS PROGRAM ARGS...: a service on a free port, on these processors; sets PORT.
start() {
  local name=$1 cpus=$2
  shift 2
  rm -f "$OUT/ports/$name"
  taskset -c "$cpus" "$@" --port 0 --port-file "$OUT/ports/$name" >>"$OUT/logs/$name.log" 2>&1 &
  local pid=$!
  pids[$name]=$pid
  for _ in $(seq 200); do
    [ -s "$OUT/ports/$name" ] && break
    kill -0 $pid 2>/dev/null || { tail -3 "$OUT/logs/$name.log" >&2; fail "$name did not start"; }
    sleep 0.05
  done
  [ -s "$OUT/ports/$name" ] || fail "$name did not write its port within ten seconds"
  PORT=$(cat "$OUT/ports/$name")
}

say() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }

# start_trainer CPUS ARGS...: waits until the coordinator knows it.
start_trainer() {
  start trainer "$1" "$BIN/trainer-server" --coordinator "$C" --name trainer --model "$DATA/model" --random-init "$SEED" --state-dir "$OUT/trainer" "${@:2}"
  T=http://127.0.0.1:$PORT
  for _ in $(seq 200); do
    curl -sS "$C/v1/workers" | jq -e --arg url "$T" 'any(.workers[]; .url == $url and .role == "holder")' >/dev/null && return
    sleep 0.05
  done
  fail "the trainer did not register within ten seconds"
}

# start_server N CPUS SLOTS
start_server() { start "generation-$1" "$2" "$BIN/generation-server" --coordinator "$C" --name "gen-$1" --slots "$3" --threads 1; }

say "Starting coordinator and trainer-server (seed $SEED, mode $MODE${CONTROL:+, control $CONTROL})"
if [ -n "$CPUS" ]; then IFS=, read -ra cpus <<<"$CPUS"; else mapfile -t cpus < <(cpu_list | head -n 256); fi
join_cpus() { local IFS=,; echo "$*"; }
everywhere=$(join_cpus "${cpus[@]}")
start coordinator "$everywhere" "$BIN/coordinator" --db "$OUT/coordinator.db" --data-dir "$DATA" --heartbeat-ms 250
C=http://127.0.0.1:$PORT
start_trainer "$everywhere"
threads=$(curl -sS "$T/v1/model" | jq .threads)
cores=$([ -n "$CPUS" ] && echo ${#cpus[@]} || echo "$threads")
echo "coordinator $C   trainer $T   logs in $OUT/logs"
echo "watch it in a browser: $C/"

check_alive() { local pid; for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || fail "a service died"; done; }

# run_create NAME JSON: prints the call as a user would type it, then makes it; sets RUN.
run_create() {
  printf '%s\n' "$2" | jq . >"$OUT/$1.json"
  echo "  \$ curl -X POST $C/v1/runs -H 'Content-Type: application/json' -d @$OUT/$1.json"
  local answer
  answer=$(curl -sS -X POST "$C/v1/runs" -H 'Content-Type: application/json' -d @"$OUT/$1.json") || fail "the coordinator did not answer"
  RUN=$(jq -r '.id // empty' <<<"$answer")
  [ -n "$RUN" ] || fail "the run was refused: $answer"
}

# run_wait RUN KIND: follows a run until it ends; prints a line every few rounds.  Sets STATUS.
run_wait() {
  local run=$1 kind=$2 rounds=$ROUNDS every=5 state="" line got events
  if [ "$kind" = warmup ]; then rounds=$WARMUP every=50; fi
  exec {events}< <(curl -sN "$C/v1/runs/$run/events" | jq -nrR --unbuffered -f "$DATA/follow.jq" --arg kind "$kind" --argjson rounds "$rounds" --argjson every $every)
  while :; do
    got=0
    IFS= read -r -t 1 -u "$events" line || got=$?
    case "$got $line" in
      "0 state "*)
        state=${line#state }
        case $state in
          failed* | stopped* | paused*) fail "run $run is $state" ;;
        esac
        ;;
      "0 "*) echo "$line" ;;
      *) if [ "$got" -gt 128 ]; then check_alive; else break; fi ;;
    esac
  done
  exec {events}<&-
  [ "${state% }" = completed ] || fail "the coordinator stopped telling of run $run"
  STATUS=$(curl -sS "$C/v1/runs/$run") || fail "the coordinator did not answer"
}

# evaluate NAME SAMPLES TEMPERATURE: sets ACCURACY and FORMAT.
evaluate() {
  run_create "evaluate-$1" "$(jq --argjson n "$2" --argjson t "$3" --argjson seed "$SEED" '.samples_per_group = $n | .sampling.temperature = $t | .seed = $seed' "$DATA/runs/evaluate.json")"
  run_wait "$RUN" quiet
  ACCURACY=$(jq -r .result.accuracy <<<"$STATUS")
  FORMAT=$(curl -sS "$C/v1/runs/$RUN/rollouts?limit=4096" | jq '[.rollouts[] | .text | test("^([0-9][+*][0-9]=[0-9];){3}#[0-9]$")] | (map(select(.)) | length) / length')
  printf '  %s: accuracy %.4f, right format %.4f\n' "$1" "$ACCURACY" "$FORMAT"
}

say "1. Supervised warm-up: $WARMUP steps of 64 worked examples, some of them wrong"
run_create warmup "$(jq --argjson seed "$SEED" --argjson n "$WARMUP" '.seed = $seed | .rounds = $n' "$DATA/runs/warmup.json")"
run_wait "$RUN" warmup
warmup_run=$RUN

# timeline FILE: of the run that has just ended, when the workers have told all of it.
timeline() {
  for _ in $(seq 20); do
    curl -sS "$C/v1/runs/$RUN/timeline?from=1" >"$1"
    jq -e -L "$DATA" 'include "overlap"; told' "$1" >/dev/null && break
    sleep 0.1
  done
}

# measure_rounds: sets SAMPLING and TRAINING to what they take of a round on one core, in microseconds.  In sync each of them has all cores in its turn; at learning rate 0
# no weight changes.
measure_rounds() {
  local n servers=$((cores / 2 < SERVERS_MAX ? cores / 2 : SERVERS_MAX))
  for n in $(seq $servers); do start_server "$n" "$everywhere" "$(slots_for $servers)"; done
  run_create measure "$(jq --argjson seed "$SEED" '.name = "demo: what sampling and training take" | .seed = $seed | .mode = "sync" | .rounds = 5 | .training.lr = 0 | del(.evaluation)' "$DATA/runs/grpo.json")"
  run_wait "$RUN" quiet
  timeline "$OUT/timeline-measure.json"
  read -r SAMPLING TRAINING < <(jq -r -L "$DATA" --argjson servers $servers --argjson threads "$threads" '
    include "overlap"; figures | [.sampling * 1000 * $servers, .training * 1000 * $threads] | map(round) | @tsv' "$OUT/timeline-measure.json")
  for n in $(seq $servers); do stop "generation-$n"; done
  echo "  a round takes $((SAMPLING / 1000)) ms of sampling and $((TRAINING / 1000)) ms of training on one core"
}

# share_out: gives each pool cores of its own; sets servers and threads.  Where a control group grants fewer cores than there are processors, none is anybody's own.
share_out() {
  local n first second mine=$everywhere SAMPLING=1 TRAINING=1
  if [ "$cores" -gt 2 ]; then measure_rounds; fi
  read -r servers threads < <(share_cores "$cores" $SAMPLING $TRAINING)
  own=$((cores > 1 && cores == ${#cpus[@]})) first=$everywhere second=$everywhere
  if [ $own = 1 ]; then first=$(join_cpus "${cpus[@]:0:servers}") second=$(join_cpus "${cpus[@]:servers:threads}"); fi
  taskset -acp "$first" "${pids[coordinator]}" >/dev/null
  if [ "$cores" -gt 1 ]; then
    stop trainer
    start_trainer "$second" --threads "$threads"
  fi
  for n in $(seq "$servers"); do
    if [ $own = 1 ]; then mine=${cpus[n - 1]}; fi
    start_server "$n" "$mine" "$(slots_for "$servers")"
    if [ "$n" = 1 ]; then G=http://127.0.0.1:$PORT; fi
  done
  if [ $own = 1 ]; then
    echo "  processor $first: coordinator, generation-servers: $servers with a thread each   processor $second: trainer, threads: $threads"
  else
    echo "  all services share $cores: generation-servers: $servers with a thread each   trainer, threads: $threads"
  fi
  echo "  trainer $T   generation $G$([ "$servers" = 1 ] || echo " and others")"
}

say "2. Cores: $cores of them"
share_out

say "3. The base model on 256 held-out test problems"
evaluate before-sampled 4 1
sampled_before=$ACCURACY format_before=$FORMAT
evaluate before-greedy 1 0
greedy_before=$ACCURACY

if [ "$MODE" = inflight ]; then
  say "4. Reinforcement learning: $ROUNDS optimizer steps over 64 groups x 8 samples each, weights swapped while samples are drawn, rewards by the numeric verifier"
else
  say "4. Reinforcement learning: $ROUNDS rounds of 64 groups x 8 samples, rewards by the numeric verifier"
fi
run_create grpo "$(jq --argjson seed "$SEED" --arg mode "$MODE" --argjson n "$ROUNDS" --arg control "$CONTROL" '
    .seed = $seed | .mode = $mode | .rounds = $n
    | if $control == "shuffled" then .verifier.shuffle_rewards = true elif $control == "lr0" then .training.lr = 0 else . end' "$DATA/runs/grpo.json")"
run_wait "$RUN" grpo
grpo=$STATUS grpo_run=$RUN

say "5. The trained model on the same test problems"
evaluate after-sampled 4 1
sampled_after=$ACCURACY format_after=$FORMAT
evaluate after-greedy 1 0
greedy_after=$ACCURACY

# compare MODE N: some rounds from the same start with the same seed, for the N-th time; their timeline in $OUT/timeline-MODE-N.json.  All end with the same weights, DIGEST.
compare() {
  local digest
  run_create "overlap-$1" "$(jq --arg mode "$1" --arg run "$warmup_run" --argjson version "$WARMUP" --argjson n "$compared" '
    .name = "demo: what overlap is worth" | .mode = $mode | .rounds = $n | .start = {$run, $version} | del(.evaluation)' "$OUT/grpo.json")"
  run_wait "$RUN" quiet
  timeline "$OUT/timeline-$1-$2.json"
  digest=$(jq -r .weights_digest <<<"$STATUS")
  DIGEST=${DIGEST:-$digest}
  [ "$digest" = "$DIGEST" ] || fail "$1 ended with other weights than the runs before, $digest instead of $DIGEST"
}

compared=$((ROUNDS < COMPARED ? (ROUNDS < 2 ? 2 : ROUNDS) : COMPARED))
say "6. The first $compared rounds once more: sync beside pipelined, on these cores"
DIGEST="" # in this order a machine that becomes slower or faster meanwhile favours neither
compare sync 1
compare pipelined 1
compare pipelined 2
compare sync 2
for mode in sync pipelined; do jq -s -L "$DATA" 'include "overlap"; together' "$OUT/timeline-$mode"-[12].json >"$OUT/timeline-$mode.json"; done
beside() { # beside NAME: that definition of overlap.jq, of both timelines
  jq -nr -L "$DATA" --argjson own "$own" --slurpfile sync "$OUT/timeline-sync.json" --slurpfile pipelined "$OUT/timeline-pipelined.json" "include \"overlap\"; $1(\$sync[0]; \$pipelined[0]; \$own == 1)"
}
beside overlap >"$OUT/overlap.json"
beside report
same="  both end with the same weights, bit for bit: ${DIGEST:0:16}..."
if [ "$MODE" != inflight ] && [ "$(jq -r --argjson n "$compared" '.history[] | select(.round == $n - 1) | .digest' <<<"$grpo")" = "$DIGEST" ]; then same+=", as the run above did after its round $compared"; fi
echo "$same"

checkpoint=$OUT/trainer/$grpo_run/v$ROUNDS
jq --argjson seed "$SEED" --arg control "$CONTROL" --argjson sb "$sampled_before" --argjson sa "$sampled_after" --argjson gb "$greedy_before" --argjson ga "$greedy_after" \
  --argjson fb "$format_before" --argjson fa "$format_after" --arg model "$checkpoint" --slurpfile overlap "$OUT/overlap.json" \
  --argjson cores "$cores" --argjson own "$own" --argjson servers "$servers" --argjson threads "$threads" '. as $run | {
    heldout_accuracy_before: $sb, heldout_accuracy_after: $sa, heldout_greedy_before: $gb, heldout_greedy_after: $ga,
    format_before: $fb, format_after: $fa,
    rounds: $run.rounds, mode: $run.mode, seed: $seed, control: $control, weights_sha256: $run.weights_digest,
    distinct_digests: ([$run.history[].digest] | unique | length),
    trainer_waiting_ratio: $run.totals.trainer_waiting_ratio, trainer_first_dispatch_ratio: $run.totals.trainer_first_dispatch_ratio,
    generation_idle_ratio: $run.totals.generation_idle_ratio, window_ms: $run.totals.window_ms, window_without_publish_ms: $run.totals.window_without_publish_ms,
    tokens_per_second: $run.totals.tokens_per_second, sampled_tokens: $run.totals.sampled_tokens, rl_wall_ms: $run.totals.rl_wall_ms,
    logprob_max_abs_diff: $run.totals.logprob_max_abs_diff, logprob_mean_abs_diff: $run.totals.logprob_mean_abs_diff,
    logprob_kl_k1: $run.totals.logprob_kl_k1, logprob_kl_k3: $run.totals.logprob_kl_k3, stale_results_trained_on: $run.totals.stale_results_trained_on,
    contributions: $run.totals.workers, model: $model,
    layout: {cores: $cores, each_pool_has_its_own: ($own == 1), generation_servers: $servers, trainer_threads: $threads}, overlap: $overlap[0],
    lag: (if $run.mode != "inflight" then null else [$run.history[] | .lag + {tokens, ess, kl_new_old}] | {
      max_allowed: $run.config.max_lag, min: (map(.min) | min), mean: ((map(.mean * .tokens) | add) / (map(.tokens) | add)), max: (map(.max) | max), groups_dropped: (map(.groups_dropped) | add),
      versions_skipped: (map(select(.version_skipped)) | length), compared_tokens: (map(.compared_tokens) | add), trained_tokens: (map(.tokens) | add),
      ess_min: (map(.ess // empty) | min), kl_new_old_max: (map(.kl_new_old // empty) | max)} end)}' <<<"$grpo" >"$OUT/summary.json"

say "Result"
jq -r '
  def pct: . * 10000 | round / 100 | tostring + " %";
  def ratio: if . == null then "-" else . * 1000 | round / 1000 end;
  ["held-out accuracy, sampled at T = 1", (.heldout_accuracy_before | pct), (.heldout_accuracy_after | pct)],
  ["held-out accuracy, greedy", (.heldout_greedy_before | pct), (.heldout_greedy_after | pct)],
  ["right format", (.format_before | pct), (.format_after | pct)],
  [(if .lag then "steps, mode" else "rounds, mode" end), .rounds, .mode],
  ["trainer waiting ratio, wait / (wait + compute)", "", (.trainer_waiting_ratio | ratio)],
  (select(.lag == null) | ["  before first dispatch / window", "", (.trainer_first_dispatch_ratio | ratio)]),
  ["generation idle ratio", "", (.generation_idle_ratio | ratio)],
  (if .lag then ["ms from one version to the next", "", (.rl_wall_ms / .rounds | round)]
   else ["mean round, ms, with and without publishing", (.window_ms / .rounds | round), (.window_without_publish_ms / .rounds | round)] end),
  ["sampled tokens per second", "", (.tokens_per_second | round)],
  ["largest |trainer - sampler| log-probability", "", .logprob_max_abs_diff],
  ["  mean; KL(sampler || trainer) by k3", .logprob_mean_abs_diff, .logprob_kl_k3],
  (if .lag then
     ["  share of the tokens that could be compared", "", (.lag.compared_tokens / .lag.trained_tokens | pct)],
     ["lag of a trained token in versions: mean, most", (.lag.mean | ratio), .lag.max],
     ["effective share of a step, the least", "", (.lag.ess_min | ratio)],
     ["groups dropped as too old; versions skipped", .lag.groups_dropped, .lag.versions_skipped]
   else ["stale results trained on", "", .stale_results_trained_on] end) | @tsv' "$OUT/summary.json" |
  awk -F'\t' 'BEGIN { printf "  %-46s %10s %10s\n", "", "before", "after" } { printf "  %-46s %10s %10s\n", $1, $2, $3 }'
echo "  weights sha256  $(jq -r .weights_sha256 "$OUT/summary.json")"
if [ "$MODE" = inflight ]; then
  echo "  these are the weights of this run: another one takes its groups in another order, and ends with others; this one can be replayed from its ledger:"
  echo "    deploy/replay.sh $OUT/coordinator.db $grpo_run --model $DATA/model --random-init $SEED"
  jq -r --argjson asked "$(jq .rounds "$DATA/runs/grpo.json")" '
    if .control != "" then empty
    elif .heldout_accuracy_after >= 0.9 and .heldout_greedy_after >= 0.9 then "  goal: held-out accuracy of at least 90 %, sampled and greedy: reached"
    else "  goal: held-out accuracy of at least 90 %, sampled and greedy: NOT reached"
      + (if .rounds < $asked then ": \(.rounds) of \($asked) steps were made" elif .lag.ess_min < 0.5 then ": the samples were too far from the policy that they trained, ESS down to \(.lag.ess_min), lag up to \(.lag.max)"
         else ": \(.rounds) steps were too few at this learning rate; lag up to \(.lag.max), ESS never below \(.lag.ess_min)" end) end' "$OUT/summary.json"
fi
echo "  the model lies in $checkpoint (a Hugging Face folder), the summary in $OUT/summary.json"
echo "  talk to it:"
echo "    $BIN/generation-server --model $checkpoint &"
echo "    curl -s http://127.0.0.1:8100/v1/generate -d '{\"text\":\"7+5*3+4=\",\"sampling_params\":{\"max_new_tokens\":32,\"temperature\":0}}'"
if [ "$KEEP" = 1 ]; then
  echo "  the services keep running (KEEP=1); Ctrl-C stops them"
  wait
fi
