// Charts: a figure with the current values as text, and a uPlot chart of their history.
/* global uPlot */
import { clock } from "./numbers.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A colour between the series and the panel. It is opaque, because parts of a stack cover each other.
function softened(name) {
  const [color, panel] = [css(name), css("--panel")].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${color.map((part, n) => Math.round(0.72 * part + 0.28 * panel[n])).join(" ")})`;
}

export class Chart {
  // series: [{label, color: "--c1", dashed, stacked}]; show formats values.
  constructor(parent, { title, series, show, most }) {
    this.title = title;
    this.show = show;
    this.most = most;
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    this.figure.innerHTML = "<figcaption><b></b><ul></ul></figcaption><div class='plot' aria-hidden='true'></div>";
    this.figure.querySelector("b").textContent = title;
    this.list = this.figure.querySelector("ul");
    this.place = this.figure.querySelector(".plot");
    parent.append(this.figure);
    this.use(series);
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(this.place);
  }

  size() {
    return { width: this.place.clientWidth || 300, height: this.place.clientHeight || 158 };
  }

  use(series) {
    this.series = series;
    this.build();
  }

  build() {
    this.plot?.destroy();
    this.list.replaceChildren(...this.series.map((one) => {
      const item = document.createElement("li"), swatch = document.createElement("span");
      swatch.className = `swatch${one.dashed ? " dashed" : ""}${one.stacked ? " filled" : ""}`;
      swatch.style[one.stacked ? "background" : "borderColor"] = `var(${one.color})`;
      item.append(swatch, `${one.label} `, document.createElement("b"));
      return item;
    }));
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    this.plot = new uPlot({
      ...this.size(),
      padding: [6, 28, 0, 0],
      cursor: { y: false, points: { size: 7 } },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, this.most ?? (high > 0 ? high * 1.08 : 1)] } },
      axes: [
        { ...axis, space: 76, size: 26, values: (_, at) => at.map((n) => (this.points?.[n] ? clock(this.points[n].time) : "")) , incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] },
        { ...axis, size: 52, space: 26, values: (_, at) => at.map((value) => this.show(value)) },
      ],
      series: [{}, ...this.series.map((one) => ({
        label: one.label, stroke: css(one.color), width: one.stacked ? 1 : 2, dash: one.dashed ? [6, 4] : undefined,
        fill: one.stacked ? softened(one.color) : undefined, points: { show: (plot) => !one.stacked && plot.data[0].length < 8, size: 6 }, spanGaps: true,
      }))],
      hooks: { drawClear: [(plot) => this.restarts(plot)], setCursor: [(plot) => this.tell(plot.cursor.idx)] },
    }, [[0], ...this.series.map(() => [null])], this.place);
    if (this.points) this.draw(this.points, this.rows);
  }

  // A line where the query was restarted.
  restarts(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = css("--soft");
    ctx.setLineDash([3, 5]);
    (this.points || []).forEach((point, at) => {
      if (at === 0 || this.points[at - 1].run === point.run) return;
      const x = plot.valToPos(at - 0.5, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    });
    ctx.restore();
  }

  // rows: values of each series at each point.
  draw(points, rows) {
    this.points = points;
    this.rows = rows;
    let drawn = rows;
    if (this.series.some((one) => one.stacked)) {
      // uPlot draws over what came before: the whole stack first, the lowest part last
      const sums = rows[0].map(() => 0), heights = [];
      for (let part = rows.length - 1; part >= 0; part -= 1) {
        heights[part] = this.series[part].stacked ? rows[part].map((value, at) => (sums[at] += value || 0)) : rows[part];
      }
      drawn = heights;
    }
    this.plot.setData([points.map((_, at) => at), ...drawn]);
    this.tell(null);
  }

  // The values at a micro-batch, or the last of each, as text.
  tell(at) {
    const values = this.rows?.map((row) => (at == null ? row.findLast((value) => value != null) : row[at])) ?? [];
    this.list.querySelectorAll("b").forEach((place, n) => {
      place.textContent = this.show(values[n] ?? null);
      place.parentElement.hidden = this.series[n].stacked && !values[n];
    });
  }
}
