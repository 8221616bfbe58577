# shellcheck shell=bash
# Which cores the demo's services get: each pool has some of its own, as on machines of its own.  Sourced by demo.sh.
#
#   one core   everything shares it
#   two        the generation-server has one, the trainer the other
#   more       shared out by what sampling and training took in rounds that were measured, so that the slower of them is as fast as it can be
#
# The coordinator, which has to live somewhere, runs beside the generation-servers: its work counts as sampling.  A generation-server takes one core: the demo's model is so small that more servers gain more than more threads.
# More than SERVERS_MAX would be given too few samples of a round each, and a trainer computes at most a round's groups side by side.
readonly SERVERS_MAX=8 TRAINER_THREADS_MAX=64 SLOTS_MAX=64 ROUND_SAMPLES=512

# cpu_list: the processors that this process may run on, one a line.
cpu_list() { taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }'; }

# share_cores CORES SAMPLING TRAINING: what both take of a round on one core, in the same unit.  Prints how many generation-servers there are, and how many threads the trainer has.
share_cores() {
  awk -v cores="$1" -v sampling="$2" -v training="$3" -v servers_max=$SERVERS_MAX -v threads_max=$TRAINER_THREADS_MAX 'BEGIN {
    servers = threads = 1
    for (s = 1; s < cores && s <= servers_max; s++) {
      t = cores - s < threads_max ? cores - s : threads_max
      slower = sampling / s > training / t ? sampling / s : training / t
      if (s > 1 && slower >= best) continue
      best = slower
      servers = s
      threads = t
    }
    print servers, threads
  }'
}

# slots_for SERVERS: of each; half a round fits at once, so that the first servers that ask do not take it all.
slots_for() { echo $((ROUND_SAMPLES / 2 / $1 < SLOTS_MAX ? ROUND_SAMPLES / 2 / $1 : SLOTS_MAX)); }
