// Line charts over a run's rounds, drawn by Chart.js, each with a sentence, a legend, and its figures as a table for those who
// cannot see it.
import { colour, el, fade, fill, svg } from "./dom.js";
import { count, duration } from "./format.js";

const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };
const TABLE_ROWS = 200;
const figures = new Set();

// What rounds are drawn over; the choice is kept for all charts.
export const AXES = {
  round: { label: "round", text: "Rounds", of: (rounds) => rounds.map((round) => round.round), show: (value) => String(Math.round(value)) },
  tokens: { label: "sampled tokens", text: "Sampled tokens", of: (rounds) => sums(rounds, (round) => round.sampled_tokens), show: count },
  time: { label: "time", text: "Time of rounds", of: (rounds) => sums(rounds, (round) => round.round_ms ?? 0), show: duration },
};

function sums(rounds, value) {
  let sum = 0;
  return rounds.map((round) => (sum += value(round)));
}

// Digits that tell one tick from the next.
function digitsFor(ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1].value - ticks[0].value) : 0;
  const most = Math.max(...ticks.map((tick) => Math.abs(tick.value)));
  return step > 0 && most > 0 ? Math.max(3, Math.ceil(Math.log10(most / step)) + 1) : 3;
}

export function redrawAll() {
  for (const figure of figures) figure.restyle();
}

