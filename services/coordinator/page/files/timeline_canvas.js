// Draws the timeline's lanes on a canvas, and moves about in time: drag or arrow keys, + and - or the wheel with Ctrl, 0 for all.
//
// Only what is in sight is drawn, pieces narrower than a pixel are drawn together, and widths of texts and the hatching are made once, so
// that dragging stays smooth however much there is.
import { colour, el, fill } from "./dom.js";
import { duration } from "./format.js";

const LANE = 30;
const GAP = 6;
const TOP = 46; // the rounds' band and the scale
const PATH = 12; // the band of what the round waited for
const NAMES = 118;
const NAMES_NARROW = 74;
const BESIDE = 7; // of work that goes on beside other work
const SPAN_LEAST_US = 200;
const STRIPES = 7; // from one stripe of the hatching to the next
const HATCHED = 5; // narrower pieces are filled

export class TimelineCanvas {
  constructor() {
    this.canvas = el("canvas", { tabindex: 0, role: "img" });
    this.tip = el("div", { class: "tip hidden" });
    this.element = el("div", { class: "timeline" }, this.canvas, this.tip);
    this.lanes = [];
    this.rounds = [];
    this.paths = [];
    this.pointers = new Map();
    this.colours = new Map();
    this.widths = new Map(); // of texts, in pixels
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) this.canvas.addEventListener(end, (event) => this.release(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  destroy() {
    this.observer.disconnect();
    cancelAnimationFrame(this.due);
  }

  show(lanes, rounds, paths, label) {
    const first = this.rounds.length === 0;
    const kept = this.rounds.length && this.from > this.begin;
    Object.assign(this, { lanes, rounds, paths });
    this.begin = Math.min(...rounds.map((round) => round.begin));
    this.end = Math.max(...rounds.map((round) => round.end), this.begin + SPAN_LEAST_US);
    if (first || !kept || this.from < this.begin || this.to > this.end) this.fit();
    this.canvas.setAttribute("aria-label", label);
    this.resize();
  }

  fit(from = this.begin, to = this.end) {
    const margin = (to - from) * 0.01;
    this.from = from - margin;
    this.to = to + margin;
    this.draw();
  }

  restyle() {
    this.colours.clear();
    this.stripes = null;
    this.draw();
  }

  textWidth(g, text) {
    if (!this.widths.has(text)) this.widths.set(text, g.measureText(text).width);
    return this.widths.get(text);
  }

  rgb(name) {
    if (!this.colours.has(name)) this.colours.set(name, colour(name));
    return this.colours.get(name);
  }

  resize() {
    const width = this.element.clientWidth;
    if (!width) return;
    this.width = width;
    this.stripes = null; // the device's pixels may be others
    this.names = null;
    this.left = width < 600 ? NAMES_NARROW : NAMES;
    this.height = TOP + PATH + GAP + this.lanes.length * (LANE + GAP) + GAP;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  // --- time and place ---

  x(us) {
    return this.left + ((us - this.from) / (this.to - this.from)) * (this.width - this.left);
  }

  us(x) {
    return this.from + ((x - this.left) / (this.width - this.left)) * (this.to - this.from);
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.max(SPAN_LEAST_US, Math.min((this.to - this.from) * factor, (this.end - this.begin) * 1.05));
    const part = (at - this.from) / (this.to - this.from);
    this.from = at - part * span;
    this.to = this.from + span;
    this.keepInside();
  }

  move(us) {
    this.from += us;
    this.to += us;
    this.keepInside();
  }

  keepInside() {
    const span = this.to - this.from;
    const margin = (this.end - this.begin) * 0.025;
    this.from = Math.max(this.begin - margin, Math.min(this.from, this.end + margin - span));
    this.to = this.from + span;
    this.draw();
  }

  // --- the hand and the keyboard ---

  grab(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    this.tip.classList.add("hidden");
  }

  drag(event) {
    if (!this.pointers.has(event.pointerId)) return this.point(event);
    const before = [...this.pointers.values()];
    const perPixel = (this.to - this.from) / (this.width - this.left);
    const was = this.pointers.get(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    if (before.length === 1) return this.move((was - event.offsetX) * perPixel);
    const now = [...this.pointers.values()];
    const spread = (xs) => Math.max(20, Math.abs(xs[0] - xs[1]));
    this.zoom(spread(before) / spread(now), this.us((now[0] + now[1]) / 2));
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    if (event.type === "pointerleave") this.tip.classList.add("hidden");
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    if (event.ctrlKey) this.zoom(Math.exp(event.deltaY / 300), this.us(event.offsetX));
    else this.move(((event.deltaX || event.deltaY) / this.width) * (this.to - this.from));
  }

  key(event) {
    const span = this.to - this.from;
    const done = { ArrowLeft: () => this.move(-span / 8), ArrowRight: () => this.move(span / 8), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7), "0": () => this.fit() }[event.key];
    if (!done || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    done();
  }

  barAt(x, y) {
    const at = this.us(x);
    if (x < this.left || y < TOP) return null;
    if (y < TOP + PATH + GAP / 2) {
      const piece = this.paths.find((path) => path.length && path[0].begin <= at && path.at(-1).end > at)?.find((one) => one.begin <= at && one.end > at);
      return piece ? { lane: { name: "the round waits for" }, bar: piece } : null;
    }
    const lane = this.lanes[Math.floor((y - TOP - PATH - GAP) / (LANE + GAP))];
    const bars = lane?.bars.filter((bar) => bar.begin <= at && bar.end > at) || [];
    return bars.length ? { lane, bar: bars.find((bar) => !bar.beside) || bars[0], beside: bars.find((bar) => bar.beside) } : null;
  }

  point(event) {
    const found = this.barAt(event.offsetX, event.offsetY);
    this.tip.classList.toggle("hidden", !found);
    if (!found) return;
    const { lane, bar, beside } = found;
    const round = this.rounds.find((one) => one.begin <= bar.begin && one.end > bar.begin);
    fill(this.tip, el("strong", {}, lane.name), `: ${bar.name}, ${duration((bar.end - bar.begin) / 1000)}`, beside && beside !== bar ? `; beside it ${beside.name}` : "", round ? el("div", { class: "quiet" }, `${duration((bar.begin - round.begin) / 1000)} after round ${round.round} opened`) : "");
    this.tip.style.left = `${Math.min(event.offsetX + 14, Math.max(0, this.width - 270))}px`;
    this.tip.style.top = `${Math.min(event.offsetY + 16, this.height - 60)}px`;
  }

  // --- drawing ---

  draw() {
    if (this.due || !this.width) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
    });
  }

  paint() {
    const scale = devicePixelRatio || 1;
    const g = this.canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.fillStyle = this.rgb("--panel");
    g.fillRect(0, 0, this.width, this.height);
    g.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.width - this.left, this.height);
    g.clip();
    this.paintRounds(g);
    this.paintScale(g);
    for (const path of this.paths) this.paintBars(g, path, TOP, PATH, false);
    this.lanes.forEach((lane, i) => this.paintBars(g, lane.bars, TOP + PATH + GAP + i * (LANE + GAP), LANE, true));
    g.restore();
    this.paintNames(g);
  }

  paintRounds(g) {
    this.rounds.forEach((round, i) => {
      const [from, to] = [this.x(round.begin), this.x(round.end)];
      if (to < this.left || from > this.width) return;
      g.fillStyle = this.rgb(i % 2 ? "--back" : "--raised");
      g.fillRect(from, 0, to - from, this.height);
      g.fillStyle = this.rgb("--line");
      g.fillRect(from, 0, 1, this.height);
      const text = to - from > 130 ? `round ${round.round}, v${round.version}` : `${round.round}`;
      const at = Math.max(from, this.left) + 5;
      if (to - from > 12 && Math.min(to, this.width) - at > this.textWidth(g, text)) {
        g.fillStyle = this.rgb("--text");
        g.fillText(text, at, 12);
      }
    });
  }

  paintScale(g) {
    const least = (90 / (this.width - this.left)) * (this.to - this.from);
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
    g.fillStyle = this.rgb("--quiet");
    for (let at = Math.ceil((this.from - this.begin) / step) * step; at <= this.to - this.begin; at += step) {
      const x = this.x(this.begin + at);
      g.globalAlpha = 0.4;
      g.fillRect(x, 22, 1, 5);
      g.globalAlpha = 1;
      g.fillText(at === 0 ? "0" : duration(at / 1000), x + 3, 31);
    }
  }

  // In the order of their beginnings.
  paintBars(g, bars, y, height, named) {
    let low = 0;
    for (let high = bars.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (bars[middle].end < this.from) low = middle + 1;
      else high = middle;
    }
    let until = -1; // x up to which something was drawn
    for (let i = Math.max(0, low - 8); i < bars.length && bars[i].begin <= this.to; i++) {
      const bar = bars[i];
      const right = this.x(bar.end);
      if (right - until < 0.7 && !bar.beside) continue;
      if (bar.beside) this.paintBar(g, bar, y + height - BESIDE, BESIDE, false);
      else this.paintBar(g, bar, y, height, named);
      if (!bar.beside) until = right;
    }
  }

  paintBar(g, bar, y, height, named) {
    const from = Math.max(this.x(bar.begin), this.left - 2);
    const to = Math.min(this.x(bar.end), this.width + 2);
    const width = Math.max(0.8, to - from);
    if (to < this.left || from > this.width) return;
    if (bar.colour) {
      g.fillStyle = this.rgb(bar.colour);
      g.fillRect(from, y, width, height);
    } else {
      this.hatch(g, from, y, width, height);
    }
    if (!named || width < 40) return;
    const room = width - 10;
    const text = this.textWidth(g, bar.name) <= room ? bar.name : "";
    if (!text) return;
    g.fillStyle = bar.colour ? "#fff" : this.rgb("--quiet");
    g.fillText(text, from + 5, y + height / 2);
  }

  // A tile with one stripe, in the device's pixels.
  makeStripes(g) {
    const scale = devicePixelRatio || 1;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(STRIPES * scale);
    const size = tile.width;
    const on = tile.getContext("2d");
    on.strokeStyle = this.rgb("--waiting");
    on.lineWidth = scale;
    on.beginPath();
    for (const at of [-size, 0, size]) {
      on.moveTo(at - scale, size + scale);
      on.lineTo(at + size + scale, -scale);
    }
    on.stroke();
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    return pattern;
  }

  // Waiting: stripes that go on from bar to bar.
  hatch(g, x, y, width, height) {
    g.fillStyle = this.rgb("--waiting");
    if (width < HATCHED) {
      g.globalAlpha = 0.6;
      g.fillRect(x, y, width, height);
      g.globalAlpha = 1;
      return;
    }
    g.fillRect(x, y, width, 1);
    g.fillRect(x, y + height - 1, width, 1);
    g.fillRect(x, y, 1, height);
    g.fillRect(x + width - 1, y, 1, height);
    this.stripes ??= this.makeStripes(g);
    g.fillStyle = this.stripes;
    g.fillRect(x, y, width, height);
  }

  // As much of a name as there is room for.
  cut(g, text) {
    let shown = text;
    while (shown.length > 3 && g.measureText(shown).width > this.left - 12) shown = `${shown.slice(0, -2)}…`;
    return shown;
  }

  paintNames(g) {
    g.fillStyle = this.rgb("--panel");
    g.fillRect(0, 0, this.left, this.height);
    g.fillStyle = this.rgb("--line");
    g.fillRect(this.left - 1, 0, 1, this.height);
    this.names ??= this.lanes.map((lane) => this.cut(g, lane.name));
    const write = (text, y, quiet) => {
      g.fillStyle = this.rgb(quiet ? "--quiet" : "--text");
      g.fillText(text, 8, y);
    };
    write("rounds", 12, true);
    write("waits for", TOP + PATH / 2, true);
    this.names.forEach((name, i) => write(name, TOP + PATH + GAP + i * (LANE + GAP) + LANE / 2, false));
  }
}
