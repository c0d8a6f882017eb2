// The page: loads the history, listens for new batches, and draws both.
import { Chart } from "./charts.js";
import { fillAnswers, fillControls, fillPitch, move, say } from "./demo.js";
import { PARTS, backlog, bytes, chosen, clock, count, hits, percent, quantile, rates, ratio, rolling, tier, time, unmatched } from "./numbers.js";

const at = (id) => document.getElementById(id);
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
let points = [], paused = false, spoken = 0, wanted = false;
const charts = {};

function makeCharts() {
  const make = (name, title, series, show, most) => { charts[name] = new Chart(at("charts"), { title, series, show, most }); };
  make("rates", "Rows per second", [{ label: "input", color: "--c2", dashed: true }, { label: "processed", color: "--c1" }], count);
  make("latency", "Batch duration", [
    { label: "batch", color: "--c6" }, { label: "p50", color: "--c1" }, { label: "p99", color: "--c2", dashed: true }], time);
  make("hits", "Rows answered from memory", [], percent, 1);
  make("pages", "Pages read", [{ label: "all", color: "--c2" }, { label: "with requested rows", color: "--c1", dashed: true }], count);
  make("memory", "Memory in use", [
    ...Object.values(PARTS).map((label, n) => ({ label, color: COLORS[n], stacked: true })), { label: "budget", color: "--text", dashed: true }], bytes);
  make("waiting", "Waiting and unmatched rows", waiting("rows"), count);
}

// Sources report their backlog in rows or in files.
const waiting = (unit) => [
  { label: unit === "rows" ? "backlog" : "backlog, files", color: "--c3" }, { label: "parked", color: "--c4", dashed: true },
  { label: "unmatched", color: "--c6" }, { label: "dead letters", color: "--c5" }];
const unit = (point) => (point.backlog?.rows == null && point.backlog?.files != null ? "files" : "rows");

function options(select, names) {
  const had = select.value;
  if ([...select.options].slice(1).map((one) => one.value).join("\n") === names.join("\n")) return;
  select.replaceChildren(select.options[0], ...names.map((name) => new Option(name, name)));
  select.value = names.includes(had) ? had : "";
}

const names = () => [...new Set(points.flatMap((point) => Object.keys(point.joins)))];

function drawCharts(shown, join, shard) {
  const counters = shown.map((point) => chosen(point, join, shard));
  const of = (pick) => counters.map((one) => (one ? pick(one) : null));
  const pace = shown.map((point) => rates(point, join, shard));
  charts.rates.draw(shown, [pace.map((one) => one[0]), pace.map((one) => one[1])]);
  charts.latency.draw(shown, [shown.map((point) => point.seconds), rolling(shown, 0.5), rolling(shown, 0.99)]);
  const picked = join ? [join] : names();
  const stored = picked.filter((name) => shown.some((point) => tier(chosen(point, name, shard)) != null));
  const lines = [...picked, ...stored.map((name) => `${name}, local disk cache`)];
  if (charts.hits.series.map((one) => one.label).join() !== lines.join()) {
    charts.hits.points = null;
    charts.hits.use(lines.map((label, n) => ({ label, color: COLORS[n % COLORS.length], dashed: n % 2 === 1 })));
  }
  charts.hits.draw(shown, [
    ...picked.map((name) => shown.map((point) => hits(chosen(point, name, shard)))),
    ...stored.map((name) => shown.map((point) => tier(chosen(point, name, shard)))),
  ]);
  charts.pages.draw(shown, [of((one) => one.pages_read), of((one) => one.pages_useful || null)]);
  let held = null;  // joins keep their memory while no rows arrive
  const memory = counters.map((one) => (held = one ?? held));
  charts.memory.draw(shown, [...Object.keys(PARTS).map((part) => memory.map((one) => one?.split[part] ?? null)), memory.map((one) => one?.memory ?? null)]);
  const left = waiting(unit(shown.at(-1)));
  if (charts.waiting.series[0].label !== left[0].label) {
    charts.waiting.points = null;
    charts.waiting.use(left);
  }
  charts.waiting.draw(shown, [shown.map(backlog), shown.map((point) => point.parked), of(unmatched), shown.map((point) => point.dead)]);
}

