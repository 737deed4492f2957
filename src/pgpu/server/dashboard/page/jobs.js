// The table of jobs: all rows in memory, those in sight in the page. Row `at` of the order is in slot `at % slots.length`, at its place by a
// transform: while the table is scrolled no element moves in the page, and only slots of rows that enter are filled.

import { duration, element, gib, percent, setAttribute, setText } from "./format.js";
import { JOB, OWN } from "./state.js";

const ROW_HEIGHT = 34; // as in style.css
const HEAD_HEIGHT = 38;
const MARGIN = 6; // rows above and below those in sight
const SETTLED_MS = 200;

const ORDER = { running: 0, starting: 1, waiting: 2, failed: 3, exited: 4, cancelled: 5 };
const COLUMNS = [
  { name: "Name", text: (row) => (row.own ? row.own[OWN.name] || row.own[OWN.id] : "another user's") },
  { name: "State", text: stateOf, sort: (row) => ORDER[row.job[JOB.state]] },
  { name: "User", kind: "low", text: (row) => row.own?.[OWN.user] ?? "–" },
  { name: "GPU", kind: "number", text: (row) => row.job[JOB.gpus].join(", ") || "–", sort: (row) => parseInt(row.job[JOB.gpus][0] ?? 1e6) },
  { name: "Used / slice", kind: "number", text: (row) => `${row.own && row.own[OWN.used] !== null ? `${gib(row.own[OWN.used])} / ` : ""}${gib(row.job[JOB.memory])}${row.job[JOB.count] > 1 ? ` × ${row.job[JOB.count]}` : ""}`, sort: (row) => row.job[JOB.memory] },
  { name: "Time", kind: "number low", text: (row) => percent(row.own?.[OWN.share]), sort: (row) => row.own?.[OWN.share] ?? -1 },
  { name: "Age", kind: "number low", text: (row, now) => ageOf(row.own, now), sort: (row) => -(row.own?.[OWN.started] ?? row.own?.[OWN.created] ?? 0) },
  { name: "Reason or command", kind: "lowest", text: (row) => row.own?.[OWN.reason] || row.own?.[OWN.command] || "" },
];

export function stateOf(row) {
  return row.own?.[OWN.isHeld] ? "held" : row.job[JOB.state];
}

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
    this.slots = [];
    this.top = this.height = 0; // of the scroller: to read them in a frame that changed the page costs a layout
    this.selected = null;
    this.isStale = false;
    this.build();
    scroller.addEventListener("scroll", () => this.scrolled(scroller.scrollTop), { passive: true });
    new ResizeObserver(([{ contentRect }]) => this.resized(contentRect.height)).observe(scroller);
  }

  build() {
    this.heads = COLUMNS.map((column, at) => {
      const button = element("button", { type: "button", className: "sort" }, column.name);
      button.addEventListener("click", () => this.sortBy(at));
      return element("div", { role: "columnheader", className: column.kind ?? "" }, button);
    });
    const head = element("div", { role: "row", className: "head" }, ...this.heads);
    head.setAttribute("aria-rowindex", "1");
    this.none = element("p", { className: "muted none" });
    this.body = element("div", { role: "rowgroup", className: "rows" });
    this.table = element("div", { role: "grid", className: "jobs", tabIndex: 0 }, head, this.body);
    this.table.setAttribute("aria-label", "Jobs; arrow keys choose one, Enter opens it");
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const slot = this.slots.find(({ row }) => row.contains(event.target));
      if (slot) this.choose(slot.at, true);
    });
    this.scroller.append(this.table, this.none);
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
    else for (const slot of this.slots) this.fill(slot); // ages change each second
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
    setText(this.none, this.rows.size ? "no job matches" : "no jobs");
    this.body.style.height = `${this.order.length * ROW_HEIGHT}px`;
    for (const slot of this.slots) slot.at = -1;
    this.place();
  }

  matches(row) {
    if (!this.words.length) return true;
    const { job, own } = row;
    const text = `${stateOf(row)} ${job[JOB.state]} gpu${job[JOB.gpus].join(" gpu")} ${own ? `${own[OWN.name]} ${own[OWN.id]} ${own[OWN.user]} ${own[OWN.command]}` : ""}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  scrolled(top) {
    this.top = top;
    this.place();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.settle(), SETTLED_MS);
  }

  resized(height) {
    this.height = height;
    const count = Math.ceil(height / ROW_HEIGHT) + 2 * MARGIN;
    if (count === this.slots.length) return;
    this.slots = Array.from({ length: count }, () => {
      const cells = COLUMNS.map((column) => element("div", { role: "gridcell", className: column.kind ?? "" }));
      return { at: -1, cells, row: element("div", { role: "row", hidden: true }, ...cells) };
    });
    this.body.replaceChildren(...this.slots.map(({ row }) => row));
    this.place();
  }

  // Fills the slots whose rows come into sight.
  place() {
    const count = this.slots.length;
    const first = Math.max(0, Math.min(Math.floor(this.top / ROW_HEIGHT) - MARGIN, this.order.length - count));
    for (let at = first; at < first + count; at++) {
      const slot = this.slots[at % count];
      if (slot.at === at) continue;
      slot.at = at;
      this.fill(slot);
    }
  }

  // Brings the rows into their order in the page, in which they are read aloud.
  settle() {
    this.body.append(...this.slots.toSorted((one, other) => one.at - other.at).map(({ row }) => row));
  }

  fill({ at, row: shown, cells }) {
    const number = this.order[at];
    shown.hidden = number === undefined;
    if (shown.hidden) return;
    const row = this.rows.get(number), now = Date.now() / 1000;
    shown.style.transform = `translateY(${at * ROW_HEIGHT}px)`;
    setAttribute(shown, "id", `job-${number}`);
    setAttribute(shown, "aria-rowindex", String(at + 2));
    setAttribute(shown, "class", row.own ? "" : "other");
    setAttribute(shown, "aria-selected", String(number === this.selected));
    COLUMNS.forEach((column, place) => {
      const text = column.text(row, now);
      setText(cells[place], text);
      if (column.name === "State") setAttribute(cells[place], "data-state", text);
      if (column.kind === "lowest" || place === 0) setAttribute(cells[place], "title", text);
    });
  }

  key(event) {
    const at = this.order.indexOf(this.selected), page = Math.floor(this.height / ROW_HEIGHT) - 2;
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
    this.selected = this.order[at];
    const above = at * ROW_HEIGHT, below = above + ROW_HEIGHT + HEAD_HEIGHT - this.height;
    if (above < this.top) this.scroller.scrollTop = this.top = above;
    else if (below > this.top) this.scroller.scrollTop = this.top = below;
    this.place();
    for (const slot of this.slots) this.fill(slot);
    this.table.setAttribute("aria-activedescendant", `job-${this.selected}`);
    if (isOpened) this.open(this.rows.get(this.selected));
  }
}
