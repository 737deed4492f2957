// The cards of the GPUs: a bar of slices, of each the used part solid and the reserved part tinted, the rest free.

import { element, gib, setAttribute, setText, svg } from "./format.js";
import { GPU, JOB, OWN } from "./state.js";

const COLOURS = 6; // --slice-0 to --slice-5

export class GpuCards {
  constructor(list) {
    this.list = list;
    this.cards = new Map();
  }

  // Draws the GPUs that changed, or that hold a job that did.
  update(state, changes) {
    if (changes.kind === "all" || changes.gone_gpus) {
      for (const [uuid, card] of this.cards) {
        if (!state.gpus.has(uuid)) {
          card.item.remove();
          this.cards.delete(uuid);
        }
      }
    }
    const numbers = new Set([...(changes.own ?? []), ...(changes.jobs ?? [])].map((row) => row[0]));
    const changed = new Set((changes.gpus ?? []).map((row) => row[0]));
    for (const gpu of state.gpus.values()) {
      if (changed.has(gpu[GPU.uuid]) || gpu[GPU.slices].some(([number]) => numbers.has(number))) this.draw(gpu, state);
    }
  }

  draw(gpu, state) {
    const card = this.cards.get(gpu[GPU.uuid]) ?? this.make(gpu);
    const total = gpu[GPU.memory], slices = gpu[GPU.slices];
    setText(card.name, gpu[GPU.name].replace(/^NVIDIA (GeForce )?/, ""));
    setText(card.amounts, `${gib(gpu[GPU.used])} / ${gib(gpu[GPU.granted])} / ${gib(total)}`);
    const busy = gpu[GPU.busy] === null ? "" : `${gpu[GPU.busy]} % busy`;
    const count = slices.length === 0 ? "idle" : slices.length === 1 ? "1 job" : `${slices.length} jobs`;
    setText(card.note, [count, busy, gpu[GPU.sharing] && slices.length > 1 ? gpu[GPU.sharing] : ""].filter(Boolean).join(" · "));
    setAttribute(card.bar, "aria-label", `GPU ${gpu[GPU.place]}: ${gib(gpu[GPU.used])} GiB used, ${gib(gpu[GPU.granted])} reserved of ${gib(total)}, ${count}`);
    let left = 0, parts = [];
    for (const [number, bytes] of slices) {
      const own = state.own.get(number), job = state.jobs.get(number);
      const used = own?.[OWN.used] == null ? 0 : Math.min(own[OWN.used] / (job?.[JOB.gpus].length || 1), bytes);
      const title = own ? `${own[OWN.name] || own[OWN.id]} (${own[OWN.user]}): ${gib(used)} of ${gib(bytes)} GiB` : `another user's: ${gib(bytes)} GiB`;
      parts.push({ left, reserved: bytes / total, used: used / total, kind: own ? `slice-${number % COLOURS}` : "slice-other", title });
      left += bytes / total;
    }
    this.drawBar(card, parts);
  }

  drawBar(card, parts) {
    while (card.parts.length > parts.length) card.parts.pop().group.remove();
    parts.forEach(({ left, reserved, used, kind, title }, at) => {
      if (!card.parts[at]) {
        const made = { group: svg("g", {}), title: svg("title", {}), reserved: svg("rect", { class: "reserved", height: "100%" }), used: svg("rect", { height: "100%" }) };
        made.group.append(made.title, made.reserved, made.used);
        card.bar.append(made.group);
        card.parts[at] = made;
      }
      const part = card.parts[at], gap = Math.min(0.003, reserved / 4);
      setAttribute(part.group, "class", kind);
      setText(part.title, title);
      for (const [rect, width] of [[part.reserved, reserved], [part.used, used]]) {
        setAttribute(rect, "x", `${(100 * left).toFixed(2)}%`);
        setAttribute(rect, "width", `${(100 * Math.max(0, Math.min(width, reserved - gap))).toFixed(2)}%`);
      }
    });
  }

  make(gpu) {
    const made = {
      name: element("span", { className: "muted model" }),
      amounts: element("span", { className: "amounts" }),
      note: element("span", { className: "muted note" }),
      bar: svg("svg", { class: "bar", role: "img" }),
      parts: [],
    };
    const head = element("div", { className: "head" }, element("b", {}, `GPU ${gpu[GPU.place]}`), made.name, made.amounts);
    made.item = element("li", { className: "card gpu" }, head, made.bar, made.note);
    this.list.append(made.item);
    this.cards.set(gpu[GPU.uuid], made);
    return made;
  }
}
