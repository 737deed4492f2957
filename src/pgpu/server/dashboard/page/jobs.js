// The table of jobs: all rows in memory, those in sight in the page. While it is scrolled only rows that enter or leave change.

import { duration, element, gib, percent, setAttribute, setText } from "./format.js";
import { JOB, OWN } from "./state.js";

const ROW_HEIGHT = 34; // as in style.css
const MARGIN = 6; // rows above and below those in sight

const ORDER = { running: 0, starting: 1, waiting: 2, failed: 3, exited: 4, cancelled: 5 };
const COLUMNS = [
  { name: "Name", text: (row) => (row.own ? row.own[OWN.name] || row.own[OWN.id] : "another user's") },
  { name: "State", text: (row) => row.job[JOB.state], sort: (row) => ORDER[row.job[JOB.state]] },
  { name: "User", kind: "low", text: (row) => row.own?.[OWN.user] ?? "–" },
  { name: "GPU", kind: "number", text: (row) => row.job[JOB.gpus].join(", ") || "–", sort: (row) => parseInt(row.job[JOB.gpus][0] ?? 1e6) },
  { name: "Used / slice", kind: "number", text: (row) => `${row.own && row.own[OWN.used] !== null ? `${gib(row.own[OWN.used])} / ` : ""}${gib(row.job[JOB.memory])}${row.job[JOB.count] > 1 ? ` × ${row.job[JOB.count]}` : ""}`, sort: (row) => row.job[JOB.memory] },
  { name: "Time", kind: "number low", text: (row) => percent(row.own?.[OWN.share]), sort: (row) => row.own?.[OWN.share] ?? -1 },
  { name: "Age", kind: "number low", text: (row, now) => ageOf(row.own, now), sort: (row) => -(row.own?.[OWN.started] ?? row.own?.[OWN.created] ?? 0) },
  { name: "Reason or command", kind: "lowest", text: (row) => row.own?.[OWN.reason] || row.own?.[OWN.command] || "" },
];

export function ageOf(own, now) {
  if (!own) return "–";
  return duration((own[OWN.finished] ?? now) - (own[OWN.started] ?? own[OWN.created]));
}

export class JobTable {
  constructor(scroller, open) {
    this.scroller = scroller;
    this.open = open;
    this.rows = new Map(); // number → {number, job, own}
    this.order = [];
    this.words = [];
    this.sorted = { column: 1, isDescending: false };
    this.first = 0;
    this.shown = []; // elements of the rows from `first` on
    this.selected = null;
    this.isStale = false;
    this.build();
    scroller.addEventListener("scroll", () => this.place(), { passive: true });
    new ResizeObserver(() => this.place()).observe(scroller);
  }

