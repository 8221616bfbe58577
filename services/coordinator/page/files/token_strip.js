// A completion token by token, coloured by what is known of each: its log-probability, the version that drew it, or whether it is
// trained on.  A token is a button: pressed, it tells its figures.
import { colour, el, fade, fill } from "./dom.js";
import { number, percent } from "./format.js";

const TOKENS_AT_ONCE = 4000;
const VERSION_COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
export const COLOURINGS = [["logprob", "log-probability"], ["version", "version"], ["mask", "trained on"], ["none", "no colour"]];

const spanAt = (spans, at) => spans.find((span) => at >= span.start && at < span.start + span.count);

// Line ends and blanks are shown as themselves; tokens without a text by their id.
function shown(text, id) {
  if (text === "") return `⟨${id}⟩`;
  return text;
}

function paint(by, sample, at) {
  if (by === "logprob") {
    const surprise = Math.min(1, -sample.logprobs[at] / 5); // of 5 nats or more: fully coloured
    return { "--token-fill": fade(colour("--c2"), 0.75 * surprise), "--token-line": surprise > 0.6 ? colour("--c2") : "transparent" };
  }
  if (by === "version") {
    const rgb = colour(VERSION_COLOURS[(spanAt(sample.version_spans, at)?.version ?? 0) % VERSION_COLOURS.length]);
    return { "--token-fill": fade(rgb, 0.2), "--token-line": rgb };
  }
  return {};
}

export function legendOf(by, samples) {
  if (by === "logprob") return el("div", { class: "scale" }, "certain", ...[0, 0.25, 0.5, 0.75].map((alpha) => el("span", { class: "swatch", style: { background: fade(colour("--c2"), alpha), border: "1px solid var(--line)" } })), "drawn against the odds: 5 nats or more; the unlikely are underlined");
  if (by === "mask") return el("div", { class: "scale" }, "Tokens that are not trained on are struck through.");
  if (by === "version") {
    const versions = [...new Set(samples.flatMap((sample) => sample.version_spans.map((span) => span.version)))].sort((a, b) => a - b);
    return el("div", { class: "scale" }, versions.map((version) => [el("span", { class: "swatch", style: { background: colour(VERSION_COLOURS[version % VERSION_COLOURS.length]) } }), `v${version}`]));
  }
  return el("div", { class: "scale" });
}

// told: called with a sentence about the token that was pressed.
export function tokenStrip(sample, by, told) {
  const strip = el("div", { class: "strip mono", role: "group", "aria-label": `Tokens of ${sample.id}` });
  const texts = sample.token_texts;
  let pressed = null;
  const press = (event) => {
    const button = event.target.closest("button[data-at]");
    if (!button) return;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = button;
    button.setAttribute("aria-pressed", "true");
    const at = Number(button.dataset.at);
    const span = spanAt(sample.version_spans, at);
    told(`Token ${at + 1} of ${sample.token_ids.length}: id ${sample.token_ids[at]}${texts ? `, ${JSON.stringify(texts[at])}` : ""}, log-probability ${number(sample.logprobs[at], 6)} (${percent(Math.exp(sample.logprobs[at]), 2)})${span ? `, version v${span.version}${span.fresh ? "" : " over keys of an older one"}` : ""}, ${spanAt(sample.segments, at)?.loss_mask === false ? "not trained on" : "trained on"}.`);
  };
  strip.addEventListener("click", press);
  let count = 0;
  const more = el("button", { class: "link", on: { click: () => add() } });
  function add() {
    const until = Math.min(sample.token_ids.length, count + TOKENS_AT_ONCE);
    const made = [];
    for (; count < until; count++) {
      const masked = by === "mask" && spanAt(sample.segments, count)?.loss_mask === false;
      made.push(el("button", { class: masked ? "token masked" : "token", type: "button", "data-at": count, "aria-pressed": "false", style: paint(by, sample, count) }, texts ? shown(texts[count], sample.token_ids[count]) : `${sample.token_ids[count]} `));
    }
    more.remove();
    strip.append(...made);
    if (count < sample.token_ids.length) strip.append(fill(more, `… ${sample.token_ids.length - count} more`));
  }
  add();
  return strip;
}
