// A completion token by token, coloured by what is known of each: its log-probability, the entropy that it was drawn from, the version
// that drew it, or whether it is trained on.  A token is a button: pressed, it tells its figures.  A bar stands before a segment.
import { colour, el, fade, fill } from "./dom.js";
import { number, percent } from "./format.js";

const TOKENS_AT_ONCE = 4000;
const FULL = 0.45; // how strong a fill becomes: the text on it stays readable
const swatches = (name) => [0, 1, 2, 3].map((third) => el("span", { class: "swatch", style: { background: fade(colour(name), (FULL * third) / 3), border: "1px solid var(--line)" } }));
const VERSION_COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
const OPEN_NATS = 3; // entropy of which a token is fully coloured: as of 20 tokens, all equally likely
export const COLOURINGS = [["logprob", "log-probability"], ["entropy", "entropy"], ["version", "version"], ["mask", "trained on"], ["none", "no colour"]];

const spanAt = (spans, at) => spans.find((span) => at >= span.start && at < span.start + span.count);

// Line ends and blanks are shown as themselves; tokens without a text by their id.
function shown(text, id) {
  if (text === "") return `⟨${id}⟩`;
  return text;
}

function paint(by, sample, at) {
  if (by === "logprob") {
    const surprise = Math.min(1, -sample.logprobs[at] / 5); // of 5 nats or more: fully coloured
    return { "--token-fill": fade(colour("--c2"), FULL * surprise), "--token-line": surprise > 0.6 ? colour("--c2") : "transparent" };
  }
  if (by === "entropy") {
    const nats = sample.entropies?.[at] ?? 0;
    const open = Math.min(1, nats / OPEN_NATS);
    return { "--token-fill": fade(colour("--c3"), FULL * open), "--token-line": open > 0.6 ? colour("--c3") : "transparent" };
  }
  if (by === "version") {
    const rgb = colour(VERSION_COLOURS[(spanAt(sample.version_spans, at)?.version ?? 0) % VERSION_COLOURS.length]);
    return { "--token-fill": fade(rgb, 0.2), "--token-line": rgb };
  }
  return {};
}

export function legendOf(by, samples) {
  if (by === "logprob") return el("div", { class: "scale" }, "certain", swatches("--c2"), "drawn against the odds: 5 nats or more; the unlikely are underlined");
  if (by === "entropy") return el("div", { class: "scale" }, "one choice", swatches("--c3"), "wide open: 3 nats or more; the most open are underlined. Entropies are the trainer's, of the tokens that it trained on.");
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
  const begins = new Set(sample.segments.slice(1).map((segment) => segment.start));
  const kind = (masked, at) => ["token", masked ? "masked" : "", begins.has(at) ? "begins" : ""].filter(Boolean).join(" ");
  let pressed = null;
  const press = (event) => {
    const button = event.target.closest("button[data-at]");
    if (!button) return;
    pressed?.setAttribute("aria-pressed", "false");
    pressed = button;
    button.setAttribute("aria-pressed", "true");
    const at = Number(button.dataset.at);
    const span = spanAt(sample.version_spans, at);
    told(`Token ${at + 1} of ${sample.token_ids.length}: id ${sample.token_ids[at]}${texts ? `, ${JSON.stringify(texts[at])}` : ""}, log-probability ${number(sample.logprobs[at], 6)} (${percent(Math.exp(sample.logprobs[at]), 2)})${typeof sample.entropies?.[at] === "number" ? `, entropy ${number(sample.entropies[at])} nats` : ""}${span ? `, version v${span.version}${span.fresh ? "" : " over keys of an older one"}` : ""}, ${spanAt(sample.segments, at)?.loss_mask === false ? "not trained on" : "trained on"}.`);
  };
  strip.addEventListener("click", press);
  let count = 0;
  const more = el("button", { class: "link", on: { click: () => add() } });
  function add() {
    const until = Math.min(sample.token_ids.length, count + TOKENS_AT_ONCE);
    const made = [];
    for (; count < until; count++) {
      const masked = by === "mask" && spanAt(sample.segments, count)?.loss_mask === false;
      made.push(el("button", { class: kind(masked, count), type: "button", "data-at": count, "aria-pressed": "false", style: paint(by, sample, count) }, texts ? shown(texts[count], sample.token_ids[count]) : `${sample.token_ids[count]} `));
    }
    more.remove();
    strip.append(...made);
    if (count < sample.token_ids.length) strip.append(fill(more, `… ${sample.token_ids.length - count} more`));
  }
  add();
  return strip;
}
