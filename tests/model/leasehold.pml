/* The protocol between coordinator, generation-servers and trainers, as the code carries it out.
 *
 * Each inline below is one transition: what one process does between two moments at which another one can see it, or a
 * crash can undo it.  README.md's table says which functions it is.  A transaction of the coordinator's database is one
 * transition and survives everything; what is in a process's memory ends with it.
 *
 * Messages lie in slots: one for a server's result, one for a trainer's orders, one for its announcement.  Reading a slot
 * does not empty it (messages are delayed and doubled), and it need never be read before it is written over (lost).
 * A timer may end at any moment, so that every order of expiries, freezes and late messages is among the behaviours: a
 * frozen process is one that takes no turn.
 *
 * The second coordinator begins on the database of the first, whose process is cut off from it (the file's lock and its
 * disk are the second's) but goes on sending what it had stored, under its own epoch: a zombie.
 *
 * A round is one group, one batch and one optimizer step.  Weights are numbers: two bits for every round's group, how
 * often they hold its gradient.  The instance's bounds and the flags that take a check out come from `check`. */

#define NOBODY 2 /* neither server 0 nor 1, neither trainer 0 nor 1 */
#define gradient(r) (1 << (2 * (r)))
/* What the weights of version v must hold: every earlier round's group once. */
#define lineage(v) ((v) == 0 -> 0 : ((v) == 1 -> 1 : ((v) == 2 -> 5 : 21)))

mtype = { WAITING, LEASED, DONE, OPEN, SEALED, SUBMITTED, NOTHING, BATCH, STEP, IDLE, STEPPED, DURABLE };

/* ---- promises: 1 where one is broken; their names are in what pan prints ---- */
bit I1, I2, I3, I4, I5, I6, I9;
bit WHOLE; /* a run was paused although the ledger is whole */

inline holds(promise, condition) {
  if
  :: condition
  :: else -> promise = 1
  fi;
  assert(!promise)
}

/* ---- the coordinator's database ---- */
byte epoch = 1;
byte version;             /* the newest */
bit current[4];           /* versions.state */
byte digest[4];
byte round;               /* the newest, sampled at the version of its number */
mtype group;              /* its group */
bit batch_done, stepping; /* batches.done; rounds.state is stepping */
bit unfinished;           /* a round is done whose figures have not come */
bit kept[4];              /* rounds' rollouts that are not dropped */
mtype sample[2];
byte fence[2];            /* of the sample's newest lease */
byte lease_of[2];         /* the server that holds it */
byte taken[2];            /* results that were accepted for it */
bit server_live[2];
bit trainer_live[2];
byte trainer_fence;       /* meta.trainer_fence */
byte place_fence[2];      /* a registered trainer's; 0: it stands by */
byte holder = NOBODY;

/* ---- the coordinator's memory ---- */
byte place_for = NOBODY;  /* the trainer for which the place is kept after a start */
byte verified;            /* fence of the trainer that is known to hold the recorded weights; 0: none */
bit replays, doubted;
bit half;                 /* only with TWO_TRANSACTIONS */

/* ---- what the zombie knows ---- */
byte zombie_epoch, zombie_fence, zombie_trainer = NOBODY, zombie_round;
bit zombie_batch, zombie_step;

/* ---- generation-servers ---- */
byte server_epoch[2], loaded[2];
byte held_fence[2], held_sample[2], held_round[2], held_version[2];
byte result_fence[2], result_sample[2], result_round[2], result_version[2], result_epoch[2];

/* ---- trainers ---- */
byte known_epoch[2], known_fence[2]; /* 0: not registered; stands by */
byte holds_version[2], weights[2], sum[2], replay_to[2];
byte batch_job[2];        /* the round whose batch the job table knows, and 1 */
byte step_job[2];         /* the version that the known step made */
byte oldest[2];           /* what that step's answer says of checkpoints */
mtype phase[2];
byte disk_version[2], disk_weights[2];
mtype order[2];
byte order_epoch[2], order_fence[2], order_round[2];
byte said_version[2], said_epoch[2], said_fence[2], said_weights[2];
bit owed[2];              /* only with PUBLISH_FIRST */

