// How long completions are, how many are cut off, and in how many turns they were written.
import { tile } from "./dom.js";
import { count, number, percent } from "./format.js";
import { last, roundCharts } from "./round_charts.js";
import { spreadOf, withSpread } from "./spread.js";

export function mount(root, context) {
  const { data } = context;
  const spread = spreadOf(data);
  const value = (rounds, key) => spread.column(rounds, (s) => s.tokens?.[key]);
  const turns = (rounds, key) => spread.column(rounds, (s) => s.turns?.[key]);
  const cut = (s) => (s.samples ? s.truncated / s.samples : null);
  return roundCharts({
    title: "Lengths",
    about: "How long completions are, in tokens. One that reaches its limit is cut off, and usually earns nothing.",
    more: withSpread,
    tiles: (rounds) => {
      const newest = spread.of.get(rounds.at(-1)?.round);
      return [
        tile("Mean", number(last(rounds, "completion_tokens_mean")), "tokens, newest round"),
        tile("Longest", newest?.tokens ? count(newest.tokens.max) : "–", `limit ${count(data.status.config.sampling?.max_new_tokens)}`),
        tile("Cut off", newest ? percent(cut(newest)) : "–", "of the newest round's samples"),
        tile("Turns", newest?.turns ? number(newest.turns.mean) : "–", newest?.turns ? `at most ${count(newest.turns.max)}, newest round` : ""),
        tile("Tokens a round", count(last(rounds, "sampled_tokens")), `${count(last(rounds, "tokens"))} trained on`),
      ];
    },
    charts: [
      { title: "Length", about: "Tokens of a completion.", show: number, min: 0, height: 300,
        series: [{ key: "mean", label: "mean", colour: "--c1" }, { key: "max", label: "longest", colour: "--c2", dash: "dashed" }, { key: "min", label: "shortest", colour: "--c6", dash: "dotted" }, { key: "p10", colour: "--c1" }, { key: "p90", label: "middle four fifths", colour: "--c1", to: "p10" }],
        columns: (rounds) => ({ mean: rounds.map((round) => round.completion_tokens_mean), max: value(rounds, "max"), min: value(rounds, "min"), p10: value(rounds, "p10"), p90: value(rounds, "p90") }) },
      { title: "Cut off", about: "Share of the samples that ended by their length.", show: (v) => percent(v, 1), min: 0, suggestedMax: 0.01, height: 300, series: [{ key: "cut", label: "cut off", colour: "--c2" }], columns: (rounds) => ({ cut: spread.column(rounds, cut) }) },
      { title: "Turns", about: "Parts of a completion that the model wrote without interruption. Mean and most over a round's samples.", show: number, min: 0,
        series: [{ key: "mean", label: "mean", colour: "--c1" }, { key: "max", label: "most", colour: "--c2", dash: "dashed" }],
        columns: (rounds) => ({ mean: turns(rounds, "mean"), max: turns(rounds, "max") }) },
      { title: "Tokens of a round", about: "Sampled, and trained on.", show: count, min: 0, series: [{ key: "sampled", label: "sampled", colour: "--c3" }, { key: "trained", label: "trained on", colour: "--c2", dash: "dashed" }], columns: (rounds) => ({ sampled: rounds.map((r) => r.sampled_tokens), trained: rounds.map((r) => r.tokens) }) },
    ],
  })(root, context);
}
