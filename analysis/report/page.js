// The interactive parts of a report. Everything that comes from runs is inserted as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function el(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
      if (key in node) node[key] = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }
  function svg(tag, attributes = {}, text = "") {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  }

  // --- the table of runs: sort by a click on a column, filter by words

  const table = $("run-table");
  if (table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const number = (text) => (text === "" ? NaN : Number(text));
    heads.forEach((head, column) => {
      if (!head.hasAttribute("data-sort")) return;
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = [...body.rows].map((row) => {
          const cell = row.cells[column];
          return [row, cell.dataset.v ?? cell.textContent.trim()];
        });
        const numeric = keyed.every(([, v]) => v === "" || !Number.isNaN(Number(v)));
        keyed.sort(([, a], [, b]) => {
          if (numeric) {
            const [x, y] = [number(a), number(b)];
            if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // empty cells last
            return down ? y - x : x - y;
          }
          return (down ? -1 : 1) * a.localeCompare(b, undefined, { numeric: true });
        });
        body.append(...keyed.map(([row]) => row));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
    const filter = $("run-filter");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      $("run-count").textContent = `${shown} of ${body.rows.length}`;
    });
  }

  // --- curves

  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
  // On a dark page greys are inverted, and other colours lighter.
  const colour = (arm) => {
    const parts = data.arms[arm].colour.match(/[0-9A-F]{2}/g).map((part) => parseInt(part, 16));
    const grey = new Set(parts).size === 1;
    const shown = dark.matches ? parts.map((part) => (grey ? 255 - 0.8 * part : part + 0.3 * (255 - part))) : parts;
    return `#${shown.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;
  };
  const dash = (arm) => DASHES[data.arms[arm].dash];
  const MOST_AT_FIRST = 24;
  const visible = new Set(data.arms.map((_, arm) => arm).slice(0, MOST_AT_FIRST));
  const PRINTED = 330; // pixels: two charts side by side on A4 and letter paper
  // Of a run's steps a tenth is smoothed over, as in figures, but at most 9 points.
  const longest = Math.max(0, ...data.panels.filter((spec) => !spec.evaluation).flatMap(({ lines }) => lines.map((line) => line.x.length)));
  const state = { printed: false, window: Math.min(9, 2 * Math.floor(longest / 20) + 1), log: false, bands: data.arms.length <= 4 }; // the bands of more arms hide one another
  const panels = [];

  function smoothed(values, window) {
    if (window < 2) return values;
    const half = Math.floor(window / 2);
    return values.map((_, i) => {
      let sum = 0;
      let count = 0;
      for (let j = Math.max(0, i - half); j <= Math.min(values.length - 1, i + half); j++) {
        if (values[j] !== null && values[j] !== undefined) {
          sum += values[j];
          count++;
        }
      }
      return count ? sum / count : null;
    });
  }

  function build(panel) {
    const { spec, host } = panel;
    panel.plot?.destroy();
    const lines = spec.lines.filter((line) => visible.has(line.arm));
    const window = spec.evaluation ? 1 : state.window;
    const positive = (values) => (state.log ? values.map((v) => (v > 0 ? v : null)) : values);
    const tables = lines.map((line) => {
      const columns = [line.y, ...(line.low && state.bands ? [line.high, line.low] : [])];
      return [line.x, ...columns.map((values) => positive(smoothed(values, window)))];
    });
    const joined = tables.length ? uPlot.join(tables) : [[0, 1]];
    const series = [{ label: "step" }];
    const bands = [];
    for (const line of lines) {
      const shade = colour(line.arm);
      const at = series.length;
      series.push({ label: data.arms[line.arm].short, stroke: shade, width: 1.4, dash: dash(line.arm), spanGaps: true,
        points: { show: Boolean(spec.evaluation), size: 5, fill: shade }, arm: line.arm });
      if (line.low && state.bands) {
        const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, edge: true };
        series.push({ ...edge, label: "high" }, { ...edge, label: "low" });
        bands.push({ series: [at + 1, at + 2], fill: shade + "22" });
      }
    }
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 },
      font: "11px system-ui, sans-serif" };
    panel.plot = new uPlot({
      width: state.printed ? PRINTED : host.clientWidth || 360, height: 230, series, bands,
      scales: { x: { time: false }, y: { distr: state.log && !spec.evaluation ? 3 : 1 } },
      axes: [{ ...axis, size: 30 }, { ...axis, size: 52 }],
      cursor: { drag: { x: true, y: true, uni: 20 }, focus: { prox: 24 }, points: { size: 6 }, sync: { key: "step", setSeries: false } },
      focus: { alpha: 0.25 },
      hooks: { setCursor: [(plot) => showTip(panel, plot)], setSeries: [(plot, index) => { panel.focused = index; showTip(panel, plot); }] },
    }, joined, host);
  }

  function showTip(panel, plot) {
    const { tip } = panel;
    const index = plot.cursor.idx;
    const series = panel.focused ? plot.series[panel.focused] : null;
    const value = series && !series.edge && index !== null && index !== undefined ? plot.data[panel.focused][index] : null;
    if (value === null || value === undefined || plot.cursor.left < 0) {
      tip.style.display = "none";
      return;
    }
    tip.textContent = `${series.label}: ${Number(value.toPrecision(4))} at step ${plot.data[0][index]}`;
    tip.style.display = "block";
    tip.style.left = `${Math.min(plot.cursor.left + 60, panel.node.clientWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${plot.cursor.top + 36}px`;
  }

  const redraw = () => panels.forEach((panel) => panel.plot && build(panel));
  function addPanel(spec, into = "panels") {
    const host = el("div");
    const tip = el("div", { className: "tip" });
    const node = el("div", { className: "panel" }, el("h3", { textContent: spec.title }), host, tip);
    const panel = { spec, host, tip, node, focused: null };
    panels.push(panel);
    $(into).append(node);
    watch.observe(node);
  }
  const watch = new IntersectionObserver((entries) => { // panels are drawn when they come into view
    for (const entry of entries) {
      const panel = panels.find((candidate) => candidate.node === entry.target);
      if (entry.isIntersecting && !panel.plot) build(panel);
    }
  }, { rootMargin: "200px" });

  function swatch(arm) {
    const node = svg("svg", { width: 22, height: 8, "aria-hidden": "true" });
    node.append(svg("line", { x1: 0, y1: 4, x2: 22, y2: 4, stroke: colour(arm), "stroke-width": 2.5, "stroke-dasharray": dash(arm).join(" ") }));
    return node;
  }
  function drawLegend() {
    const words = ($("arm-filter")?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    for (const legend of document.querySelectorAll(".legend")) legend.replaceChildren(...data.arms.flatMap(({ short, label }, arm) => {
      if (!words.every((word) => label.toLowerCase().includes(word))) return [];
      const button = el("button", { type: "button", title: `${label} (double click: this one alone)` }, swatch(arm), short);
      button.setAttribute("aria-pressed", visible.has(arm));
      button.addEventListener("click", () => {
        if (!visible.delete(arm)) visible.add(arm);
        drawLegend();
        redraw();
      });
      button.addEventListener("dblclick", () => { choose([arm]); });
      button.dataset.arm = arm;
      return [button];
    }));
  }
  function choose(armsToShow) {
    visible.clear();
    armsToShow.forEach((arm) => visible.add(arm));
    drawLegend();
    redraw();
  }
  if ($("panels")) {
    const [EVALUATIONS, TRAINING] = [2, 7];
    const training = data.panels.filter((spec) => !spec.evaluation).slice(0, TRAINING);
    const evaluations = data.panels.filter((spec) => spec.evaluation);
    const first = (evaluations.length ? evaluations : training).slice(0, EVALUATIONS); // there are none before the second one
    first.forEach((spec) => addPanel(spec));
    training.forEach((spec) => addPanel(spec, "training-panels"));
    const later = data.panels.filter((spec) => !first.includes(spec));
    const more = $("more");
    if (later.length) {
      more.append(...later.map((spec, i) => el("option", { value: i, textContent: spec.title })));
      more.addEventListener("change", () => {
        if (more.value !== "") addPanel(later[Number(more.value)]);
        more.value = "";
      });
    } else more.parentElement.hidden = true;
    const filtered = () => [...document.querySelector(".legend").children].map((button) => Number(button.dataset.arm));
    $("show-all").addEventListener("click", () => choose([...visible, ...filtered()]));
    $("show-none").addEventListener("click", () => choose([...visible].filter((arm) => !filtered().includes(arm))));
    $("arm-filter").addEventListener("input", drawLegend);
    const smooth = (window) => {
      state.window = $("smooth").value = window;
      $("smooth-text").textContent = window > 1 ? `${window} points` : "off";
      redraw();
    };
    smooth(state.window);
    $("smooth").addEventListener("input", () => smooth(Number($("smooth").value)));
    $("log").addEventListener("change", () => { state.log = $("log").checked; redraw(); });
    $("bands").addEventListener("change", () => { state.bands = $("bands").checked; redraw(); });
    $("bands").checked = state.bands;
    drawLegend();
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
    dark.addEventListener("change", () => { drawLegend(); redraw(); });
    const redrawAll = (printed) => { state.printed = printed; panels.forEach(build); };
    addEventListener("beforeprint", () => redrawAll(true));
    addEventListener("afterprint", () => redrawAll(false));
  }

  // --- samples, side by side

  const MOVES = { UP: [-1, 0], DOWN: [1, 0], LEFT: [0, -1], RIGHT: [0, 1] };
  // A maze as its prompt describes it, and the walk of a response up to the first wall; null for any other prompt.
  function maze(prompt, response = "") {
    const grid = /^GRID_START (.*) GRID_END/.exec(prompt)?.[1];
    if (!grid) return null;
    const rows = grid.split("NEWLINE").map((row) => row.trim().split(" ")).filter((row) => row[0]);
    const [height, width] = [rows.length, rows[0].length];
    const drawing = svg("svg", { class: "maze", viewBox: `0 0 ${width} ${height}`, width: 16 * width, role: "img", "aria-label": "maze" });
    let at = null;
    rows.forEach((row, y) => row.forEach((word, x) => {
      if (word === "WALL") drawing.append(svg("rect", { x, y, width: 1, height: 1, fill: "currentColor", "fill-opacity": 0.55 }));
      if (word === "START") at = [y, x];
      if (word === "START" || word === "GOAL") drawing.append(svg("text", { x: x + 0.5, y: y + 0.8, "text-anchor": "middle", "font-size": 0.85 }, word[0]));
    }));
    const walk = at && [at];
    for (const word of response.split(/\s+/).filter((word) => !["PATH", "START", "GOAL"].includes(word))) { // of task=maze_walk
      if (!walk || !(word in MOVES)) break;
      walk.push(MOVES[word].map((step, axis) => walk.at(-1)[axis] + step));
      if ((rows[walk.at(-1)[0]]?.[walk.at(-1)[1]] ?? "WALL") === "WALL") break;
    }
    const points = (walk ?? []).map(([y, x]) => `${x + 0.5},${y + 0.5}`).join(" ");
    drawing.append(svg("polyline", { points, fill: "none", stroke: css("--link"), "stroke-width": 0.18, "stroke-linejoin": "round" }));
    return drawing;
  }

  // The turns of a conversation, JSON of [role, text], each with its role, and those of the model apart; else the text.
  function conversation(turns, text) {
    if (!turns) return [el("pre", { textContent: text })];
    const said = JSON.parse(turns).map(([role, words]) => el("div", { className: role === "assistant" ? "turn own" : "turn" }, el("b", { textContent: role }), el("pre", { textContent: words })));
    return [el("div", { className: "turns" }, ...said)];
  }

  (data.readers ?? []).forEach((reader, number) => {
    const root = $(`reader-${number}`);
    const chooser = (label, options, chosen) => {
      const node = el("select", {}, ...options.map((text, value) => el("option", { value, textContent: text })));
      node.setAttribute("aria-label", label);
      node.value = chosen;
      node.addEventListener("change", list);
      return node;
    };
    const labels = reader.arms.map((arm) => arm.short);
    const [left, right] = [0, 1].map((side) => chooser(side ? "right arm" : "left arm", labels, Math.min(side, labels.length - 1)));
    const steps = [...new Set(reader.arms.flatMap((arm) => arm.evaluations.map((e) => e.step)))].sort((a, b) => b - a);
    const when = chooser("step", ["last evaluation", ...steps.map((step) => `step ${step}`)], 0);
    when.hidden = steps.length < 2;
    const words = el("input", { type: "search", size: 34, placeholder: "words in prompt, answer, responses" });
    words.addEventListener("input", list);
    const problems = el("div", { className: "problems" });
    const shown = el("div");
    root.append(el("div", { className: "controls" }, left, "against", right, when, words), el("div", { className: "reader" }, problems, shown));
    const share = ([correct, judged]) => (judged ? correct / judged : 0);
    const NONE = { step: null, cells: reader.problems.map(() => [0, 0, []]) };
    const evaluation = (arm) => (when.value === "0" ? arm.evaluations.at(-1) : arm.evaluations.find((e) => e.step === steps[when.value - 1])) ?? NONE;
    let current = null;
    function list() {
      const arms = [left, right].map((side) => reader.arms[Number(side.value)]);
      const [a, b] = arms.map(evaluation);
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const text = (p) => [reader.prompts[p], reader.answers[p], ...[a, b].flatMap((e) => e.cells[p][2].map((r) => r[2]))].join(" ").toLowerCase();
      const order = reader.problems.map((_, p) => p).filter((p) => !wanted.length || wanted.every((word) => text(p).includes(word)));
      const gap = (p) => Math.abs(share(a.cells[p]) - share(b.cells[p]));
      order.sort((p, q) => gap(q) - gap(p) || p - q);
      const buttons = order.map((p) => {
        const score = ([c, n]) => (n ? `${c}/${n}` : "–");
        const button = el("button", { type: "button" }, reader.problems[p], el("br"),
          el("small", { className: "soft", textContent: `${score(a.cells[p])} → ${score(b.cells[p])}` }));
        button.addEventListener("click", () => {
          buttons.forEach((other) => other.removeAttribute("aria-current"));
          button.setAttribute("aria-current", "true");
          current = p;
          show(p, arms);
        });
        return button;
      });
      problems.replaceChildren(...buttons);
      buttons[Math.max(0, order.indexOf(current))]?.click();
      if (!buttons.length) shown.replaceChildren("No problem here has these words.");
    }
    function show(p, arms) {
      const sides = arms.map((arm) => {
        const { step, cells } = evaluation(arm);
        const [correct, judged, responses] = cells[p];
        const alike = new Map(); // equal responses are shown once, with their number
        for (const response of responses) alike.set(response[0] + response[2], [(alike.get(response[0] + response[2])?.[0] ?? 0) + 1, ...response]);
        const texts = [...alike.values()].flatMap(([times, outcome, tokens, text, turns, extras]) => {
          const measured = Object.entries(JSON.parse(extras ?? "{}")).map(([name, value]) => ` · ${name} ${value}`).join("");
          const walk = maze(reader.prompts[p], text);
          return [
            el("p", { className: "note" }, el("b", { className: outcome, textContent: outcome }), tokens ? ` · ${tokens} token${tokens === 1 ? "" : "s"}` : "", measured, times > 1 ? ` · ${times} times` : ""),
            el("div", { className: "response" }, ...(walk ? [walk] : []), ...conversation(turns, text)),
          ];
        });
        const hidden = judged - responses.length;
        const about = `${correct} of ${judged} right · ${arm.run}, ${step === null ? "not evaluated at this step" : `step ${step}`}`;
        return el("div", {}, el("h3", { textContent: arm.short, title: arm.label }), el("p", { className: "note soft", textContent: about }),
          el("div", { className: "responses" }, ...texts), ...(hidden > 0 ? [el("p", { className: "note soft", textContent: `${hidden} more not on this page` })] : []));
      });
      const prompt = reader.prompts[p] || "(this run did not store its prompts)";
      const picture = maze(prompt, reader.answers[p]);
      const words = picture ? el("details", {}, el("summary", { textContent: "prompt, word by word" }), el("pre", { textContent: prompt })) : el("pre", { textContent: prompt });
      shown.replaceChildren(el("p", { className: "note soft", textContent: reader.problems[p] }), ...(picture ? [picture] : []), words,
        el("p", { className: "note" }, "Right answer: ", reader.answers[p] ? el("code", { textContent: reader.answers[p] }) : "not stored by these runs"),
        el("div", { className: "sides" }, ...sides));
    }
    list();
  });

  // --- parallel coordinates: a line per run; drag on an axis to show the runs of a part of it alone

  const search = data.search;
  if (search && $("coordinates")) {
    const axes = [...search.knobs, ...search.metrics.map((metric) => metric + search.unit)];
    const [WIDTH, HEIGHT, TOP, SIDE] = [1000, 340, 34, 60];
    const columns = axes.map((_, k) => search.rows.map((row) => String([...row.values, ...row.results][k])));
    const scales = columns.map((values) => {
      const numbers = values.map(Number);
      const kinds = [...new Set(values)];
      const range = (x) => TOP + (1 - x) * (HEIGHT - TOP - 24);
      if (values.every((v) => v !== "" && Number.isFinite(Number(v)))) {
        const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
        const log = low > 0 && high / low >= 30;
        const f = log ? Math.log : (x) => x;
        const place = (v) => range(high > low ? (f(Number(v)) - f(low)) / (f(high) - f(low)) : 0.5);
        const few = kinds.length <= 6 ? kinds : [low, log ? Math.sqrt(low * high) : (low + high) / 2, high];
        return { place, ticks: few.map((v) => [place(v), String(Number(Number(v).toPrecision(3)))]) };
      }
      kinds.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
      const place = (v) => range(kinds.length > 1 ? kinds.indexOf(v) / (kinds.length - 1) : 0.5);
      return { place, ticks: kinds.map((v) => [place(v), v === "" ? "–" : v]) };
    });
    const x = (k) => SIDE + (k * (WIDTH - 2 * SIDE)) / (axes.length - 1);
    const results = search.rows.map((row) => row.results[0]);
    const [worst, best] = [Math.min(...results), Math.max(...results)];
    const strength = (value) => 0.15 + 0.85 * (best > worst ? (value - worst) / (best - worst) : 0.5);
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "parallel coordinates of runs by knob" });
    const caption = $("coordinates-text");
    const kept = axes.map(() => null);
    const lines = search.rows.map((row, i) => {
      const points = axes.map((_, k) => `${x(k)},${scales[k].place(columns[k][i])}`).join(" ");
      const line = svg("polyline", { points, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-opacity": strength(row.results[0]) });
      line.addEventListener("pointerenter", () => {
        line.setAttribute("stroke-width", 4);
        caption.textContent = `${row.name}: ${search.knobs.map((k, j) => `${k}=${row.values[j]}`).join(", ")} → ${row.results.join(", ")}`;
      });
      line.addEventListener("pointerleave", () => line.setAttribute("stroke-width", 1.5));
      drawing.append(line);
      return line;
    });
    function keep() {
      let shown = 0;
      lines.forEach((line, i) => {
        const inside = kept.every((part, k) => {
          const y = scales[k].place(columns[k][i]);
          return !part || (y >= part[0] && y <= part[1]);
        });
        line.setAttribute("visibility", inside ? "visible" : "hidden");
        shown += inside;
      });
      caption.textContent = `${shown} of ${lines.length} runs`;
    }
    axes.forEach((name, k) => {
      const group = svg("g");
      group.append(svg("line", { x1: x(k), x2: x(k), y1: TOP, y2: HEIGHT - 24, stroke: "currentColor", "stroke-opacity": 0.5 }));
      const anchor = k === axes.length - 1 ? "end" : k ? "middle" : "start";
      group.append(svg("text", { x: x(k) + (k ? (anchor === "end" ? 50 : 0) : -50), y: 14, "text-anchor": anchor, "font-weight": 600 }, name));
      for (const [y, text] of scales[k].ticks) {
        group.append(svg("text", { x: x(k) + (k === axes.length - 1 ? 6 : -6), y: y + 4, "text-anchor": k === axes.length - 1 ? "start" : "end" }, text.slice(0, 14)));
      }
      const part = svg("rect", { x: x(k) - 7, width: 14, y: 0, height: 0, fill: "currentColor", "fill-opacity": 0.25 });
      const grip = svg("rect", { x: x(k) - 14, width: 28, y: TOP, height: HEIGHT - TOP - 24, fill: "transparent", cursor: "ns-resize" });
      const height = (event) => ((event.clientY - drawing.getBoundingClientRect().top) * HEIGHT) / drawing.getBoundingClientRect().height;
      let start = null;
      grip.addEventListener("pointerdown", (event) => { start = height(event); grip.setPointerCapture(event.pointerId); });
      grip.addEventListener("pointermove", (event) => {
        if (start === null) return;
        const [a, b] = [start, height(event)].sort((p, q) => p - q);
        kept[k] = b - a > 3 ? [a, b] : null;
        part.setAttribute("y", a);
        part.setAttribute("height", kept[k] ? b - a : 0);
        keep();
      });
      grip.addEventListener("pointerup", () => { start = null; });
      group.append(part, grip);
      drawing.append(group);
    });
    $("coordinates").append(drawing);
    keep();
  }
})();
