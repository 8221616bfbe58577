# What overlap is worth, from GET /v1/runs/{id}/timeline: figures of a run in sync beside one in pipelined, and a picture of a round.

def median: sort | if length == 0 then null else (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2 end;

# When the round's last sample was drawn, as the servers tell.  Its groups are known to be complete later: the trainer checks them first, in sync too.
# What is begun behind that is the next round's: its version is at the servers a little before it counts as published.
def sampled_ms($intervals): .opened_ms as $from | .generated_ms as $to
  | ([$intervals[] | select(.[0] == "compute" and .[2] > $from * 1000 and .[1] < $to * 1000) | .[2] / 1000] | max) // .generated_ms;

# Of a timeline; milliseconds a round.  T_r is `sampling`, T_t is `training`: all that the trainer works, publishing too.
def figures: [.workers[] | select(.kind == "generation") | .intervals[]] as $intervals | .rounds | {
  rounds: length,
  window: map(.published_ms - .opened_ms) | median,
  sampling: map(sampled_ms($intervals) - .opened_ms) | median,
  training: map(.trainer | (.logprob_us + .compute_us + .step_us + .checkpoint_us + .push_us) / 1000) | median,
  fill: map(.trainer.fill_us / 1000) | median,
  trainer_waiting_ratio: ((map(.trainer | .fill_us + .starved_us) | add) / (map(.trainer | .fill_us + .starved_us + .logprob_us + .compute_us) | add)),
  generation_idle_ratio: (1 - (map(.generation.slot_busy_us) | add) / (map(.generation.slot_window_us) | add))
};

# Beside each other.  A pipelined window is no shorter than the time to the first group and all of the training, nor than all of the sampling; where the pools share cores ($apart
# is false) that says nothing, since both get slower at once.
def overlap($sync; $pipelined; $apart): {sync: ($sync | figures), pipelined: ($pipelined | figures)}
  | .ratio = .pipelined.window / .sync.window
  | .attainable = (if $apart then ([.sync.sampling, .pipelined.fill + .sync.training] | max) / (.sync.sampling + .sync.training) else null end);

# Timelines of the same workers, one after the other, as one.
def together: {rounds: map(.rounds) | add, workers: map(.workers) | add | group_by([.kind, .name]) | map(.[0] + {intervals: map(.intervals) | add})};

# Has every worker told what it did up to the end of the last round?
def told: (.rounds[-1].published_ms * 1000) as $last
  | [.workers[] | select(.kind != "coordinator" and (.intervals | length) > 0) | .intervals[-1][2] >= $last - 1000] | length >= 2 and all;

def letter: {sampling: "#", compute: "=", logprob: "l", fill: ".", starved: "-", step: "s", checkpoint: "c", push: "p", load: "w", idle: " ", verifying: "v"}[.];

# Of intervals: a letter for each of $columns spans of $span us.  A span shows the cause that has been shown least for its time, so that the letters are as many as the
# time was long; a step is shown however short it is.
def lane($begin; $span; $columns):
  . as $intervals
  | reduce range($columns) as $column ({text: "", owed: {}};
      ($begin + $column * $span) as $from
      | (reduce ($intervals[] | select(.[1] < $from + $span and .[2] > $from)) as [$cause, $since, $until] ({};
          .[$cause] += ([$until, $from + $span] | min) - ([$since, $from] | max))) as $took
      | .owed as $owed
      | .owed = ($took | with_entries(.value += ($owed[.key] // 0)))
      | if $took == {} then .text += " "
        else (if $took.step then "step" else .owed | to_entries | max_by(.value).key end) as $shown
          | .text += ($shown | letter) | .owed[$shown] -= $span
        end)
  | .text;

# The round in the middle when they are ordered by their length.
def typical: .rounds | sort_by(.published_ms - .opened_ms) | .[(length - 1) / 2 | floor];

# A line of text for each server, for verifying and for the trainer.
def lanes($round; $span):
  ($round.opened_ms * 1000) as $begin
  | ([($round.published_ms * 1000 - $begin) / $span | ceil, 1] | max) as $columns
  | def line($name): ($name[:10] + "           ")[:11] + . + "|";
    (.workers | map(select(.kind == "generation" and (.intervals | any(.[0] == "compute")))) | sort_by(.name)[]
      | .name as $name | .intervals | map(if .[0] == "compute" then .[0] = "sampling" else . end) | lane($begin; $span; $columns) | line($name)),
    (.workers[] | select(.kind == "coordinator") | .intervals | lane($begin; $span; $columns) | line("verifying")),
    (.workers[] | select(.kind == "trainer") | .intervals | lane($begin; $span; $columns) | line("trainer"));

def hundredths: . * 100 | round / 100;
def columns($widths): [., $widths] | transpose | map((.[0] | tostring) as $cell | (" " * ([.[1] - ($cell | length), 0] | max)) as $blank
  | if .[1] > 40 then $cell + $blank else $blank + $cell end) | "  " + join("");

def report($sync; $pipelined; $apart):
  overlap($sync; $pipelined; $apart) as $o
  | ([$sync, $pipelined | typical | .published_ms - .opened_ms] | max * 1000 / 72) as $span
  | (["", "sync", "pipelined"],
     ["a round, from opening to publishing, ms", ($o | .sync.window, .pipelined.window | round)],
     ["trainer waiting ratio", ($o | .sync, .pipelined | .trainer_waiting_ratio | hundredths)],
     ["generation idle ratio", ($o | .sync, .pipelined | .generation_idle_ratio | hundredths)] | columns([46, 11, 11])),
    "  pipelined takes \($o.ratio | hundredths) of the time; " + if $apart then "attainable is \($o.attainable | hundredths), (fill + T_t) / (T_r + T_t):" else "on cores that are shared there is little to win:" end,
    "  T_r, sampling, \($o.sync.sampling | round) ms; T_t, training and publishing, \($o.sync.training | round) ms; fill, until the first group, \($o.pipelined.fill | round) ms",
    "",
    "  a round of median length of each, a letter for \($span / 1000 | hundredths) ms:",
    ({name: "sync", it: $sync}, {name: "pipelined", it: $pipelined} | (.it | typical) as $round | "  \(.name), round \($round.round + 1)", (.it | lanes($round; $span) | "    " + .)),
    "    # sampling   - nothing to sample, or to train on   . waits for the first group   v verifying",
    "    l log-probabilities   = gradients   s step   c checkpoint   p push   w takes weights in";
