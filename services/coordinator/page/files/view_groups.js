// Do groups teach anything?  Where all samples of a group earn the same, advantages are zero.
import { tile } from "./dom.js";
import { count, percent } from "./format.js";
import { last, roundCharts } from "./round_charts.js";
import { spreadOf, withSpread } from "./spread.js";

export function mount(root, context) {
  const spread = spreadOf(context.data);
  const groups = (rounds, value) => spread.column(rounds, (s) => value(s.groups));
  const all = (g) => g.trained + g.filtered + g.failed;
  const share = (g) => (all(g) ? g.without_signal / all(g) : null);
  return roundCharts({
    title: "Group health",
    about: "Do groups teach anything? Where all samples of a group earn the same, its advantages are zero: the prompt is too easy or too hard by now.",
    more: withSpread,
    tiles: (rounds) => {
      const newest = spread.of.get(rounds.at(-1)?.round)?.groups;
      return [
        tile("Without signal", newest ? percent(share(newest)) : "–", "of the newest round's groups"),
        tile("Trained on", count(last(rounds, "groups")), "groups of the newest round"),
        tile("Filtered", count(rounds.reduce((sum, round) => sum + round.filtered, 0)), "groups of the rounds shown"),
        tile("Rounds that changed nothing", count(rounds.filter((round) => round.skipped).length), "of those shown"),
      ];
    },
    charts: [
      { title: "Groups without signal", about: "Share whose samples all earned the same.", show: (v) => percent(v, 0), min: 0, max: 1, series: [{ key: "share", label: "without signal", colour: "--c2" }], columns: (rounds) => ({ share: groups(rounds, share) }) },
      { title: "What became of groups", about: "Trained on; left out by the filter; drawn in place of those; failed or given up.", show: count, min: 0,
        series: [{ key: "trained", label: "trained on", colour: "--c1" }, { key: "filtered", label: "filtered", colour: "--c2", dash: "dashed" }, { key: "refills", label: "refilled", colour: "--c3", dash: "dotted" }, { key: "failed", label: "failed", colour: "--c4" }],
        columns: (rounds) => ({ trained: rounds.map((r) => r.groups), filtered: rounds.map((r) => r.filtered), refills: groups(rounds, (g) => g.refills), failed: groups(rounds, (g) => g.failed) }) },
      { title: "Left out as too old, by a full queue or as refused", about: "Only in mode inflight.", show: count, min: 0,
        series: [{ key: "old", label: "too old", colour: "--c2" }, { key: "queue", label: "full queue", colour: "--c5", dash: "dashed" }, { key: "refused", label: "refused", colour: "--c4", dash: "dotted" }],
        columns: (rounds) => ({ old: rounds.map((r) => r.lag?.groups_dropped ?? null), queue: rounds.map((r) => r.lag?.groups_overflowed ?? null), refused: rounds.map((r) => r.lag?.groups_refused ?? null) }) },
      { title: "Prompts that rest", about: "Passed over by the curriculum.", show: count, min: 0, series: [{ key: "rest", label: "passed over", colour: "--c5" }], columns: (rounds) => ({ rest: rounds.map((r) => r.passed_over) }) },
    ],
  })(root, context);
}