function tile(name, value, unit, note) {
  const box = document.createElement("div"), term = document.createElement("dt"), told = document.createElement("dd");
  const strong = document.createElement("b"), more = document.createElement("span");
  term.textContent = name;
  strong.textContent = value;
  if (unit) { const small = document.createElement("small"); small.textContent = ` ${unit}`; strong.append(small); }
  more.textContent = note;
  told.append(strong, more);
  box.append(term, told);
  return box;
}

// Values that a batch without rows does not have come from the last batch that has them.
function drawTiles(shown, join, shard) {
  const last = shown.at(-1), joined = shown.findLast((point) => chosen(point, join, shard)) ?? last;
  const counters = chosen(joined, join, shard), since = joined === last ? "" : `, batch ${joined.batch}`;
  const [input, processed] = rates(last, join, shard);
  const seconds = shown.slice(-60).map((point) => point.seconds);
  const versions = [...new Set(counters?.versions ?? [])].sort((a, b) => a - b);
  const whole = !join && shard === "", load = whole && input != null ? ratio(input, processed) : null;
  const pace = load == null ? "" : load > 1 ? "slower than the input" : `${percent(load)} of capacity used`;
  at("tiles").replaceChildren(
    tile("Input", count(input ?? (last.rows ? null : 0)), "rows/s", `${count(last.rows)} rows in the last batch`),
    tile("Processing rate", count(processed), "rows/s", whole ? (last.rows ? pace : "idle") : "join only, one core"),
    tile("Batch duration", time(quantile(seconds, 0.5)), "median", `p99 ${time(quantile(seconds, 0.99))}`),
    tile("Answered from memory", percent(hits(counters)), "", counters ? `${count(counters.pages_read)} pages read${since}` : "no join has run yet"),
    tile("Backlog", count(backlog(last)), backlog(last) == null ? "" : backlog(last) === 1 ? unit(last).slice(0, -1) : unit(last), `${count(last.parked)} parked, ${count(last.dead)} dead letters`),
    tile("Memory", counters ? bytes(counters.bytes_held) : "–", "", counters ? `of ${bytes(counters.memory)}; R version ${versions.join(", ") || "–"}${since}` : "no join has run yet"),
  );
}

function row(cells, head) {
  const line = document.createElement("tr");
  cells.forEach((cell, n) => {
    const box = document.createElement(head || n === 0 ? "th" : "td");
    if (head) box.scope = "col"; else if (n === 0) box.scope = "row";
    if (cell instanceof Node) box.append(cell); else box.textContent = cell;
    line.append(box);
  });
  return line;
}

function table(id, titles, lines) {
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(row(titles, true));
  body.append(...lines.map((cells) => row(cells, false)));
  at(id).replaceChildren(head, body);
}

function filled(held, whole) {
  if (!whole) return "one copy for all";  // a relation that is held whole
  const box = document.createElement("span"), meter = document.createElement("meter");
  meter.max = whole || 1;
  meter.value = held;
  meter.setAttribute("aria-label", "share of the memory budget");
  box.append(meter, `${bytes(held)} of ${bytes(whole)}`);
  return box;
}

function drawTables(shown, join, shard) {
  const last = shown.findLast((point) => Object.keys(point.joins).length) ?? shown.at(-1);
  const lines = Object.entries(last.joins).filter(([name]) => !join || name === join).flatMap(([name, one]) =>
    Object.entries(one.shards).filter(([number]) => shard === "" || number === shard).map(([number, s]) => [
      `${name} ${number}`, count(s.rows_in), percent(hits(s)), count(s.pages_read), s.pages_useful ? count(s.pages_useful) : "–",
      count(unmatched(s)), count(s.null_keys), time(s.busy_seconds), filled(s.bytes_held, s.memory), s.version]));
  table("shards", ["join, shard", "rows", "from memory", "pages read", "with requested rows", "unmatched", "NULL keys", "busy", "memory", "R version"], lines);
  table("batches", ["batch", "start", "rows", "rows/s", "duration", "from memory", "pages read", "unmatched", "NULL keys", "parked", "dead letters", "backlog"],
    shown.slice(-12).reverse().map((point) => {
      const one = chosen(point, join, shard);
      return [point.batch, clock(point.time), count(point.rows), count(point.service), time(point.seconds), percent(hits(one)),
        count(one?.pages_read), count(unmatched(one)), count(one?.null_keys), count(point.parked), count(point.dead), count(backlog(point))];
    }));
}

