// The page: signs in, takes the stream, and draws at most once a frame.

import { Chart, daysOf, pointsOf } from "./chart.js";
import { duration, element, GIB, gib, setText, short } from "./format.js";
import { GpuCards } from "./gpus.js";
import { ageOf, JobTable, stateOf } from "./jobs.js";
import { QueueList } from "./queue.js";
import { GPU, JOB, OWN, State } from "./state.js";
import { Stream } from "./stream.js";

const SLOW_MS = 60000; // history, usage and functions
const LOG_MS = 1000;
const NOTES = {
  history: "means of each minute, busy time of the GPUs in use; nothing ran in a gap",
  usage: "of jobs that ended: memory reserved per GPU, and peaks, times their duration",
  functions: "calls of the replicas that live now",
};

const at = (id) => document.getElementById(id);
const state = new State();
const cards = new GpuCards(at("cards"));
const jobs = new JobTable(at("scroller"), openJob);
const queue = new QueueList(at("waits"), at("queue-note"));
const chart = new Chart(at("chart"), at("legend"));
let points = [], opened = null, pending = [], isSlowDue = true;
let leave = () => location.reload(); // after signing out

// Tests and benchmarks wait for these instead of for a time.
const page = (window.pgpu = { events: 0, rows: () => state.jobs.size, state, jobs });

async function load(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  return answer.json();
}

// The stream

function take(message) {
  if (message.kind === "status") return showStatus(message.status);
  state.apply(message);
  page.events += 1;
  pending.push(message);
  if (pending.length === 1) requestAnimationFrame(draw);
}

// Each part in a frame of its own, so that none takes long.
function draw() {
  const messages = pending;
  pending = [];
  const parts = [
    () => {
      for (const changes of messages) jobs.update(state, changes);
      jobs.render();
    },
    () => {
      for (const changes of messages) cards.update(state, changes);
    },
    () => {
      queue.update(state, messages.some((changes) => changes.jobs || changes.gone_jobs || changes.own));
      summarise();
      showProblem(state.head.problem);
      if (opened && messages.some(({ kind }) => kind === "all")) findOpened();
      if (opened) showFacts();
      if (isSlowDue) {
        isSlowDue = false;
        loadSlow();
      }
    },
  ];
  const drawNext = () => {
    parts.shift()();
    if (parts.length) requestAnimationFrame(drawNext);
  };
  drawNext();
}

function summarise() {
  let used = 0, granted = 0, memory = 0;
  for (const gpu of state.gpus.values()) [used, granted, memory] = [used + gpu[GPU.used], granted + gpu[GPU.granted], memory + gpu[GPU.memory]];
  const counts = { running: 0, waiting: 0 };
  for (const job of state.jobs.values()) counts[job[JOB.state]] = (counts[job[JOB.state]] ?? 0) + 1;
  const kind = state.head.simulated ? " simulated" : "";
  setText(at("summary"), `${state.gpus.size}${kind} GPU${state.gpus.size === 1 ? "" : "s"} · ${gib(granted)} of ${gib(memory)} GiB reserved, ${gib(used)} used · ${counts.running} running, ${counts.waiting} waiting`);
  setText(at("jobs-note"), `${state.jobs.size}, memory in GiB`);
}

function showStatus(status) {
  const live = at("live");
  live.dataset.state = status;
  setText(live, /^(live|signed out|data )/.test(status) ? status : `${status}…`);
  if (status === "signed out") location.reload(); // nothing of this user stays in the page
}

function showProblem(text) {
  at("notice").hidden = !text;
  setText(at("notice"), text ?? "");
}

// A worker for each session: its state is that of one user.
function connect({ user, session }) {
  if (typeof SharedWorker !== "undefined") {
    const { port } = new SharedWorker(new URL("stream.js", import.meta.url), { type: "module", name: `pgpu ${user} ${session}` });
    leave = () => port.postMessage("signed out");
    port.onmessage = ({ data }) => take(data);
    const tell = () => port.postMessage(document.hidden ? "hidden" : "visible");
    addEventListener("visibilitychange", tell);
    addEventListener("pagehide", () => port.postMessage("bye"));
    addEventListener("pageshow", ({ persisted }) => persisted && tell());
    tell();
  } else {
    const stream = new Stream(take);
    const choose = () => stream.setWanted(!document.hidden);
    addEventListener("visibilitychange", choose);
    choose();
  }
}

// What changes slowly

