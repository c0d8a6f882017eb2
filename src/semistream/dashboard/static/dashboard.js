// The page: fetches what was, listens to what comes, and draws both.
import { Chart } from "./charts.js";
import { fillAnswers, fillControls, fillPitch, move, say } from "./demo.js";
import { PARTS, behind, bytes, chosen, clock, count, hits, percent, quantile, rates, ratio, rolling, strangers, tier, time } from "./numbers.js";

const at = (id) => document.getElementById(id);
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
let points = [], paused = false, spoken = 0, wanted = false;
const charts = {};

function makeCharts() {
  const make = (name, title, series, show, most) => { charts[name] = new Chart(at("charts"), { title, series, show, most }); };
  make("rates", "Rows a second", [{ label: "come", color: "--c2", dashed: true }, { label: "served", color: "--c1" }], count);
  make("latency", "A micro-batch takes", [
    { label: "each", color: "--c6" }, { label: "p50", color: "--c1" }, { label: "p99", color: "--c2", dashed: true }], time);
  make("hits", "Answered from memory", [], percent, 1);
  make("pages", "Pages of R", [{ label: "read", color: "--c2" }, { label: "useful", color: "--c1", dashed: true }], count);
  make("memory", "Memory held", [
    ...PARTS.map((label, n) => ({ label, color: COLORS[n], stacked: true })), { label: "budget", color: "--text", dashed: true }], bytes);
  make("waiting", "Rows that wait, or found nobody", waiting("rows"), count);
}

// What the source has left it tells in rows, or in files.
const waiting = (unit) => [
  { label: unit === "rows" ? "in the source" : "files in the source", color: "--c3" }, { label: "parked", color: "--c4", dashed: true },
  { label: "no partner", color: "--c6" }, { label: "dead", color: "--c5" }];
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
  const lines = [...picked, ...stored.map((name) => `${name}, local tier`)];
  if (charts.hits.series.map((one) => one.label).join() !== lines.join()) {
    charts.hits.points = null;
    charts.hits.use(lines.map((label, n) => ({ label, color: COLORS[n % COLORS.length], dashed: n % 2 === 1 })));
  }
  charts.hits.draw(shown, [
    ...picked.map((name) => shown.map((point) => hits(chosen(point, name, shard)))),
    ...stored.map((name) => shown.map((point) => tier(chosen(point, name, shard)))),
  ]);
  charts.pages.draw(shown, [of((one) => one.pages_read), of((one) => one.pages_useful || null)]);
  charts.memory.draw(shown, [...PARTS.map((part) => of((one) => one.split[part])), of((one) => one.memory)]);
  const left = waiting(unit(shown.at(-1)));
  if (charts.waiting.series[0].label !== left[0].label) {
    charts.waiting.points = null;
    charts.waiting.use(left);
  }
  charts.waiting.draw(shown, [shown.map(behind), shown.map((point) => point.parked), of(strangers), shown.map((point) => point.dead)]);
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