/* ---- accidents so far ---- */
byte server_restarts, server_losses, trainer_restarts, trainer_losses;

/* ---- who is a zombie, which nobody can see ---- */
byte lives = 1;                /* of coordinators */
byte met[2], order_life[2];    /* the newest life that has opened the run at the trainer; that gave the order */

#define complete (version == ROUNDS && !unfinished || TRAINERS == 0 && group == SEALED)
#define kept_from(c) ((c >= 1 || version < 1 || kept[0]) && (c >= 2 || version < 2 || kept[1]) && (c >= 3 || version < 3 || kept[2]))
#define recoverable (kept_from(0) || kept_from(disk_version[0]) || kept_from(disk_version[1]))
#define checks_database                                                        \
  holds(I1, half == 0 && current[0] + current[1] + current[2] + current[3] == 1); \
  holds(I6, round == version);                                                 \
  holds(I6, recoverable)
#define checkpoint_due(v) ((v) % EVERY == 0 || (v) == ROUNDS || (v) == replay_to[t])

#ifdef NO_FENCE
#define right_fence(s, x) true
#else
#define right_fence(s, x) (fence[x] == result_fence[s])
#endif
#ifdef NO_ACCEPT_ONCE
#define lease_stands(x) (sample[x] != WAITING)
#else
#define lease_stands(x) (sample[x] == LEASED)
#endif
#ifdef NO_DIGEST
#define right_weights(v) true
#else
#define right_weights(v) ((v) == version)
#endif
#ifdef NO_EPOCH_CHECK
#define right_epoch(e, mine) true
#else
#define right_epoch(e, mine) ((e) == (mine))
#endif
#ifdef NO_PLACE
#define holds_place(t) true
#else
#define holds_place(t) (trainer_live[t] && holder == t && said_fence[t] == place_fence[t])
#endif
#ifdef SEAL_EARLY
#define all_done (sample[0] == DONE || sample[1] == DONE)
#else
#define all_done (sample[0] == DONE && (SAMPLES == 1 || sample[1] == DONE))
#endif

/* ---- generation-servers ---- */

/* Part of a transition: its leases' samples wait again. */
inline server_lost(gone) {
  server_live[gone] = 0;
  if
  :: sample[0] == LEASED && lease_of[0] == gone -> sample[0] = WAITING
  :: else
  fi;
  if
  :: sample[1] == LEASED && lease_of[1] == gone -> sample[1] = WAITING
  :: else
  fi
}

inline server_registers(s) {
  d_step {
    !complete && (server_epoch[s] != epoch || !server_live[s]) ->
    server_lost(s);
    server_epoch[s] = epoch;
    server_live[s] = 1;
    held_fence[s] = 0
  }
}

/* Its registration is forgotten by the server, its leases by nobody. */
inline server_restarts_empty(s) {
  d_step {
    !complete && server_restarts < SERVER_RESTARTS && server_epoch[s] != 0 ->
    server_restarts++;
    server_epoch[s] = 0;
    held_fence[s] = 0;
    loaded[s] = 0
  }
}

inline server_expires(s) {
  d_step {
    !complete && server_live[s] && server_losses < SERVER_LOSSES ->
    server_losses++;
    server_lost(s)
  }
}

/* Pushed, or pulled after an answer that told of it. */
inline weights_loaded(s) {
  d_step {
    !complete && loaded[s] < version ->
    loaded[s] = version
  }
}

/* lost: the answer to the poll. */
inline lease_granted(s, x, lost) {
  d_step {
    !complete && x < SAMPLES && version < ROUNDS && server_live[s] && server_epoch[s] == epoch && held_fence[s] == 0 && group == OPEN && sample[x] == WAITING &&
        fence[x] < FENCES && right_weights(loaded[s]) ->
    sample[x] = LEASED;
    fence[x]++;
    lease_of[x] = s;
    if
    :: lost
    :: else ->
       held_fence[s] = fence[x];
       held_sample[s] = x;
       held_round[s] = round;
       held_version[s] = loaded[s]
    fi;
    holds(I2, loaded[s] == version)
  }
}

inline lease_expires(x) {
  d_step {
    !complete && sample[x] == LEASED && fence[x] < FENCES ->
    sample[x] = WAITING
  }
}

