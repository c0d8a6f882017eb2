// Numbers out of points: what one join or shard, or all of them, did in each micro-batch.

export const PARTS = { cache: "cache", stream: "stream buffer", reading: "read buffer", results: "results", index: "index", other: "other" };
const SUMMED = ["rows_in", "rows_out", "rows_done", "cache_hits", "unmatched", "null_keys", "pages_read", "pages_useful",
  "bytes_read", "busy_seconds", "io_seconds", "store_requests", "local_pages", "bytes_held", "memory"];
const WINDOW = 60;

function added(many) {
  const sum = Object.fromEntries(SUMMED.map((name) => [name, 0]));
  sum.split = Object.fromEntries(Object.keys(PARTS).map((name) => [name, 0]));
  sum.versions = [];
  for (const one of many) {
    for (const name of SUMMED) sum[name] += one[name] || 0;
    for (const name of Object.keys(PARTS)) sum.split[name] += (one.split || {})[name] || 0;
    if (one.version) sum.versions.push(one.version);
  }
  return sum;
}

// The counters of a point for a join and a shard; "" is all. Null where there are none.
export function chosen(point, join, shard) {
  const joins = Object.entries(point.joins || {}).filter(([name]) => !join || name === join).map(([, one]) => one);
  const many = shard === "" ? joins : joins.map((one) => one.shards[shard]).filter(Boolean);
  return many.length ? added(many) : null;
}

export const ratio = (part, whole) => (whole > 0 ? part / whole : null);
// Rows whose key is not in R. A NULL is no key.
export const unmatched = (counters) => (counters ? counters.unmatched - counters.null_keys : null);
// Of the rows with a key, those that memory answered without a page read.
export const hits = (counters) => counters && ratio(counters.cache_hits, counters.rows_done - counters.null_keys);
// Share of page reads that the machine's own disk answered; null if R is not in an object store.
export const tier = (counters) => counters && (counters.store_requests || counters.local_pages) ? ratio(counters.local_pages, counters.pages_read) : null;
export const backlog = (point) => (point.backlog ? point.backlog.rows ?? point.backlog.files ?? null : null);

export function quantile(values, share) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const at = (sorted.length - 1) * share, low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

// A quantile of the duration of recent batches, as it was at each point.
export function rolling(points, share) {
  return points.map((_, at) => quantile(points.slice(Math.max(0, at - WINDOW + 1), at + 1).map((p) => p.seconds), share));
}

export function rates(point, join, shard) {
  if (!join && shard === "") return [point.arrival || null, point.service];  // no input rate for the first batch: Spark has no interval for it
  const counters = chosen(point, join, shard);
  if (!counters) return [null, null];
  return [ratio(counters.rows_in, point.seconds), ratio(counters.rows_done, counters.busy_seconds)];
}

const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (value) => (value == null ? "–" : Math.abs(value) < 10000 ? whole.format(value) : short.format(value));
export function percent(value) {
  if (value == null) return "–";
  if (value > 0.999 && value < 1) return "> 99.9 %";
  return `${(value * 100).toFixed((value > 0.995 && value < 1) || (value < 0.1 && value > 0) ? 1 : 0)} %`;
}
export const time = (value) => (value == null ? "–" : value === 0 ? "0 s" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`);
export function bytes(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  const at = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : [1e3, "KB"];
  const scaled = value / at[0];
  return `${scaled.toFixed(scaled < 10 ? 1 : 0)} ${at[1]}`;
}
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
