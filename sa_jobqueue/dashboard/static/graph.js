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
    // Wider in steps, so that a number with one more digit moves nothing.
    for (const box of said.boxes)
      box.width = STEP * Math.ceil((Math.max(wide(titled(box), "600 13px system-ui"), wide(box.said, "12px system-ui")) + 2 * SPACE) / STEP);
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

    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-labelledby": place.getAttribute("aria-labelledby") },
      make("defs", {}, make("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
        make("path", { d: "M0,0 L8,4 L0,8 z", class: "tip" }))));
    for (const [from, to, policy] of said.edges)
      svg.append(make("path", { d: curve(graph.edge(from, to).points), class: policy === "cancel" ? "edge" : "edge loose", "marker-end": "url(#tip)" }));

    const state = { said: place.dataset.graph, shape, boxes: new Map(), scale: known ? known.scale : 0 };
    state.put = box => {
      const { x, y } = graph.node(box.id);
      const link = box.number > 1
        ? `${place.dataset.jobs}?workflow=${said.workflow}&task=${encodeURIComponent(box.task)}`
        : `${place.dataset.jobs}/${box.id}`;
      const text = (at, words, name) => make("text", { x: x - box.width / 2 + SPACE, y: y + at, class: name }, words);
      const drawn = make("a", { href: link, class: `box ${box.state}`, "data-box": box.id },
        make("title", {}, `${box.name}: ${box.said}`));
      // What stands for several looks like several.
      if (box.number > 1) drawn.append(make("rect", { x: x - box.width / 2 + 4, y: y - HIGH / 2 + 4, width: box.width, height: HIGH, rx: 7 }));
      drawn.append(make("rect", { x: x - box.width / 2, y: y - HIGH / 2, width: box.width, height: HIGH, rx: 7 }),
        text(-4, titled(box), "name"), text(13, box.said, "said"));
      state.boxes.set(box.id, drawn);
      return drawn;
    };
    for (const box of said.boxes) svg.append(state.put(box));

    const words = JSON.parse(place.dataset.words);
    const fit = () => Math.min(1, Math.max(.6, (place.clientWidth - 4) / width));
    const zoom = scale => {
      state.scale = Math.min(3, Math.max(.15, scale));
      svg.setAttribute("width", Math.round(width * state.scale));
      svg.setAttribute("height", Math.round(height * state.scale));
    };
    const button = (name, sign, act) => {
      const made = document.createElement("button");
      made.type = "button"; made.textContent = sign; made.title = words[name]; made.setAttribute("aria-label", words[name]);
      made.addEventListener("click", act);
      return made;
    };
    const tools = document.createElement("div");
    tools.className = "tools";
    tools.append(button("in", "+", () => zoom(state.scale * 1.25)), button("out", "−", () => zoom(state.scale / 1.25)), button("fit", "⤢", () => zoom(fit())));
    zoom(state.scale || fit());
    place.replaceChildren(tools, svg);
    shown.set(place, state);
  }

  // Through the points that dagre found, the first and last of which are on the edges of the boxes.
  function curve(points) {
    const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
    const middle = (one, other) => ({ x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 });
    let path = `M${at(points[0])}`;
    for (let i = 1; i < points.length - 1; i++)
      path += ` Q${at(points[i])} ${at(i === points.length - 2 ? points[i + 1] : middle(points[i], points[i + 1]))}`;
    return points.length > 2 ? path : `${path} L${at(points[points.length - 1])}`;
  }

  document.addEventListener("htmx:after:swap", drawAll);
  document.addEventListener("DOMContentLoaded", drawAll);
})();