async function loadSlow() {
  if (document.hidden) return;
  const [history, usage, functions] = await Promise.allSettled([loadHistory(), load("usage.json"), load("functions.json")]);
  if (usage.status === "fulfilled") showUsage(usage.value);
  if (functions.status === "fulfilled") showFunctions(functions.value);
  else at("functions").hidden = false;
  for (const [name, { status }] of Object.entries({ history, usage, functions })) setText(at(`${name}-note`), status === "fulfilled" ? NOTES[name] : "cannot be read now");
  page.isLoaded = history.status === "fulfilled";
  const choice = at("gpu-choice");
  for (const gpu of state.gpus.values()) {
    if (![...choice.options].some((option) => option.value === gpu[GPU.uuid])) choice.append(element("option", { value: gpu[GPU.uuid] }, gpu[GPU.place]));
  }
}

async function loadHistory() {
  const uuid = at("gpu-choice").value;
  const columns = await load(uuid ? `history.json?gpu=${encodeURIComponent(uuid)}` : "history.json");
  points = pointsOf(columns);
  const capacity = [...state.gpus.values()].filter((gpu) => !uuid || gpu[GPU.uuid] === uuid).reduce((sum, gpu) => sum + gpu[GPU.memory], 0);
  chart.show(points, capacity / GIB);
  if (at("days").closest("details").open) showDays();
}

function showDays() {
  const rows = daysOf(points).reverse().map((day) => tableRow(day.day, duration(60 * day.minutes), day.reserved.toFixed(1), day.used.toFixed(1), day.most.toFixed(1), day.busy === null ? "–" : `${day.busy.toFixed(0)} %`));
  at("days").replaceChildren(...(rows.length ? rows : [tableRow("nothing ran")]));
}

// The first cell is the head of its row, the others are numbers.
function tableRow(head, ...cells) {
  return element("tr", {}, element("th", { scope: "row" }, head), ...cells.map((cell) => (cell instanceof Node ? element("td", {}, cell) : element("td", { className: "number" }, cell))));
}

function showUsage({ users, advice }) {
  const rows = users.map(([user, count, reserved, used]) => {
    const meter = element("meter", { min: 0, max: 1, value: reserved ? used / reserved : 0, title: `${reserved ? Math.round((100 * used) / reserved) : 0} % used` });
    meter.setAttribute("aria-label", `part of its memory that ${user} used`);
    return tableRow(user, String(count), reserved.toFixed(2), used.toFixed(2), meter);
  });
  at("users").replaceChildren(...(rows.length ? rows : [tableRow("no job has ended yet", "", "", "", "")]));
  const lines = advice.map(([user, program, wasted, enough, reserved, peak]) =>
    element("li", {}, element("code", {}, `--memory ${gib(enough)}GiB`), ` is enough for `, element("b", {}, program), element("span", { className: "muted" }, ` of ${user}: reserved up to ${gib(reserved)}, used up to ${gib(peak)} GiB, ${wasted.toFixed(2)} GiB h for nothing`)));
  at("advice").replaceChildren(...(lines.length ? lines : [element("li", { className: "muted" }, "none: what was reserved was used")]));
}

function showFunctions(functions) {
  at("functions").hidden = at("functions-link").hidden = functions.length === 0;
  at("function-rows").replaceChildren(...functions.map((each) => {
    const replicas = Object.entries(each.replicas).map(([name, count]) => `${count} ${name}`).join(", ") || "none";
    const traffic = each.traffic.map(([version, share]) => `v${version} ${share} %`).join(", ");
    const row = tableRow(each.name, replicas, traffic, String(each.calls), ...each.seconds.map(short), short(each.cold_seconds));
    row.children[1].className = row.children[2].className = "";
    return row;
  }));
}

// One job

function openJob(row) {
  opened = { number: row.number, id: row.own?.[OWN.id], advice: [] };
  showFacts();
  loadAdvice(opened);
  at("details").showModal();
  followLog(opened);
}

// What earlier runs of its program show, as `pgpu history JOB` has it.
async function loadAdvice(job) {
  if (!job.id) return;
  const found = await load(`advice.json?job=${job.id}`).catch(() => []);
  job.advice = found.map(([gpu, runs, peak, enough]) => `${runs} earlier run${runs === 1 ? "" : "s"} on ${gpu} used at most ${gib(peak)} GiB${enough === null ? "" : `: --memory ${gib(enough)}GiB is enough, and what auto takes`}`);
  if (opened === job) showFacts();
}

