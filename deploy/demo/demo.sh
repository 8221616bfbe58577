#!/usr/bin/env bash
# The demo: a coordinator, two generation-servers and a trainer-server as separate processes, and a whole reinforcement-learning run through their REST interfaces.
#
#   supervised warm-up -> held-out accuracy -> GRPO -> held-out accuracy -> table and build/demo/summary.json
#
# Variables: SEED (1), MODE (pipelined; sync for the baseline; inflight: weights are swapped while samples are drawn, a round is an optimizer step, and the seed alone
#            does not decide the weights), CONTROL ("", shuffled: rewards permuted within each group, lr0: learning rate 0), OUT (build/demo), BIN (build/bin),
#            KEEP=1 leaves the services running at the end, ROUNDS and WARMUP override the numbers of rounds (for smoke tests).
set -euo pipefail
cd "$(dirname "$0")/../.."

SEED=${SEED:-1} MODE=${MODE:-pipelined} CONTROL=${CONTROL:-} OUT=${OUT:-build/demo} BIN=${BIN:-build/bin} KEEP=${KEEP:-0}
ROUNDS=${ROUNDS:-$(jq .rounds deploy/demo/runs/grpo.json)} WARMUP=${WARMUP:-$(jq .rounds deploy/demo/runs/warmup.json)}
DATA=deploy/demo
case $SEED in '' | *[!0-9]*) echo "demo: SEED must be a whole number, got '$SEED'" >&2; exit 2 ;; esac
case $CONTROL in '' | shuffled | lr0) ;; *) echo "demo: CONTROL must be empty, shuffled or lr0, got '$CONTROL'" >&2; exit 2 ;; esac
case $MODE in pipelined | sync | inflight) ;; *) echo "demo: MODE must be pipelined, sync or inflight, got '$MODE'" >&2; exit 2 ;; esac
for tool in curl jq; do command -v $tool >/dev/null || { echo "demo: $tool is missing; 'make deps' installs it" >&2; exit 2; }; done

rm -rf "$OUT"
mkdir -p "$OUT/logs" "$OUT/ports"
pids=()

stop_services() {
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] && return
  kill "${pids[@]}" 2>/dev/null || :
  for _ in $(seq 50); do kill -0 "${pids[@]}" 2>/dev/null || break; sleep 0.1; done
  kill -9 "${pids[@]}" 2>/dev/null || :
  wait 2>/dev/null || :
}
trap 'stop_services' EXIT
trap 'echo; echo "demo: interrupted, stopping the services"; stop_services; exit 130' INT TERM

fail() { echo "demo: $*" >&2; echo "demo: the logs are in $OUT/logs" >&2; exit 1; }

# start NAME PROGRAM ARGS...: a service on a free port; sets PORT.
start() {
  local name=$1
  shift
  "$@" --port 0 --port-file "$OUT/ports/$name" >"$OUT/logs/$name.log" 2>&1 &
  pids+=($!)
  local pid=$!
  for _ in $(seq 200); do
    [ -s "$OUT/ports/$name" ] && break
    kill -0 $pid 2>/dev/null || { tail -3 "$OUT/logs/$name.log" >&2; fail "$name did not start"; }
    sleep 0.05
  done
  [ -s "$OUT/ports/$name" ] || fail "$name did not write its port within ten seconds"
  PORT=$(cat "$OUT/ports/$name")
}

say() { if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi; }

say "Starting coordinator, trainer-server and two generation-servers (seed $SEED, mode $MODE${CONTROL:+, control $CONTROL})"
start coordinator "$BIN/coordinator" --db "$OUT/coordinator.db" --data-dir "$DATA"
C=http://127.0.0.1:$PORT
start trainer "$BIN/trainer-server" --coordinator "$C" --name trainer --model "$DATA/model" --random-init "$SEED" --state-dir "$OUT/trainer" --threads 2
T=http://127.0.0.1:$PORT
start generation-1 "$BIN/generation-server" --coordinator "$C" --name gen-1 --slots 64 --threads 1
G=http://127.0.0.1:$PORT
start generation-2 "$BIN/generation-server" --coordinator "$C" --name gen-2 --slots 64 --threads 1
echo "coordinator $C   trainer $T   generation $G and http://127.0.0.1:$PORT   logs in $OUT/logs"

check_alive() { for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || fail "a service died"; done; }

# run_create NAME JSON: prints the call as a user would type it, then makes it; sets RUN.
run_create() {
  printf '%s\n' "$2" | jq . >"$OUT/$1.json"
  echo "  \$ curl -X POST $C/v1/runs -H 'Content-Type: application/json' -d @$OUT/$1.json"
  local answer
  answer=$(curl -sS -X POST "$C/v1/runs" -H 'Content-Type: application/json' -d @"$OUT/$1.json") || fail "the coordinator did not answer"
  RUN=$(jq -r '.id // empty' <<<"$answer")
  [ -n "$RUN" ] || fail "the run was refused: $answer"
}

