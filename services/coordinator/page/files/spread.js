// How rewards, their terms, lengths and turns are spread over each round's samples, read in pages of rounds from the newest to the oldest, once per run
// and page load; rounds that end later are read as they end.
import { aborted, get } from "./api.js";

const PAGE = 50;
const PAUSE_MS = 30; // between pages: the coordinator's time belongs to the run
const DRAW_MS = 300; // all charts are drawn again at most so often while pages come in
const known = new WeakMap();

class Spread {
  constructor(data) {
    this.data = data;
    this.of = new Map(); // round -> spread
    this.asked = new Set(); // first rounds of pages that were read
    this.listeners = new Set();
    this.reading = false;
    this.told = -Infinity;
  }

  tell() {
    this.told = performance.now();
    for (const listener of this.listeners) listener();
  }

  // Values over the rounds; null where there are none.
  column(rounds, value) {
    return rounds.map((round) => {
      const spread = this.of.get(round.round);
      return spread ? value(spread) ?? null : null;
    });
  }

  nextPage() {
    const newest = this.data.rounds.at(-1)?.round;
    if (newest === undefined) return null;
    for (let from = newest - (newest % PAGE); from >= 0; from -= PAGE) {
      const full = newest >= from + PAGE - 1;
      if (this.asked.has(from) && (full || this.of.has(newest))) continue;
      if (this.asked.has(from) && this.seen === newest) continue; // nothing is kept of it
      return from;
    }
    return null;
  }

  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      for (let from; (from = this.nextPage()) !== null && this.listeners.size; ) {
        const newest = this.data.rounds.at(-1).round;
        let at = from; // of the page that a live run is in, only what is not known yet
        while (at < newest && this.of.has(at)) at += 1;
        while (at !== null && at < from + PAGE) {
          const { rounds, next } = await get(`/v1/runs/${this.data.id}/spread?from=${at}&limit=${from + PAGE - at}`, { signal: this.data.stopping.signal });
          rounds.forEach((spread) => this.of.set(spread.round, spread));
          at = next;
        }
        this.asked.add(from);
        if (newest >= from && newest < from + PAGE) this.seen = newest;
        if (performance.now() - this.told >= DRAW_MS || this.nextPage() === null) this.tell();
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      }
    } catch (error) {
      if (!aborted(error)) this.data.fail(error);
    }
    this.reading = false;
  }
}

export function spreadOf(data) {
  if (!known.has(data)) known.set(data, new Spread(data));
  return known.get(data);
}

// For round_charts.js: reads while a view is shown.
export const withSpread = {
  start(data, changed) {
    const spread = spreadOf(data);
    spread.listeners.add(changed);
    spread.read();
    const stop = data.onChange(() => spread.read());
    return () => {
      stop();
      spread.listeners.delete(changed);
    };
  },
};