/* A heartbeat's answer says that the lease is lost, or its version superseded. */
inline lease_dropped(s) {
  d_step {
    held_fence[s] != 0 && !complete &&
        (held_round[s] != round || sample[held_sample[s]] != LEASED || fence[held_sample[s]] != held_fence[s]) ->
    held_fence[s] = 0
  }
}

inline result_sent(s) {
  d_step {
    !complete && held_fence[s] != 0 &&
        (result_fence[s] != held_fence[s] || result_sample[s] != held_sample[s] || result_round[s] != held_round[s] || result_epoch[s] != server_epoch[s]) ->
    result_fence[s] = held_fence[s];
    result_sample[s] = held_sample[s];
    result_round[s] = held_round[s];
    result_version[s] = held_version[s];
    result_epoch[s] = server_epoch[s]
  }
}

/* lost: its answer.  Accepting, and sealing with the last sample, are one transaction. */
inline result_judged(s, lost) {
  d_step {
    !complete && result_fence[s] != 0 ->
    if
    :: version < ROUNDS && group == OPEN && result_round[s] == round && right_epoch(result_epoch[s], epoch) && lease_stands(result_sample[s]) &&
           right_fence(s, result_sample[s]) && right_weights(result_version[s]) ->
       holds(I3, result_fence[s] == fence[result_sample[s]] && taken[result_sample[s]] == 0);
       holds(I9, result_epoch[s] == epoch);
       holds(I2, result_version[s] == version);
       sample[result_sample[s]] = DONE;
       taken[result_sample[s]]++;
       if
       :: all_done ->
          holds(I4, taken[0] == 1 && (SAMPLES == 1 || taken[1] == 1));
          group = SEALED
       :: else
       fi
    :: else
    fi;
    if
    :: !lost && held_fence[s] == result_fence[s] && held_sample[s] == result_sample[s] && held_round[s] == result_round[s] -> held_fence[s] = 0
    :: else
    fi
  }
}

/* ---- the coordinator's life ---- */

inline coordinator_starts() {
  d_step {
    !complete && !half && lives < LIVES ->
    zombie_epoch = epoch;
    zombie_trainer = holder;
    zombie_fence = (holder == NOBODY -> 0 : place_fence[holder & 1]);
    zombie_round = round;
    zombie_batch = group == SUBMITTED;
    zombie_step = stepping && batch_done;
    lives++;
    verified = 0;
    replays = 0;
    doubted = 0;
#ifndef NO_EPOCH
    epoch++;
    server_live[0] = 0;
    server_live[1] = 0;
    trainer_live[0] = 0;
    trainer_live[1] = 0;
    place_for = holder;
    holder = NOBODY;
    if
    :: sample[0] == LEASED -> sample[0] = WAITING
    :: else
    fi;
    if
    :: sample[1] == LEASED -> sample[1] = WAITING
    :: else
    fi
#endif
  }
}

inline zombie_sends(kind) {
  d_step {
    !complete && zombie_trainer != NOBODY && ((kind == BATCH && zombie_batch) || (kind == STEP && zombie_step)) ->
    order[zombie_trainer] = kind;
    order_epoch[zombie_trainer] = zombie_epoch;
    order_fence[zombie_trainer] = zombie_fence;
    order_round[zombie_trainer] = zombie_round;
    order_life[zombie_trainer] = lives - 1
  }
}

/* ---- the trainer's place ---- */

/* Part of a transition. */
inline place_taken(who) {
  trainer_fence++;
  place_fence[who] = trainer_fence;
  holder = who;
  place_for = NOBODY
}

inline trainer_registers(t) {
  d_step {
    !complete && (known_epoch[t] != epoch || !trainer_live[t]) ->
    if
    :: trainer_live[t] && holder == t -> place_taken(t)
    :: else ->
       place_fence[t] = 0;
       if
       :: holder == NOBODY && place_for == NOBODY && trainer_live[1 - t] -> place_taken(1 - t)
       :: holder == NOBODY && (place_for == t || (place_for == NOBODY && !trainer_live[1 - t])) -> place_taken(t)
       :: else
       fi
    fi;
    trainer_live[t] = 1;
    known_epoch[t] = epoch;
    known_fence[t] = place_fence[t]
  }
}