// Numbers are those of one process of the server: after its restart a job has another one.
function findOpened() {
  if (state.jobs.has(opened.number)) return;
  const own = [...state.own.values()].find((row) => row[OWN.id] === opened.id);
  if (own) opened.number = own[OWN.number];
  else at("details").close();
}

function showFacts() {
  const job = state.jobs.get(opened.number), own = state.own.get(opened.number);
  if (!job) return;
  setText(at("details-title"), own ? own[OWN.name] || own[OWN.id] : "Another user's job");
  const now = Date.now() / 1000, facts = [["State", stateOf({ job, own }) + (own?.[OWN.exitCode] ? `, exit code ${own[OWN.exitCode]}` : "")], ["GPU", job[JOB.gpus].join(", ") || "none yet"], ["Slice", `${gib(job[JOB.memory])} GiB${job[JOB.count] > 1 ? ` on each of ${job[JOB.count]} GPUs` : ""}`]];
  if (own) {
    facts.push(["Used", `${gib(own[OWN.used])} GiB, at most ${gib(own[OWN.peak])}`], ["User", own[OWN.user]], ["Age", ageOf(own, now)], ["Id", own[OWN.id]], ["Command", own[OWN.command]]);
    if (own[OWN.reason]) facts.push(["Why", own[OWN.reason]]);
    facts.push(...opened.advice.map((text) => ["Advice", text]));
  }
  const list = at("facts");
  if (list.childElementCount !== 2 * facts.length) list.replaceChildren(...facts.flatMap(() => [element("dt"), element("dd")]));
  facts.forEach(([name, text], place) => {
    setText(list.children[2 * place], name);
    setText(list.children[2 * place + 1], text);
  });
}

async function followLog(job) {
  const own = state.own.get(job.number), log = at("log");
  if (!own) return void (log.textContent = "only its owner and administrators see its output");
  const tail = document.createTextNode(""); // the unfinished line, which may still be written over
  log.replaceChildren(tail);
  let after = 0, within = 0;
  while (opened === job) {
    if (!document.hidden) {
      try {
        const found = await load(`log.json?job=${own[OWN.id]}&after=${after}&within=${within}`);
        if (opened !== job) return;
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        if (found.skipped) tail.before("… (the output before is left out here)\n");
        if (found.text) tail.before(found.text);
        tail.data = found.tail;
        ({ after, within } = found);
        while (log.childNodes.length > 500) log.firstChild.remove();
        if (isAtEnd) log.scrollTop = log.scrollHeight;
      } catch {
        // the server is away, or the log is not there yet
      }
    }
    await new Promise((resolve) => setTimeout(resolve, LOG_MS));
  }
}

// Signing in

async function start() {
  let session = { user: null, secret: "code" };
  try {
    if (location.hash.startsWith("#code=")) {
      const code = location.hash.slice(6);
      history.replaceState(null, "", location.pathname);
      await fetch("session", { method: "POST", body: code });
    }
    session = await load("session");
  } catch {
    setTimeout(start, LOG_MS);
    return;
  }
  const isIn = session.user !== null;
  at("board").hidden = !isIn;
  at("sign-in").hidden = isIn;
  at("sign-out").hidden = session.session === null || !isIn;
  if (isIn) return connect(session);
  showStatus("waiting to sign in");
  setText(at("secret-label"), session.secret === "code" ? "Code" : "Token");
  setText(at("sign-in-hint"), session.secret === "code" ? "The terminal where `pgpu dashboard` runs prints a code when you press Enter there." : "`pgpu admin token create` makes one for you; it opens the jobs that you may see.");
  at("secret").focus();
}

at("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("session", { method: "POST", body: at("secret").value });
  at("secret").value = "";
  if (answer.ok) start();
  else setText(at("sign-in-hint"), (await answer.json()).error.message);
});

at("sign-out").addEventListener("click", async () => {
  const answer = await fetch("session", { method: "DELETE" });
  if (answer.ok) leave();
});

// Controls

at("filter").addEventListener("input", (event) => jobs.filter(event.target.value));
at("gpu-choice").addEventListener("change", loadSlow);
at("details-close").addEventListener("click", () => at("details").close());
at("details").addEventListener("close", () => {
  opened = null;
  jobs.table.focus();
});
at("days").closest("details").addEventListener("toggle", showDays);
at("theme").addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("pgpu-theme", document.documentElement.dataset.theme);
  chart.draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.draw());
setInterval(() => isSlowDue || loadSlow(), SLOW_MS);
start();