// series: {key, label, colour, dash, to}.  `to` names the series that a band reaches to; both are drawn without lines.
export class LineFigure {
  constructor({ title, about, series, show = String, min, max, suggestedMax, height }) {
    Object.assign(this, { title, series, show, min, max, suggestedMax });
    this.data = { x: [], axis: AXES.round, columns: {} };
    this.canvas = el("canvas", { role: "img" });
    this.table = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `${title}: figures` });
    this.details = el("details", { on: { toggle: () => this.fillTable() } }, el("summary", {}, "Figures"), this.table);
    this.box = el("div", { class: "canvas" }, this.canvas);
    if (height) this.box.style.height = `${height}px`;
    this.legend = el("ul", { class: "legend" });
    this.element = el("figure", { class: "panel" }, el("h2", {}, title), about ? el("p", { class: "quiet small" }, about) : null, this.legend, this.box, this.details);
    figures.add(this);
  }

  // A figure of which nothing is told is not shown.  x: one number per point; columns: series key -> values, null where there are none; or [x, y] pairs, for series that have an x of their own.
  update(x, axis, columns) {
    this.data = { x, axis, columns };
    const told = this.series.some((s) => columns[s.key]?.some((value) => value !== null && value !== undefined));
    this.element.classList.toggle("hidden", !told);
    this.told = told;
    if (!told) return;
    if (!this.chart) this.make();
    if (!this.chart) return;
    this.chart.data.datasets = this.datasets();
    this.chart.options.scales.x.title.text = axis.label;
    this.chart.update("none");
    this.describe();
    if (this.details.open) this.fillTable();
  }

  destroy() {
    figures.delete(this);
    this.chart?.destroy();
  }

  restyle() {
    if (!this.chart) return;
    this.chart.options = this.options();
    this.chart.data.datasets = this.datasets();
    this.chart.update("none");
    this.fillLegend();
  }

  points(values) {
    const { x } = this.data;
    return (values || []).map((value, i) => (Array.isArray(value) ? { x: value[0], y: value[1] ?? NaN } : { x: x[i], y: value ?? NaN }));
  }

  datasets() {
    return this.series.map((s, i) => {
      const rgb = colour(s.colour);
      const data = this.points(this.data.columns[s.key]);
      const band = s.to || this.series.some((other) => other.to === s.key);
      return {
        label: s.label,
        data,
        borderColor: rgb,
        borderWidth: band ? 0 : s.thin ? 1 : 2,
        borderDash: DASHES[s.dash || "solid"],
        pointRadius: band ? 0 : data.length === 1 ? 3 : 0,
        pointHoverRadius: band ? 0 : 4,
        pointBackgroundColor: rgb,
        backgroundColor: fade(rgb, 0.18),
        fill: s.to ? this.series.findIndex((other) => other.key === s.to) : false,
        stepped: s.stepped || false,
        order: band ? 100 : s.thin ? 50 : -i, // the lowest on top
      };
    });
  }

  options() {
    const text = colour("--quiet");
    const grid = colour("--grid");
    const ticks = { color: text, maxRotation: 0, autoSkipPadding: 18 };
    return {
      animation: false,
      parsing: false,
      normalized: true,
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { type: "linear", grid: { color: grid, borderColor: grid }, ticks: { ...ticks, precision: 0, callback: (value) => this.data.axis.show(value) }, title: { display: true, text: this.data.axis.label, color: text } },
        y: { min: this.min, max: this.max, suggestedMax: this.suggestedMax, grid: { color: grid, borderColor: grid }, ticks: { ...ticks, callback: (value, i, all) => this.show(value, digitsFor(all)) } },
      },
      plugins: {
        legend: { display: false },
        decimation: { enabled: true, algorithm: "min-max" },
        tooltip: {
          backgroundColor: colour("--raised"),
          titleColor: colour("--text"),
          bodyColor: colour("--text"),
          borderColor: colour("--line"),
          borderWidth: 1,
          callbacks: { title: (items) => (items.length ? `${this.data.axis.label} ${this.data.axis.show(items[0].parsed.x)}` : ""), label: (item) => `${item.dataset.label}: ${this.show(item.parsed.y)}` },
        },
      },
    };
  }

  make() {
    if (!window.Chart) {
      this.box.replaceChildren(el("p", { class: "quiet" }, "Charts need Chart.js on the coordinator's machine: install libjs-chart.js, or name it with --chart-js. The figures are below."));
      return;
    }
    this.chart = new window.Chart(this.canvas, { type: "line", data: { datasets: [] }, options: this.options() });
    this.fillLegend();
  }

  fillLegend() {
    const shown = this.series.filter((s) => s.label);
    fill(this.legend, shown.length < 2 ? [] : shown.map((s) => {
      const rgb = colour(s.colour);
      const mark = svg("svg", { width: 26, height: 10, "aria-hidden": "true" });
      if (s.to) mark.append(svg("rect", { width: 26, height: 10, fill: fade(rgb, 0.28) }));
      else mark.append(svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: rgb, "stroke-width": 2.5, "stroke-dasharray": DASHES[s.dash || "solid"].join(" ") }));
      return el("li", {}, mark, s.label);
    }));
  }

  // What a reader of the screen hears in the place of the chart.
  describe() {
    const parts = this.series.filter((s) => s.label).map((s) => {
      const ys = this.points(this.data.columns[s.key]).map((point) => point.y).filter((y) => !Number.isNaN(y));
      return ys.length ? `${s.label}: last ${this.show(ys[ys.length - 1])}, lowest ${this.show(Math.min(...ys))}, highest ${this.show(Math.max(...ys))}` : `${s.label}: none`;
    });
    this.canvas.setAttribute("aria-label", `${this.title}. ${parts.join("; ")}.`);
  }

  fillTable() {
    if (!this.details.open) return;
    const shown = this.series.filter((s) => s.label);
    const rows = new Map();
    shown.forEach((s, i) => this.points(this.data.columns[s.key]).forEach(({ x, y }) => {
      if (!rows.has(x)) rows.set(x, []);
      rows.get(x)[i] = y;
    }));
    const newest = [...rows.keys()].sort((a, b) => b - a).slice(0, TABLE_ROWS);
    fill(this.table, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, this.data.axis.label), shown.map((s) => el("th", { class: "number", scope: "col" }, s.label)))),
      el("tbody", {}, newest.map((x) => el("tr", {}, el("td", {}, this.data.axis.show(x)), shown.map((s, i) => el("td", { class: "number" }, this.show(rows.get(x)[i] ?? NaN))))))));
  }
}

// The mean of up to `width` values around each.
export function smooth(values, width) {
  const half = Math.floor(width / 2);
  return values.map((own, i) => {
    if (own === null || own === undefined) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((value) => value !== null && value !== undefined);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}