inline place_kept_ends() {
  d_step {
    !complete && place_for != NOBODY ->
    place_for = NOBODY;
    if
    :: holder == NOBODY && trainer_live[0] -> place_taken(0)
    :: holder == NOBODY && !trainer_live[0] && trainer_live[1] -> place_taken(1)
    :: else
    fi
  }
}

/* Silent for longer than its time to live. */
inline trainer_expires(t) {
  d_step {
    !complete && trainer_live[t] && trainer_losses < TRAINER_LOSSES ->
    trainer_losses++;
    trainer_live[t] = 0;
    place_fence[t] = 0;
    if
    :: holder == t ->
       holder = NOBODY;
       if
       :: trainer_live[1 - t] -> place_taken(1 - t)
       :: else
       fi
    :: else
    fi
  }
}

/* A heartbeat's answer. */
inline trainer_hears(t) {
  d_step {
    !complete && trainer_live[t] && known_epoch[t] == epoch && known_fence[t] != place_fence[t] ->
    known_fence[t] = place_fence[t]
  }
}

/* ---- the driver ---- */

#define driven(t) (!complete && !half && holder == t && verified == place_fence[t] && verified != 0)

/* The trainer refuses what is asked: once a round the driver asks again what it holds, then it believes it. */
inline refused() {
  if
  :: !doubted ->
     doubted = 1;
     verified = 0
  :: else -> holds(WHOLE, false)
  fi
}

inline run_opened(t) {
  d_step {
    !complete && !half && holder == t && verified != place_fence[t] && known_epoch[t] == epoch && known_fence[t] == place_fence[t] ->
    replays = 0;
    met[t] = lives;
    if
    :: holds_version[t] == version + 1 && stepping ->
       verified = place_fence[t]
#ifndef NO_BATCHES_TAKEN
       ;
       batch_done = 1
#endif
    :: holds_version[t] == version ->
       holds(I5, weights[t] == digest[version] || phase[t] != IDLE);
       verified = place_fence[t];
       batch_done = 0
    :: holds_version[t] < version ->
       verified = place_fence[t];
       batch_done = 0;
       replays = 1;
       replay_to[t] = version
    :: else -> holds(WHOLE, false)
    fi
  }
}

/* Part of a transition. */
inline ordered(whom, kind, of_round) {
  order[whom] = kind;
  order_epoch[whom] = epoch;
  order_fence[whom] = place_fence[whom];
  order_round[whom] = of_round;
  order_life[whom] = lives
}
#define already_ordered(t, kind, of_round) \
  (order[t] == kind && order_epoch[t] == epoch && order_fence[t] == place_fence[t] && order_round[t] == of_round && order_life[t] == lives)

inline batch_planned(t) {
  d_step {
    driven(t) && !replays && version < ROUNDS && group == SEALED ->
    group = SUBMITTED
  }
}

inline batch_sent(t) {
  d_step {
    driven(t) && !replays && version < ROUNDS && group == SUBMITTED && !batch_done && batch_job[t] != round + 1 && !already_ordered(t, BATCH, round) ->
    if
    :: holds_version[t] == round -> ordered(t, BATCH, round)
    :: else -> refused()
    fi
  }
}

inline batch_answered(t) {
  d_step {
    driven(t) && !replays && version < ROUNDS && group == SUBMITTED && !batch_done && batch_job[t] == round + 1 ->
    batch_done = 1;
    stepping = 1
  }
}

inline step_sent(t) {
  d_step {
    driven(t) && !replays && version < ROUNDS && stepping && batch_done && step_job[t] != round + 1 && phase[t] == IDLE && !already_ordered(t, STEP, round) ->
    if
    :: holds_version[t] == round && sum[t] > 0 -> ordered(t, STEP, round)
    :: else -> refused()
    fi
  }
}

/* Part of a transition: version v is current, its round done, the next one open. */
inline published(of_weights) {
  current[version] = 0;
  version++;
  digest[version] = of_weights;
#ifdef TWO_TRANSACTIONS
  half = 1;
#else
  current[version] = 1;
#endif
  round++;
  group = OPEN;
  sample[0] = WAITING;
  sample[1] = WAITING;
  fence[0] = 0;
  fence[1] = 0;
  lease_of[0] = 0;
  lease_of[1] = 0;
  taken[0] = 0;
  taken[1] = 0;
  batch_done = 0;
  stepping = 0;
  doubted = 0;
  unfinished = 1;
  holds(I5, of_weights == lineage(version));
  checks_database
}

