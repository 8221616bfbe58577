// One run as the page knows it: its status and all of its rounds, kept current by the run's events while it goes on.
//
// Events are listened to before the rounds are read, so none is missed between the two; the status is read again, without
// its history, at most every two seconds while there are events, and every ten while there are none: a run that stalls
// has none, and its status says why.
import { aborted, events, get } from "./api.js";

const ENDED = new Set(["completed", "stopped", "failed"]);
const ROUNDS_AT_ONCE = 10000;
const STATUS_MS = 2000;
const QUIET_MS = 10000;

export class RunData {
  constructor(id) {
    this.id = id;
    this.status = null;
    this.rounds = [];
    this.evaluations = new Map(); // by round
    this.workers = new Map(); // what each has sampled, by id
    this.live = false;
    this.error = null;
    this.listeners = new Set();
    this.stopping = new AbortController();
  }

  // Resolves when there is something to show.
  async start() {
    await Promise.all([this.readStatus(), this.readRounds()]);
    if (!this.ended()) this.follow();
  }

  stop() {
    this.stopping.abort();
    this.listeners.clear();
    clearTimeout(this.timer);
    clearTimeout(this.quiet);
  }

  ended() {
    return ENDED.has(this.status.state);
  }

  onChange(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      for (const listener of this.listeners) listener();
    });
  }

  async readStatus() {
    const status = await get(`/v1/runs/${this.id}?history=0`, { signal: this.stopping.signal });
    await this.readEarlier(status);
    this.status = status;
    this.statusAt = performance.now();
    this.changed();
    this.statusAfter();
  }

  // A status has the newest evaluations and workers.  Earlier ones are asked for until all are known, and then change no more.
  async readEarlier(status) {
    for (let part = status; ; ) {
      part.evaluations.forEach((evaluation) => this.evaluations.set(evaluation.round, evaluation));
      part.totals.workers.forEach((worker) => this.workers.set(worker.id, worker));
      const before = [];
      if (this.evaluations.size < status.evaluations_count && part.evaluations.length) before.push(`evaluations_before=${part.evaluations[0].round}`);
      if (this.workers.size < status.totals.workers_count && part.totals.workers.length) before.push(`workers_before=${part.totals.workers[0].id}`);
      if (!before.length) break;
      part = await get(`/v1/runs/${this.id}?history=0&${before.join("&")}`, { signal: this.stopping.signal });
    }
    status.evaluations = [...this.evaluations.values()].sort((a, b) => a.round - b.round);
    status.totals.workers = [...this.workers.values()];
  }

  statusAfter() {
    clearTimeout(this.quiet);
    if (!this.ended() && !this.stopping.signal.aborted) this.quiet = setTimeout(() => this.statusSoon(), QUIET_MS);
  }

  async readRounds() {
    for (;;) {
      const from = this.rounds.length ? this.rounds[this.rounds.length - 1].round + 1 : 0;
      const { rounds } = await get(`/v1/runs/${this.id}/rounds?from=${from}&limit=${ROUNDS_AT_ONCE}`, { signal: this.stopping.signal });
      rounds.forEach((round) => this.put(round));
      this.changed();
      if (rounds.length < ROUNDS_AT_ONCE) return;
    }
  }

  put(round) {
    if (!this.rounds.length || this.rounds.at(-1).round < round.round) {
      this.rounds.push(round);
      return;
    }
    const at = this.rounds.findIndex((known) => known.round >= round.round);
    if (this.rounds[at].round === round.round) this.rounds[at] = round;
    else this.rounds.splice(at, 0, round);
  }

  statusSoon() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.readStatus().catch((error) => {
        if (aborted(error)) return;
        this.fail(error);
        this.statusAfter();
      });
    }, Math.max(0, STATUS_MS - (performance.now() - this.statusAt)));
  }

  fail(error) {
    this.error = error.message;
    this.changed();
  }

  heard(type, data) {
    if (type === "round") this.put(data);
    else if (type === "state") Object.assign(this.status, data);
    else if (type === "waiting") this.status.waiting_for = data.waiting_for;
    this.changed();
    this.statusSoon();
  }

  async follow() {
    for (let wait = 1000; !this.stopping.signal.aborted; wait = Math.min(2 * wait, 15000)) {
      try {
        await events(`/v1/runs/${this.id}/events?past=0`, {
          signal: this.stopping.signal,
          opened: () => {
            this.live = true;
            this.error = null;
            wait = 1000;
            this.readRounds().catch((error) => aborted(error) || this.fail(error));
          },
          heard: (type, data) => this.heard(type, data),
        });
        this.live = false;
        await this.readStatus();
        await this.readRounds();
        if (this.ended()) return;
      } catch (error) {
        if (aborted(error)) return;
        this.live = false;
        this.fail(error);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}
