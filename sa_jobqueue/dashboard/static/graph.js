// Draws the graph of a workflow from data-graph: dagre says where, and this draws. The table below it says the same without a script.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const HIGH = 44, SPACE = 14, STEP = 24;
  const make = (name, attributes = {}, ...children) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const ruler = document.createElement("canvas").getContext("2d");
  const wide = (text, font) => { ruler.font = font; return ruler.measureText(text).width; };
  const cut = text => text.length > 42 ? `${text.slice(0, 20)}…${text.slice(-21)}` : text;
  const titled = box => cut(box.name) + (box.number > 1 ? ` × ${box.number.toLocaleString("en")}` : "");

  const shown = new WeakMap();
  const drawAll = () => {
    if (typeof dagre === "undefined") return;
    for (const place of document.querySelectorAll("[data-graph]")) {
      const known = shown.get(place);
      if (known && known.said === place.dataset.graph) continue;
      draw(place, known);
    }
  };

  function draw(place, known) {
    const said = JSON.parse(place.dataset.graph);
    // Wider in steps, so that a number with one more digit moves nothing; boxes of a task are as wide as the widest.
    const widths = new Map();
    for (const box of said.boxes) {
      const needed = STEP * Math.ceil((Math.max(wide(titled(box), "600 13px system-ui"), wide(box.said, "12px system-ui")) + 2 * SPACE) / STEP);
      widths.set(box.task, Math.max(widths.get(box.task) ?? 0, needed));
    }
    for (const box of said.boxes) box.width = widths.get(box.task);
    const shape = JSON.stringify([said.boxes.map(box => [box.id, box.width]), said.edges]);
    if (known && known.shape === shape) {
      for (const box of said.boxes) known.boxes.get(box.id).replaceWith(known.put(box));
      known.said = place.dataset.graph;
      return;
    }

    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 46, marginx: 12, marginy: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const box of said.boxes) graph.setNode(box.id, { width: box.width, height: HIGH });
    for (const [from, to] of said.edges) graph.setEdge(from, to);
    dagre.layout(graph);
    const { width, height } = graph.graph();
    // From the right side of a box to the left side of the next, by the points between that dagre found; level where it passes other boxes.
    const halves = new Map();
    for (const id of graph.nodes()) {
      const { x, width: wide } = graph.node(id), key = Math.round(x);
      halves.set(key, Math.max(halves.get(key) ?? 0, wide / 2));
    }
    const curve = (from, to) => {
      const start = graph.node(from), end = graph.node(to);
      let x = start.x + start.width / 2, y = start.y, path = `M${x.toFixed(1)},${y.toFixed(1)}`;
      const bend = (nextX, nextY) => {
        const middle = ((x + nextX) / 2).toFixed(1);
        path += ` C${middle},${y.toFixed(1)} ${middle},${nextY.toFixed(1)} ${nextX.toFixed(1)},${nextY.toFixed(1)}`;
        x = nextX; y = nextY;
      };
      for (const point of graph.edge(from, to).points.slice(1, -1)) {
        const half = halves.get(Math.round(point.x));
        if (half === undefined) continue;
        bend(point.x - half, point.y);
        path += ` H${(x = point.x + half).toFixed(1)}`;
      }
      bend(end.x - end.width / 2, end.y);
      return path;
    };

    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-labelledby": place.getAttribute("aria-labelledby") },
      make("defs", {}, make("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
        make("path", { d: "M0,0 L8,4 L0,8 z", class: "tip" }))));
    for (const [from, to, policy] of said.edges)
      svg.append(make("path", { d: curve(from, to), class: policy === "cancel" ? "edge" : "edge loose", "marker-end": "url(#tip)" }));

    const words = JSON.parse(place.dataset.words);
    const state = { said: place.dataset.graph, shape, boxes: new Map(), scale: known ? known.scale : 0 };
    state.put = box => {
      const { x, y } = graph.node(box.id);
      const link = new URL(location);
      if (box.opens) { link.searchParams.append("open", box.id); link.hash = "graph-title"; }
      const list = `${place.dataset.jobs}?workflow=${said.workflow}&task=${encodeURIComponent(box.task)}`;
      const href = box.opens ? link.href : box.number > 1 ? list : `${place.dataset.jobs}/${box.id}`;
      const text = (at, words, name) => make("text", { x: x - box.width / 2 + SPACE, y: y + at, class: name }, words);
      const drawn = make("a", { href, class: `box ${box.state}`, "data-box": box.id },
        make("title", {}, `${box.name}: ${box.said}${box.number > 1 ? `\n${words[box.opens ? "open" : "list"]}` : ""}`));
      // What stands for several looks like several.
      if (box.number > 1) drawn.append(make("rect", { x: x - box.width / 2 + 4, y: y - HIGH / 2 + 4, width: box.width, height: HIGH, rx: 7 }));
      drawn.append(make("rect", { x: x - box.width / 2, y: y - HIGH / 2, width: box.width, height: HIGH, rx: 7 }),
        text(-4, titled(box), "name"), text(13, box.said, "said"));
      state.boxes.set(box.id, drawn);
      return drawn;
    };
    for (const box of said.boxes) svg.append(state.put(box));

    const fit = () => Math.min(1, Math.max(.6, (place.clientWidth - 4) / width));
    const zoom = scale => {
      state.scale = Math.min(3, Math.max(.15, scale));
      svg.setAttribute("width", Math.round(width * state.scale));
      svg.setAttribute("height", Math.round(height * state.scale));
      more.textContent = place.scrollWidth > place.clientWidth || place.scrollHeight > place.clientHeight ? words.more : "";
    };
    const button = (name, sign, act) => {
      const made = document.createElement("button");
      made.type = "button"; made.textContent = sign; made.title = words[name]; made.setAttribute("aria-label", words[name]);
      made.addEventListener("click", act);
      return made;
    };
    const tools = document.createElement("div");
    tools.className = "tools";
    const more = document.createElement("span");
    tools.append(button("in", "+", () => zoom(state.scale * 1.25)), button("out", "−", () => zoom(state.scale / 1.25)), button("fit", "⤢", () => zoom(fit())), more);
    place.replaceChildren(tools, svg);
    zoom(state.scale || fit());
    // A graph that is larger than its frame begins with what has failed.
    const failed = said.boxes.find(box => box.state === "failed");
    if (!known && failed) {
      const { x, y } = graph.node(failed.id);
      place.scrollTo(x * state.scale - place.clientWidth / 2, y * state.scale - place.clientHeight / 2);
    }
    shown.set(place, state);
  }

  document.addEventListener("htmx:after:swap", drawAll);
  document.addEventListener("DOMContentLoaded", drawAll);
})();