// Keys that R has not had since its last change: an update may have added the keys that were missing before.
function drawMissing(shown, join) {
  const lines = names().filter((name) => !join || name === join).flatMap((name) => {
    const ran = shown.map((point) => point.joins[name]).filter(Boolean), version = ran.at(-1)?.version, times = new Map();
    for (const one of ran.slice(ran.findLastIndex((one) => one.version !== version) + 1)) {
      for (const [key, many] of Object.entries(one.missing ?? {})) times.set(key, (times.get(key) ?? 0) + many);
    }
    return [...times].map(([key, many]) => [key, name, many, version ?? "–"]);
  }).sort((a, b) => b[2] - a[2]).slice(0, 8);
  at("absent").hidden = !lines.length;
  table("missing", ["key", "join", "unmatched rows", "R version"], lines.map(([key, name, many, version]) => [key, name, `at least ${count(many)}`, version]));
}

function draw() {
  wanted = false;
  const join = at("join").value;
  options(at("join"), names());
  options(at("shard"), [...new Set(points.flatMap((point) => Object.values(point.joins).flatMap((one) => Object.keys(one.shards))))].sort((a, b) => a - b));
  const shard = at("shard").value, shown = points.slice(-Number(at("span").value));
  if (!shown.length) { at("since").textContent = "· waiting for the first batch"; return; }
  at("since").textContent = `· batch ${points.at(-1).batch} · ${count(points.reduce((sum, point) => sum + point.rows, 0))} rows since ${clock(points[0].time)}`;
  drawTiles(shown, join, shard);
  drawCharts(shown, join, shard);
  drawTables(shown, join, shard);
  drawMissing(shown, join);
  if (Date.now() - spoken > 15000) {  // to a screen reader, now and then
    spoken = Date.now();
    at("spoken").textContent = `Batch ${points.at(-1).batch}: ${count(points.at(-1).rows)} rows in ${time(points.at(-1).seconds)}.`;
  }
}

function redraw() {
  if (wanted || paused) return;
  wanted = true;
  requestAnimationFrame(draw);
}

function state(name, text) {
  at("state").dataset.state = name;
  at("state").textContent = text;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "Light" : "Dark";
  Object.values(charts).forEach((chart) => chart.build());
}

const EXTRAS = { ratio: fillPitch, answers: fillAnswers, state: (text) => state(text, text) };

async function start() {
  makeCharts();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => localStorage.getItem("theme") ?? theme(dark.matches ? "dark" : "light"));
  at("theme").onclick = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", next);
    theme(next);
  };
  at("pause").onclick = () => {
    paused = !paused;
    at("pause").setAttribute("aria-pressed", paused);
    redraw();
  };
  for (const id of ["join", "shard", "span"]) at(id).onchange = () => requestAnimationFrame(draw);
  const events = new EventSource("events");
  let over = false, heard = null;  // heard: events that arrive while the page loads; they are newer than the loaded data
  const add = (point) => {
    if (!points.some((one) => one.run === point.run && one.batch === point.batch && one.time === point.time)) points.push(point);
  };
  const tell = (kind, value) => {
    heard?.kinds.add(kind);
    EXTRAS[kind]?.(value);
    if (kind === "state" && value === "ended") { over = true; events.close(); }
  };
  const load = async () => {
    const newer = heard = { points: [], kinds: new Set(), moves: [] };
    const data = await fetch("data").then((answer) => answer.json()).catch(() => null);
    if (heard !== newer) return;  // it is being loaded again
    heard = null;
    if (data === null) return;  // the query has ended; an event says so
    document.title = `${data.title} · semistream`;
    at("title").textContent = data.title;
    points = data.points;
    newer.points.forEach(add);
    fillControls(data.controls);
    newer.moves.forEach(move);
    for (const [kind, value] of Object.entries(data.extras)) if (!newer.kinds.has(kind)) tell(kind, value);
    redraw();
  };
  events.onopen = async () => { state("running", "running"); await load(); };  // also after a reconnect, for missed batches
  events.onerror = () => { if (!over) state("lost", "disconnected, retrying"); };
  events.addEventListener("point", (event) => {
    const point = JSON.parse(event.data);
    heard?.points.push(point);
    add(point);
    redraw();
  });
  events.addEventListener("said", (event) => { const told = JSON.parse(event.data); heard?.moves.push(told); say(told.text); move(told); });
  for (const kind of Object.keys(EXTRAS)) events.addEventListener(kind, (event) => tell(kind, JSON.parse(event.data)));
}

start();