bar() { awk -v x="$1" 'BEGIN { n = int(x * 30 + 0.5); for (i = 0; i < 30; i++) printf(i < n ? "#" : "."); }'; }

# run_wait RUN KIND: follows a run until it ends; prints a line every few rounds.
run_wait() {
  local run=$1 kind=$2 printed=0 every status state
  every=$([ "$kind" = warmup ] && echo 50 || echo 5)
  while :; do
    status=$(curl -sS "$C/v1/runs/$run") || fail "the coordinator did not answer"
    state=$(jq -r .state <<<"$status")
    if [ "$kind" != quiet ]; then
      while IFS=$'\t' read -r round reward validation loss tps left; do
        [ -n "$round" ] || continue
        printed=$round
        if [ "$kind" = warmup ]; then
          printf '  step %4d/%d   loss %.4f   %s s left\n' "$round" "$WARMUP" "$loss" "$left"
        else
          printf '  round %3d/%d   reward %.3f %s   validation %s   %s tokens/s   %s s left\n' "$round" "$ROUNDS" "$reward" "$(bar "$reward")" "$validation" "$tps" "$left"
        fi
      done < <(jq -r --argjson printed "$printed" --argjson every "$every" '
          . as $run | .history[] | select(.round + 1 > $printed and (.round + 1) % $every == 0)
          | [.round + 1, (.round as $r | [$run.history[] | select(.round <= $r) | .reward_mean // empty] | last // 0), ((.round as $r | [$run.evaluations[] | select(.round <= $r)] | last | .accuracy // null) | if . == null then "-" else (. * 1000 | round / 1000) end),
             .loss // 0, ($run.totals.tokens_per_second // 0 | round), (($run.eta_ms // 0) / 1000 | round)] | @tsv' <<<"$status")
    fi
    case $state in
      completed) break ;;
      failed | stopped) fail "run $run ended as $state: $(jq -r '.error // ""' <<<"$status")" ;;
      paused) fail "run $run is paused: $(jq -r '.error // ""' <<<"$status")" ;;
    esac
    check_alive
    sleep "$([ "$kind" = quiet ] && echo 0.1 || echo 0.5)"
  done
  STATUS=$status
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

say "2. The base model on 256 held-out test problems"
evaluate before-sampled 4 1
sampled_before=$ACCURACY format_before=$FORMAT
evaluate before-greedy 1 0
greedy_before=$ACCURACY

if [ "$MODE" = inflight ]; then
  say "3. Reinforcement learning: $ROUNDS optimizer steps over 64 groups x 8 samples each, weights swapped while samples are drawn, rewards by the numeric verifier"
else
  say "3. Reinforcement learning: $ROUNDS rounds of 64 groups x 8 samples, rewards by the numeric verifier"
fi
run_create grpo "$(jq --argjson seed "$SEED" --arg mode "$MODE" --argjson n "$ROUNDS" --arg control "$CONTROL" '
    .seed = $seed | .mode = $mode | .rounds = $n
    | if $control == "shuffled" then .verifier.shuffle_rewards = true elif $control == "lr0" then .training.lr = 0 else . end' "$DATA/runs/grpo.json")"
run_wait "$RUN" grpo
grpo=$STATUS grpo_run=$RUN

say "4. The trained model on the same test problems"
evaluate after-sampled 4 1
sampled_after=$ACCURACY format_after=$FORMAT
evaluate after-greedy 1 0
greedy_after=$ACCURACY

checkpoint=$OUT/trainer/$grpo_run/v$ROUNDS
jq -n --argjson run "$grpo" --argjson seed "$SEED" --arg control "$CONTROL" --argjson sb "$sampled_before" --argjson sa "$sampled_after" --argjson gb "$greedy_before" --argjson ga "$greedy_after" \
  --argjson fb "$format_before" --argjson fa "$format_after" --arg model "$checkpoint" '{
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
    lag: (if $run.mode != "inflight" then null else [$run.history[] | .lag + {tokens, ess, kl_new_old}] | {
      max_allowed: $run.config.max_lag, min: (map(.min) | min), mean: ((map(.mean * .tokens) | add) / (map(.tokens) | add)), max: (map(.max) | max), groups_dropped: (map(.groups_dropped) | add),
      versions_skipped: (map(select(.version_skipped)) | length), compared_tokens: (map(.compared_tokens) | add), trained_tokens: (map(.tokens) | add),
      ess_min: (map(.ess // empty) | min), kl_new_old_max: (map(.kl_new_old // empty) | max)} end)}' >"$OUT/summary.json"

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