  build() {
    this.heads = COLUMNS.map((column, at) => {
      const button = element("button", { type: "button", className: "sort" }, column.name);
      button.addEventListener("click", () => this.sortBy(at));
      return element("th", { scope: "col", className: column.kind ?? "" }, button);
    });
    this.above = element("tr", { role: "presentation" }, element("td"));
    this.below = element("tr", { role: "presentation" }, element("td"));
    this.above.setAttribute("aria-hidden", "true");
    this.below.setAttribute("aria-hidden", "true");
    this.none = element("tr", { className: "other" }, element("td", { colSpan: COLUMNS.length }));
    this.body = element("tbody", {}, this.above, this.below, this.none);
    const head = element("tr", {}, ...this.heads);
    head.setAttribute("aria-rowindex", "1");
    this.table = element("table", { className: "jobs", tabIndex: 0 }, element("thead", {}, head), this.body);
    this.table.setAttribute("role", "grid");
    this.table.setAttribute("aria-label", "Jobs; arrow keys choose one, Enter opens it");
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const at = this.shown.indexOf(event.target.closest("tr"));
      if (at >= 0) this.choose(this.first + at, true);
    });
    this.scroller.append(this.table);
    this.markSort();
  }

  // Takes the rows of the state that changed. Returns whether any job came, went or changed.
  update(state, changes) {
    if (changes.kind === "all") {
      this.rows.clear();
      this.isStale = true;
    }
    for (const row of changes.jobs ?? []) this.touch(state, row[0]);
    for (const row of changes.own ?? []) this.touch(state, row[0]);
    for (const number of changes.gone_jobs ?? []) this.isStale = this.rows.delete(number) || this.isStale;
    for (const number of changes.gone_own ?? []) this.touch(state, number);
  }

  touch(state, number) {
    const job = state.jobs.get(number);
    if (!job) return;
    const known = this.rows.get(number), own = state.own.get(number);
    if (!known || known.job[JOB.state] !== job[JOB.state] || !known.own !== !own) this.isStale = true;
    if (known) Object.assign(known, { job, own });
    else this.rows.set(number, { number, job, own });
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.isStale = true;
    this.render();
  }

  sortBy(column) {
    this.sorted = { column, isDescending: this.sorted.column === column && !this.sorted.isDescending };
    this.isStale = true;
    this.markSort();
    this.render();
  }

  markSort() {
    this.heads.forEach((head, at) => {
      const direction = at !== this.sorted.column ? "none" : this.sorted.isDescending ? "descending" : "ascending";
      head.setAttribute("aria-sort", direction);
    });
  }

  // Draws the rows in sight; called at most once a frame.
  render() {
    if (this.isStale) this.arrange();
    else this.shown.forEach((shown, at) => this.fill(shown, this.first + at)); // ages change each second
    this.isStale = false;
  }

  arrange() {
    const column = COLUMNS[this.sorted.column], valueOf = column.sort ?? ((row) => column.text(row, 0).toLowerCase());
    const found = [];
    for (const row of this.rows.values()) if (this.matches(row)) found.push([valueOf(row), row.number]);
    const sign = this.sorted.isDescending ? -1 : 1;
    found.sort(([one, first], [other, second]) => (one < other ? -sign : one > other ? sign : first - second));
    this.order = found.map(([, number]) => number);
    this.table.setAttribute("aria-rowcount", String(this.order.length + 1));
    this.none.hidden = this.order.length > 0;
    setText(this.none.firstChild, this.rows.size ? "no job matches" : "no jobs");
    for (const shown of this.shown) shown.remove();
    this.shown = [];
    this.first = 0;
    this.place();
  }

  matches(row) {
    if (!this.words.length) return true;
    const { job, own } = row;
    const text = `${job[JOB.state]} gpu${job[JOB.gpus].join(" gpu")} ${own ? `${own[OWN.name]} ${own[OWN.id]} ${own[OWN.user]} ${own[OWN.command]}` : ""}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  // Brings the rows in sight into the page: moves those that left to the other end.
  place() {
    const count = Math.min(this.order.length, Math.ceil(this.scroller.clientHeight / ROW_HEIGHT) + 2 * MARGIN);
    const first = Math.max(0, Math.min(Math.floor(this.scroller.scrollTop / ROW_HEIGHT) - MARGIN, this.order.length - count));
    this.above.firstChild.style.height = `${first * ROW_HEIGHT}px`;
    this.below.firstChild.style.height = `${(this.order.length - first - count) * ROW_HEIGHT}px`;
    if (first === this.first && this.shown.length === count) return;
    const isFar = Math.abs(first - this.first) >= count;
    if (isFar) this.first = first;
    while (this.shown.length > count) this.shown.pop().remove();
    const refill = isFar ? new Set(this.shown) : new Set();
    while (this.shown.length < count) {
      const made = element("tr", {}, ...COLUMNS.map((column) => element("td", { className: column.kind ?? "" })));
      this.below.before(made);
      this.shown.push(made);
      refill.add(made);
    }
    for (; this.first < first; this.first++) {
      const moved = this.shown.shift();
      this.below.before(moved);
      this.shown.push(moved);
      refill.add(moved);
    }
    for (; this.first > first; this.first--) {
      const moved = this.shown.pop();
      this.above.after(moved);
      this.shown.unshift(moved);
      refill.add(moved);
    }
    this.shown.forEach((shown, at) => refill.has(shown) && this.fill(shown, first + at));
  }

  fill(shown, at) {
    const number = this.order[at], row = this.rows.get(number), now = Date.now() / 1000;
    setAttribute(shown, "id", `job-${number}`);
    setAttribute(shown, "aria-rowindex", String(at + 2));
    setAttribute(shown, "class", row.own ? "" : "other");
    setAttribute(shown, "aria-selected", String(number === this.selected));
    COLUMNS.forEach((column, place) => {
      const cell = shown.children[place], text = column.text(row, now);
      setText(cell, text);
      if (column.name === "State") setAttribute(cell, "data-state", text);
      if (column.kind === "lowest" || place === 0) setAttribute(cell, "title", text);
    });
  }

  key(event) {
    const at = this.order.indexOf(this.selected), page = Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2;
    const target = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.order.length - 1 }[event.key];
    if (event.target !== this.table) return;
    if (target !== undefined && this.order.length) {
      event.preventDefault();
      this.choose(Math.max(0, Math.min(target, this.order.length - 1)), false);
    } else if (event.key === "Enter" && at >= 0) {
      event.preventDefault();
      this.choose(at, true);
    }
  }

  choose(at, isOpened) {
    const before = this.order.indexOf(this.selected);
    this.selected = this.order[at];
    const top = at * ROW_HEIGHT, height = this.scroller.clientHeight - 2 * ROW_HEIGHT;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + height) this.scroller.scrollTop = top - height;
    this.place();
    for (const each of [before, at]) {
      const shown = this.shown[each - this.first];
      if (each >= 0 && shown) this.fill(shown, each);
    }
    this.table.setAttribute("aria-activedescendant", `job-${this.selected}`);
    if (isOpened) this.open(this.rows.get(this.selected));
  }
}