function drawTiles(shown, join, shard) {
  const last = shown.at(-1), counters = chosen(last, join, shard);
  const [come, served] = rates(last, join, shard);
  const seconds = shown.slice(-60).map((point) => point.seconds);
  const versions = [...new Set(counters?.versions ?? [])].sort((a, b) => a - b);
  const whole = !join && shard === "", load = whole && come != null ? ratio(come, served) : null;
  const pace = load == null ? "" : load > 1 ? "slower than they come" : `${percent(load)} busy`;
  at("tiles").replaceChildren(
    tile("Rows come", count(come), come == null ? "" : "/s", `${count(last.rows)} in the last micro-batch`),
    tile("Rows served", count(served), "/s", whole ? pace : "in the join, on one core"),
    tile("A micro-batch", time(quantile(seconds, 0.5)), "", `p99 ${time(quantile(seconds, 0.99))}`),
    tile("From memory", percent(hits(counters)), "", counters ? `${count(counters.pages_read)} pages read` : "no join ran"),
    tile("Waiting", count(behind(last)), behind(last) == null ? "" : unit(last), `${count(last.parked)} parked, ${count(last.dead)} dead`),
    tile("Memory", counters ? bytes(counters.bytes_held) : "–", "", counters ? `of ${bytes(counters.memory)}; R is at version ${versions.join(", ") || "–"}` : ""),
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
  const box = document.createElement("span"), meter = document.createElement("meter");
  meter.max = whole || 1;
  meter.value = held;
  meter.setAttribute("aria-label", "share of the budget");
  box.append(meter, `${bytes(held)} of ${bytes(whole)}`);
  return box;
}

function drawTables(shown, join, shard) {
  const last = shown.findLast((point) => Object.keys(point.joins).length) ?? shown.at(-1);
  const lines = Object.entries(last.joins).filter(([name]) => !join || name === join).flatMap(([name, one]) =>
    Object.entries(one.shards).filter(([number]) => shard === "" || number === shard).map(([number, s]) => [
      `${name} ${number}`, count(s.rows_in), percent(hits(s)), count(s.pages_read), s.pages_useful ? count(s.pages_useful) : "–",
      count(strangers(s)), count(s.null_keys), time(s.busy_seconds), filled(s.bytes_held, s.memory), s.version]));
  table("shards", ["join, shard", "rows", "from memory", "pages read", "useful", "no partner", "NULL keys", "busy", "memory", "version"], lines);
  table("batches", ["batch", "at", "rows", "rows/s", "took", "from memory", "pages read", "no partner", "NULL keys", "parked", "dead", "left in the source"],
    shown.slice(-12).reverse().map((point) => {
      const one = chosen(point, join, shard);
      return [point.batch, clock(point.time), count(point.rows), count(point.service), time(point.seconds), percent(hits(one)),
        count(one?.pages_read), count(strangers(one)), count(one?.null_keys), count(point.parked), count(point.dead), count(behind(point))];
    }));
}

function drawMissing(shown, join) {
  const times = new Map();
  for (const point of shown) for (const [name, one] of Object.entries(point.joins)) {
    if (join && name !== join) continue;
    for (const [key, many] of Object.entries(one.missing ?? {})) {
      const id = JSON.stringify([key, name]);
      times.set(id, (times.get(id) ?? 0) + many);
    }
  }
  const lines = [...times].sort((a, b) => b[1] - a[1]).slice(0, 8).map(([id, many]) => [...JSON.parse(id), `${count(many)} or more`]);
  at("nobody").hidden = !lines.length;
  table("missing", ["key", "join", "rows without a partner"], lines);
}

function draw() {
  wanted = false;
  const join = at("join").value;
  options(at("join"), names());
  options(at("shard"), [...new Set(points.flatMap((point) => Object.values(point.joins).flatMap((one) => Object.keys(one.shards))))].sort((a, b) => a - b));
  const shard = at("shard").value, shown = points.slice(-Number(at("span").value));
  if (!shown.length) { at("since").textContent = "· no micro-batch yet"; return; }
  at("since").textContent = `· micro-batch ${points.at(-1).batch}, ${count(points.reduce((sum, point) => sum + point.rows, 0))} rows since ${clock(points[0].time)}`;
  drawTiles(shown, join, shard);
  drawCharts(shown, join, shard);
  drawTables(shown, join, shard);
  drawMissing(shown, join);
  if (Date.now() - spoken > 15000) {  // to a screen reader, now and then
    spoken = Date.now();
    at("spoken").textContent = `Micro-batch ${points.at(-1).batch}: ${count(points.at(-1).rows)} rows in ${time(points.at(-1).seconds)}.`;
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
  let over = false, heard = null;  // heard: what is told while the page loads, and is newer than what it loads
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
    if (data === null) return;  // it ended meanwhile, of which events tell
    document.title = `${data.title} · semistream`;
    at("title").textContent = data.title;
    points = data.points;
    newer.points.forEach(add);
    fillControls(data.controls);
    newer.moves.forEach(move);
    for (const [kind, value] of Object.entries(data.extras)) if (!newer.kinds.has(kind)) tell(kind, value);
    redraw();
  };
  events.onopen = async () => { state("running", "running"); await load(); };  // also after a pause: what was missed
  events.onerror = () => { if (!over) state("lost", "not connected; trying again"); };
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
