// A week of minutes on a canvas: memory on the left axis, busy time on the right one. Gaps stay gaps.

import { GIB } from "./format.js";

const SERIES = [
  { key: "reserved", label: "reserved", variable: "--reserved", fill: 0.14 },
  { key: "used", label: "used", variable: "--used", fill: 0.14 },
  { key: "busy", label: "busy", variable: "--share", fill: 0, width: 1 },
];
const LEFT = 44, RIGHT = 44, TOP = 10, BOTTOM = 24;
const WEEK_MINUTES = 7 * 1440;

export class Chart {
  constructor(canvas, legend) {
    this.canvas = canvas;
    this.legend = legend;
    this.points = [];
    this.capacity = 1;
    this.hover = null;
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.point(null));
  }

  // points: [minute, reserved, used, busy], memory in GiB, oldest first
  show(points, capacity) {
    this.points = points;
    this.capacity = Math.max(1, capacity);
    this.draw();
  }

  point(x) {
    this.hover = x;
    this.drawSoon();
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    const { canvas, points } = this;
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    const end = Math.floor(Date.now() / 60000), begin = end - WEEK_MINUTES, top = niceTop(this.capacity);
    const x = (minute) => LEFT + ((minute - begin) / WEEK_MINUTES) * (width - LEFT - RIGHT);
    const y = (part) => height - BOTTOM - part * (height - TOP - BOTTOM);
    this.grid(context, { width, height, begin, end, top, x, y, line: color("--line"), text: color("--muted") });
    for (const [at, series] of SERIES.entries()) {
      const scale = series.key === "busy" ? 100 : top;
      this.curve(context, points, at + 1, x, (value) => y(value / scale), color(series.variable), series, y(0));
    }
    const chosen = this.hover === null ? points.at(-1) : nearest(points, begin + ((this.hover - LEFT) / (width - LEFT - RIGHT)) * WEEK_MINUTES);
    if (this.hover !== null && chosen) {
      context.fillStyle = color("--muted");
      context.fillRect(Math.round(x(chosen[0])), TOP, 1, height - TOP - BOTTOM);
    }
    this.describe(chosen);
  }

  grid(context, { width, height, begin, end, top, x, y, line, text }) {
    context.strokeStyle = line;
    context.fillStyle = text;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (let step = 0; step <= 4; step++) {
      const at = Math.round(y(step / 4)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(width - RIGHT, at);
      context.stroke();
      context.textAlign = "right";
      context.fillText(`${+((top * step) / 4).toFixed(1)}`, LEFT - 8, at);
      context.textAlign = "left";
      context.fillText(`${25 * step}%`, width - RIGHT + 8, at);
    }
    context.textBaseline = "top";
    context.textAlign = "center";
    const day = new Date(begin * 60000);
    day.setHours(24, 0, 0, 0);
    const every = width < 500 ? 2 : 1;
    for (let count = 0; day / 60000 < end; count++, day.setDate(day.getDate() + 1)) {
      if (count % every) continue;
      const label = day.toLocaleDateString(undefined, { weekday: "short", day: "numeric" });
      if (x(day / 60000) < width - RIGHT - 10) context.fillText(label, x(day / 60000), height - BOTTOM + 8);
    }
  }

  // Up to ten points share a pixel column: their extremes are drawn, so that no peak is lost.
  curve(context, points, column, x, y, color, { fill, width = 1.5 }, base) {
    let path = [];
    const flush = () => {
      if (!path.length) return;
      context.beginPath();
      context.moveTo(path[0][0], path[0][1]);
      for (const [px, py] of path) context.lineTo(px, py);
      if (path.length === 1) context.lineTo(path[0][0] + 1, path[0][1]);
      context.strokeStyle = color;
      context.lineWidth = width;
      context.lineJoin = "round";
      context.stroke();
      if (fill) {
        context.lineTo(path.at(-1)[0], base);
        context.lineTo(path[0][0], base);
        context.globalAlpha = fill;
        context.fillStyle = color;
        context.fill();
        context.globalAlpha = 1;
      }
      path = [];
    };
    let last = null, pixel = null, low = 0, high = 0;
    const push = () => {
      if (pixel === null) return;
      path.push([pixel, low]);
      if (high !== low) path.push([pixel, high]);
      pixel = null;
    };
    for (const point of points) {
      const value = point[column];
      if (value === null) continue;
      if (last !== null && point[0] - last > 2) {
        push();
        flush();
      }
      last = point[0];
      const px = Math.round(x(point[0])), py = y(value);
      if (px !== pixel) {
        push();
        [pixel, low, high] = [px, py, py];
      } else {
        [low, high] = [Math.min(low, py), Math.max(high, py)];
      }
    }
    push();
    flush();
  }

  describe(point) {
    const texts = point
      ? [new Date(point[0] * 60000).toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" }),
         `${point[1].toFixed(1)} GiB`, `${point[2].toFixed(1)} GiB`, point[3] === null ? "–" : `${point[3]} %`]
      : ["nothing ran in the last seven days", "", "", ""];
    if (!this.legend.childElementCount) {
      this.legend.append(Object.assign(document.createElement("span"), { className: "when" }));
      for (const { label, key } of SERIES) {
        const item = Object.assign(document.createElement("span"), { className: `series ${key}` });
        item.append(`${label} `, document.createElement("b"));
        this.legend.append(item);
      }
    }
    const [when, ...items] = this.legend.children;
    if (when.textContent !== texts[0]) when.textContent = texts[0];
    items.forEach((item, at) => (item.lastChild.textContent = texts[at + 1]));
  }
}

// Columns of the server into points; see `_columns` in `dashboard/routes.py`.
export function pointsOf({ first, steps, reserved, used, busy }) {
  const mib = GIB / 2 ** 20;
  let minute = first;
  return reserved.map((amount, at) => {
    if (at) minute += steps[at - 1];
    return [minute, amount / mib, used[at] / mib, busy[at]];
  });
}

// Means of each day of the reader's time zone.
export function daysOf(points) {
  const days = new Map();
  for (const point of points) {
    const day = new Date(point[0] * 60000).toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" });
    if (!days.has(day)) days.set(day, []);
    days.get(day).push(point);
  }
  const mean = (rows, column) => rows.reduce((sum, row) => sum + row[column], 0) / rows.length;
  return [...days].map(([day, rows]) => {
    const busy = rows.filter((row) => row[3] !== null);
    return { day, minutes: rows.length, reserved: mean(rows, 1), used: mean(rows, 2), most: Math.max(...rows.map((row) => row[2])), busy: busy.length ? mean(busy, 3) : null };
  });
}

function nearest(points, minute) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < minute) low = middle + 1;
    else high = middle;
  }
  return points[low];
}

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value / 4));
  return 4 * power * [1, 2, 2.5, 5, 10].find((step) => 4 * step * power >= value);
}
