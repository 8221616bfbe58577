// Numbers, times and digests as people read them.  null and NaN are a dash.

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function number(value, digits = 3) {
  if (missing(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size + 1))) });
}

export function count(value) {
  if (missing(value)) return "–";
  if (Math.abs(value) < 10000) return value.toLocaleString("en", { maximumFractionDigits: 1 });
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

// With a space that does not break: in a narrow card the sign stood alone on a line.
export function percent(value, digits = 1) {
  return missing(value) ? "–" : `${(100 * value).toFixed(digits)}\u00a0%`;
}

export function duration(ms) {
  if (missing(ms)) return "–";
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms === 0) return "0";
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000); // rounded before it is split: no "1 min 60 s"
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function when(ms) {
  return missing(ms) ? "–" : new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export function digest(text) {
  return text ? `${text.slice(0, 12)}…` : "–";
}