/* The step's figures, which publish too if the announcement did not come; then rollouts are dropped. */
inline step_answered(t) {
  d_step {
    driven(t) && !replays && ((stepping && batch_done && step_job[t] == version + 1 && version < ROUNDS) || unfinished) && phase[t] == IDLE ->
    if
    :: !unfinished -> published(weights[t])
    :: else
    fi;
    unfinished = 0;
    if
    :: step_job[t] != version || oldest[t] == 0
    :: else ->
       if
       :: oldest[t] > 0 && version >= 1 + KEEP -> kept[0] = 0
       :: else
       fi;
       if
       :: oldest[t] > 1 && version >= 2 + KEEP -> kept[1] = 0
       :: else
       fi
    fi;
    checks_database
  }
}

inline version_judged(t) {
  d_step {
    !complete && !half && said_version[t] == version + 1 && stepping && right_epoch(said_epoch[t], epoch) && holds_place(t) ->
    holds(I9, said_epoch[t] == epoch && holder == t && said_fence[t] == place_fence[t]);
    published(said_weights[t])
  }
}

/* What the trainer was ordered before, in the recorded order; rollouts that were dropped pause the run. */
inline replay_sent(t) {
  d_step {
    driven(t) && replays && holds_version[t] < version && kept[holds_version[t]] && phase[t] == IDLE &&
        !(already_ordered(t, BATCH, holds_version[t]) && batch_job[t] != holds_version[t] + 1) && !already_ordered(t, STEP, holds_version[t]) ->
    if
    :: batch_job[t] == holds_version[t] + 1 -> ordered(t, STEP, holds_version[t])
    :: else -> ordered(t, BATCH, holds_version[t])
    fi
  }
}

inline replay_ends(t) {
  d_step {
    driven(t) && replays && holds_version[t] >= version && phase[t] == IDLE ->
    holds(I5, holds_version[t] > version || weights[t] == digest[version]);
    replays = 0
  }
}

/* ---- trainers ---- */

#ifdef NO_TRAINER_FENCE
#define authorized(t) (known_epoch[t] != 0 && right_epoch(order_epoch[t], known_epoch[t]))
#else
#define authorized(t) \
  (known_epoch[t] != 0 && right_epoch(order_epoch[t], known_epoch[t]) && known_fence[t] != 0 && order_fence[t] == known_fence[t])
#endif
#ifdef NO_BATCH_ONCE
#define batch_is_new(t) (sum[t] < 2)
#else
#define batch_is_new(t) (batch_job[t] != order_round[t] + 1 && sum[t] == 0)
#endif

inline batch_taken(t) {
  d_step {
    !complete && order[t] == BATCH && authorized(t) && order_round[t] == holds_version[t] && phase[t] == IDLE && batch_is_new(t) ->
    holds(I9, order_life[t] >= met[t] && order_fence[t] == known_fence[t]);
    sum[t]++;
    batch_job[t] = order_round[t] + 1
  }
}

inline step_taken(t) {
  d_step {
    !complete && order[t] == STEP && authorized(t) && order_round[t] == holds_version[t] && phase[t] == IDLE && !owed[t] && sum[t] > 0 ->
    holds(I9, order_life[t] >= met[t] && order_fence[t] == known_fence[t]);
    weights[t] = weights[t] + sum[t] * gradient(holds_version[t]);
    sum[t] = 0;
    phase[t] = STEPPED
  }
}

inline version_durable(t) {
  d_step {
#ifdef PUBLISH_FIRST
    !complete && owed[t] ->
    owed[t] = 0;
    disk_version[t] = holds_version[t];
    disk_weights[t] = weights[t]
#else
    !complete && phase[t] == STEPPED ->
    if
    :: checkpoint_due(holds_version[t] + 1) ->
       disk_version[t] = holds_version[t] + 1;
       disk_weights[t] = weights[t]
    :: else
    fi;
    phase[t] = DURABLE
#endif
  }
}

/* A replayed version is announced to nobody. */
inline version_announced(t) {
  d_step {
#ifdef PUBLISH_FIRST
    !complete && phase[t] == STEPPED ->
    owed[t] = checkpoint_due(holds_version[t] + 1);
    oldest[t] = (owed[t] -> holds_version[t] + 1 : disk_version[t]);
#else
    !complete && phase[t] == DURABLE ->
    oldest[t] = disk_version[t];
#endif
    phase[t] = IDLE;
    holds_version[t]++;
    step_job[t] = holds_version[t];
    if
    :: holds_version[t] > replay_to[t] ->
       said_version[t] = holds_version[t];
       said_epoch[t] = known_epoch[t];
       said_fence[t] = known_fence[t];
       said_weights[t] = weights[t]
    :: else
    fi
  }
}

/* kill -9, and a start from what its disk holds. */
inline trainer_restarts_from_disk(t) {
  d_step {
    !complete && trainer_restarts < TRAINER_RESTARTS && known_epoch[t] != 0 ->
    trainer_restarts++;
    known_epoch[t] = 0;
    known_fence[t] = 0;
    holds_version[t] = disk_version[t];
    weights[t] = disk_weights[t];
    step_job[t] = disk_version[t];
    oldest[t] = 0;
    batch_job[t] = 0;
    sum[t] = 0;
    replay_to[t] = 0;
    phase[t] = IDLE;
    owed[t] = 0
  }
}

/* ---- who takes turns ---- */

active proctype coordinator() {
end:
  do
  :: coordinator_starts()
  :: place_kept_ends()
  :: lease_expires(0)
  :: lease_expires(1)
#ifdef TWO_TRANSACTIONS
  :: d_step { half -> current[version] = 1; half = 0 }
#endif
#if SERVERS == 0
  :: d_step { !complete && group == OPEN -> group = SEALED } /* sampling is another instance's */
#endif
  od
}

active proctype zombie() {
end:
  do
  :: zombie_sends(BATCH)
  :: zombie_sends(STEP)
  od
}

proctype server(byte me) {
end:
  do
  :: server_registers(me)
  :: server_restarts_empty(me)
  :: server_expires(me)
  :: weights_loaded(me)
  :: lease_granted(me, 0, 0)
  :: lease_granted(me, 0, 1)
  :: lease_granted(me, 1, 0)
  :: lease_granted(me, 1, 1)
  :: lease_dropped(me)
  :: result_sent(me)
  :: result_judged(me, 0)
  :: result_judged(me, 1)
  od
}

proctype trainer(byte me) {
end:
  do
  :: trainer_registers(me)
  :: trainer_expires(me)
  :: trainer_hears(me)
  :: run_opened(me)
  :: batch_planned(me)
  :: batch_sent(me)
  :: batch_answered(me)
  :: step_sent(me)
  :: step_answered(me)
  :: version_judged(me)
  :: replay_sent(me)
  :: replay_ends(me)
  :: batch_taken(me)
  :: step_taken(me)
  :: version_durable(me)
  :: version_announced(me)
  :: trainer_restarts_from_disk(me)
  od
}

init {
  atomic {
    version = START;
    round = START;
    current[START] = 1;
    digest[START] = lineage(START);
    kept[0] = 1;
    kept[1] = 1;
    kept[2] = 1;
    group = OPEN;
    sample[0] = WAITING;
    sample[1] = WAITING;
    phase[0] = IDLE;
    phase[1] = IDLE;
    order[0] = NOTHING;
    order[1] = NOTHING;
#if SERVERS > 0
    run server(0);
    run server(1);
#endif
#if TRAINERS > 0
    run trainer(0);
    run trainer(1);
#endif
    skip
  }
#ifdef REACH
  /* The round's end, with every accident before it, can be reached: else the search would prove little. */
  complete -> assert(!(lives == LIVES && server_restarts == SERVER_RESTARTS && server_losses == SERVER_LOSSES &&
                       trainer_restarts == TRAINER_RESTARTS && trainer_losses == TRAINER_LOSSES && (START + 2 > ROUNDS || !kept[0])))
#endif
}
