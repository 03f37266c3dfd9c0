/* Lays out the boxes: layers from top to bottom, box by box from the innermost outwards.
 *
 * In each open box: children get layers (longest path), long edges get a lane through the layers between, layers are
 * ordered by barycentres, and x comes from least squares with a minimum distance (pool adjacent violators). An edge that
 * enters or leaves an open box does so at a port, which is a place on its border; so every box is laid out on its own. */

const GAP = {x: 18, y: 30, lane: 12, pad: 16, head: 30};
const VISIBLE_MAX = 6000; /* boxes; more are not opened at once */

/* The boxes that are seen whole: not open, or without children. In plan order. */
function visibleLeaves() {
  const out = [];
  const walk = item => {
    for (const c of childrenOf(item))
      if (c.open && canOpen(c)) walk(c);
      else out.push(c);
  };
  walk(rootItem);
  return out;
}

/* Edges between visible boxes: {from, to, uses: [source, target node, value, …]}. */
function visibleEdges(leaves) {
  const leafOf = new Int32Array(nodeCount);
  leaves.forEach((leaf, i) => {
    if (leaf.first >= 0 && leaf.first < nodeCount) leafOf.fill(i, leaf.first, leaf.last + 1);
  });
  const found = new Map();
  const add = (from, to, s, n, v) => {
    if (from === to) return;
    const key = from.id * 4294967296 + to.id;
    let edge = found.get(key);
    if (!edge) found.set(key, (edge = {from, to, uses: []}));
    edge.uses.push(s, n, v);
  };
  const source = s => (s >= 0 ? leaves[leafOf[s]] : inputItems[-1 - s]);
  nodeSources.forEach((list, n) => {
    for (let i = 0; i < list.length; i += 2) add(source(list[i]), leaves[leafOf[n]], list[i], n, list[i + 1]);
  });
  for (let i = 0; i < outputSources.length; i += 2)
    add(source(outputSources[i]), rootItem.outputItem, outputSources[i], nodeCount, outputSources[i + 1]);
  return [...found.values()];
}

/* A net is what one source sends through one open box: from a child or a port, to children and perhaps out again. */
function netOf(box, source, from) {
  let net = box.nets.get(source.id);
  if (!net) box.nets.set(source.id, (net = {source, from, to: new Map(), lanes: null}));
  return net;
}

function addEdgeTo(net, target, edge) {
  if (!net.to.has(target)) net.to.set(target, []);
  net.to.get(target).push(edge);
}

const OUT = {id: -1}; /* the lower border, as a target */

/* Up from the source to the box that holds both ends, across it, and down to the target. */
function spreadEdge(edge) {
  let a = edge.from,
    b = edge.to;
  const up = [],
    down = [];
  while (a.depth > b.depth) {
    up.push(a);
    a = a.parent;
  }
  while (b.depth > a.depth) {
    down.push(b);
    b = b.parent;
  }
  while (a.parent !== b.parent) {
    up.push(a);
    down.push(b);
    a = a.parent;
    b = b.parent;
  }
  for (const x of up) addEdgeTo(netOf(x.parent, edge.from, x), OUT, edge);
  addEdgeTo(netOf(a.parent, edge.from, a), b, edge);
  for (const x of down) addEdgeTo(netOf(x.parent, edge.from, null), x, edge);
}

/* ---- layers ---- */

function assignLayers(box) {
  const layer = new Map(),
    into = new Map();
  for (const net of box.nets.values())
    for (const t of net.to.keys()) {
      if (t === OUT) continue;
      if (!into.has(t)) into.set(t, []);
      into.get(t).push(net);
    }
  for (const c of box.children) {
    const above = (into.get(c) || []).map(net => (net.from ? layer.get(net.from) + 1 : 0));
    layer.set(c, Math.max(0, ...above));
  }
  lowerSources(box, layer, into);
  return layer;
}

/* What nothing flows into stands just above its first user, not at the top. */
function lowerSources(box, layer, into) {
  const first = new Map();
  for (const net of box.nets.values())
    for (const t of net.to.keys())
      if (net.from && t !== OUT) first.set(net.from, Math.min(first.get(net.from) ?? Infinity, layer.get(t)));
  for (const c of box.children)
    if (!into.has(c) && first.has(c) && first.get(c) > layer.get(c) + 1) layer.set(c, first.get(c) - 1);
}

/* Vertices: boxes, lanes and ports, by layer; the upper border is row 0, layer i is row i + 1, the lower border the last. */
function makeRows(box, layer) {
  const count = 1 + Math.max(-1, ...layer.values());
  const rows = Array.from({length: count + 2}, () => []);
  const vertexOf = new Map();
  for (const c of box.children) {
    const v = {item: c, w: c.w, row: layer.get(c) + 1, up: [], down: [], x: 0};
    vertexOf.set(c, v);
    rows[v.row].push(v);
  }
  for (const net of box.nets.values()) addLanes(net, rows, vertexOf, count + 1);
  return rows;
}

const portOffset = (item, side, source) => (item && item.ports && item.ports[side].get(source.id)) || 0;

function link(a, b, net) {
  const solid = v => Boolean(v.item) || v.port; /* chains run straight, through ports too, and lanes run straight */
  const weight = solid(a) && solid(b) ? 10 : !solid(a) && !solid(b) ? 6 : 0.5;
  a.down.push({v: b, here: portOffset(a.item, 'out', net.source), there: portOffset(b.item, 'in', net.source), weight});
  b.up.push({v: a, here: portOffset(b.item, 'in', net.source), there: portOffset(a.item, 'out', net.source), weight});
}

function addLanes(net, rows, vertexOf, last) {
  const rowOf = t => (t === OUT ? last : vertexOf.get(t).row);
  const end = Math.max(...[...net.to.keys()].map(rowOf));
  let at = net.from ? vertexOf.get(net.from) : null;
  net.lanes = new Map(); /* by row; the first is where the net starts */
  for (let row = at ? at.row : 0; row < end || (row === end && net.to.has(OUT) && end === last); row++) {
    if (!at || row > at.row) {
      const lane = {item: null, port: row === 0 || row === last, w: GAP.lane, row, up: [], down: [], x: 0};
      rows[row].push(lane);
      if (at) link(at, lane, net);
      at = lane;
    }
    net.lanes.set(row, at);
    for (const t of net.to.keys()) if (t !== OUT && rowOf(t) === row + 1) link(at, vertexOf.get(t), net);
  }
}

/* ---- order and x ---- */

function orderRows(rows) {
  rows.forEach(row =>
    row.forEach((v, i) => {
      v.order = i;
    }),
  );
  const sweep = (row, side) => {
    for (const v of row) {
      let sum = 0,
        n = 0;
      for (const l of v[side]) {
        sum += l.v.order * l.weight;
        n += l.weight;
      }
      v.centre = n ? sum / n : v.order;
    }
    row.sort((a, b) => a.centre - b.centre || a.order - b.order);
    row.forEach((v, i) => {
      v.order = i - (row.length - 1) / 2;
    });
  };
  for (let pass = 0; pass < 4; pass++) {
    for (let r = 1; r < rows.length; r++) sweep(rows[r], 'up');
    for (let r = rows.length - 2; r >= 0; r--) sweep(rows[r], 'down');
  }
}

const distance = (a, b) => (a.w + b.w) / 2 + (a.item && b.item ? GAP.x : GAP.x * 0.6);

/* Moves the vertices of a row as near as possible to where they want to be, in order and apart. */
function settle(row, wanted, weights) {
  const offset = [0],
    blocks = [];
  for (let i = 1; i < row.length; i++) offset.push(offset[i - 1] + distance(row[i - 1], row[i]));
  for (let i = 0; i < row.length; i++) {
    let block = {x: wanted[i] - offset[i], weight: weights[i], n: 1};
    while (blocks.length && blocks[blocks.length - 1].x > block.x) {
      const before = blocks.pop(),
        weight = before.weight + block.weight;
      block = {x: (before.x * before.weight + block.x * block.weight) / weight, weight, n: before.n + block.n};
    }
    blocks.push(block);
  }
  let i = 0;
  for (const block of blocks) for (let n = 0; n < block.n; n++, i++) row[i].x = block.x + offset[i];
}

function pull(row, sides) {
  const wanted = [],
    weights = [];
  for (const v of row) {
    let sum = 0,
      n = 0;
    for (const side of sides)
      for (const l of v[side]) {
        sum += (l.v.x + l.there - l.here) * l.weight;
        n += l.weight;
      }
    wanted.push(n ? sum / n : v.x);
    weights.push((v.item || v.port ? 8 : 1) * (n ? 1 : 0.2));
  }
  settle(row, wanted, weights);
}

function placeRows(rows) {
  for (const row of rows) {
    const width = row.reduce((sum, v) => sum + v.w + GAP.x, 0);
    let x = -width / 2;
    for (const v of row) {
      v.x = x + v.w / 2;
      x += v.w + GAP.x;
    }
  }
  for (let pass = 0; pass < 6; pass++) {
    for (let r = 1; r < rows.length; r++) pull(rows[r], ['up']);
    for (let r = rows.length - 2; r >= 0; r--) pull(rows[r], ['down']);
  }
  for (let pass = 0; pass < 4; pass++) {
    for (let r = 0; r < rows.length; r++) pull(rows[r], ['up', 'down']);
    for (let r = rows.length - 1; r >= 0; r--) pull(rows[r], ['up', 'down']);
  }
  straighten(rows);
  straighten(rows);
}

/* The one link that a vertex keeps straight on a side: its heaviest, if there is only one such. */
function mainLink(v, side) {
  let best = null,
    same = false;
  for (const l of v[side]) {
    same = best !== null && l.weight === best.weight ? true : best === null || l.weight > best.weight ? false : same;
    if (best === null || l.weight > best.weight) best = l;
  }
  return same ? null : best;
}

/* Chains: vertices that are each other's main link, with the distance of each from the x of the first. */
function chains(rows) {
  const out = [],
    seen = new Set();
  for (const v of rows.flat()) {
    if (seen.has(v)) continue;
    const chain = [{v, dx: 0}];
    seen.add(v);
    for (let l = mainLink(v, 'down'); l; l = mainLink(l.v, 'down')) {
      const back = mainLink(l.v, 'up'),
        {v: above, dx} = chain[chain.length - 1];
      if (!back || back.v !== above || seen.has(l.v)) break;
      seen.add(l.v);
      chain.push({v: l.v, dx: dx + l.here - l.there});
    }
    if (chain.length > 1) out.push(chain);
  }
  return out.sort((a, b) => b.length - a.length);
}

/* Where the first of a chain may stand so that this one of it keeps its distance in its row. */
function roomFor({v, dx}, rows) {
  const row = rows[v.row],
    left = row[v.index - 1],
    right = row[v.index + 1];
  return {
    low: left ? left.x + distance(left, v) - dx : -Infinity,
    high: right ? right.x - distance(v, right) - dx : Infinity,
  };
}

function alignPart(part, low, high) {
  let sum = 0,
    weight = 0;
  for (const {v, dx} of part) {
    const w = v.item ? 8 : 1;
    sum += (v.x - dx) * w;
    weight += w;
  }
  const x = clamp(sum / weight, low, high);
  for (const {v, dx} of part) v.x = x + dx;
}

/* Puts every chain on one line, in parts where its neighbours leave no room for a whole one. */
function straighten(rows) {
  rows.forEach(row =>
    row.forEach((v, i) => {
      v.index = i;
    }),
  );
  for (const chain of chains(rows)) {
    let part = [],
      low = -Infinity,
      high = Infinity;
    for (const link of chain) {
      const room = roomFor(link, rows);
      if (Math.max(low, room.low) > Math.min(high, room.high)) {
        alignPart(part, low, high);
        [part, low, high] = [[], -Infinity, Infinity];
      }
      part.push(link);
      low = Math.max(low, room.low);
      high = Math.min(high, room.high);
    }
    alignPart(part, low, high);
  }
}

/* ---- a box from its rows ---- */

function layoutBox(box) {
  for (const c of box.children)
    if (c.open && canOpen(c)) layoutBox(c);
    else measure(c);
  const rows = makeRows(box, assignLayers(box));
  orderRows(rows);
  placeRows(rows);
  finishBox(box, rows);
}

function finishBox(box, rows) {
  const all = rows.flat();
  const left = Math.min(...all.map(v => v.x - v.w / 2)),
    right = Math.max(...all.map(v => v.x + v.w / 2));
  const head = box === rootItem ? 0 : GAP.head,
    pad = box === rootItem ? 0 : GAP.pad;
  const wide = box === rootItem ? 0 : headWidth(box);
  box.w = Math.max(right - left + 2 * pad, wide);
  const shift = (box.w - (right - left)) / 2 - left;
  let y = head + (rows[0].length ? GAP.y * 0.5 : pad * 0.4);
  const tops = [0],
    bottoms = [0];
  for (let r = 1; r < rows.length - 1; r++) {
    const height = Math.max(0, ...rows[r].map(v => (v.item ? v.item.h : 0)));
    tops[r] = y;
    bottoms[r] = y + height;
    y += height + GAP.y;
  }
  box.h = rows.length > 2 ? y - GAP.y + (rows[rows.length - 1].length ? GAP.y * 0.7 : pad) : head + pad;
  tops[rows.length - 1] = bottoms[rows.length - 1] = box.h;
  for (const v of all) {
    v.x += shift;
    if (v.item)
      Object.assign(v.item, {row: v.row, dx: v.x - v.w / 2, dy: (tops[v.row] + bottoms[v.row] - v.item.h) / 2});
  }
  setPorts(box, rows.length - 1);
  routeNets(box, tops, bottoms);
}

function setPorts(box, last) {
  box.ports = {in: new Map(), out: new Map()};
  for (const net of box.nets.values()) {
    if (!net.from && net.lanes.has(0)) box.ports.in.set(net.source.id, net.lanes.get(0).x - box.w / 2);
    if (net.to.has(OUT) && net.lanes.has(last)) box.ports.out.set(net.source.id, net.lanes.get(last).x - box.w / 2);
  }
}

/* Points of each edge within the box, from top to bottom. Lanes run straight through their row. */
function routeNets(box, tops, bottoms) {
  box.routes = [];
  for (const net of box.nets.values()) {
    const start = net.from
      ? {x: net.from.dx + net.from.w / 2 + portOffset(net.from, 'out', net.source), y: net.from.dy + net.from.h}
      : {x: net.lanes.get(0).x, y: 0};
    const rows = [...net.lanes.keys()].sort((a, b) => a - b);
    for (const [target, edges] of net.to) {
      const points = [start];
      for (const row of rows) {
        const lane = net.lanes.get(row);
        if (lane.item || row === 0) continue;
        if (target !== OUT && row >= target.row) break;
        points.push({x: lane.x, y: tops[row]});
        if (bottoms[row] > tops[row]) points.push({x: lane.x, y: bottoms[row]});
      }
      if (target !== OUT)
        points.push({x: target.dx + target.w / 2 + portOffset(target, 'in', net.source), y: target.dy});
      box.routes.push({points, edges, source: net.source});
    }
  }
}

/* ---- everything ---- */

function place(box, x, y, out) {
  box.x = x;
  box.y = y;
  for (const route of box.routes)
    out.routes.push({...route, points: route.points.map(p => ({x: p.x + x, y: p.y + y}))});
  for (const c of box.children) {
    out.boxes.push(c);
    c.x = x + c.dx;
    c.y = y + c.dy;
    if (c.open && canOpen(c)) place(c, c.x, c.y, out);
  }
}

/* -> {boxes, routes, edges, leaves}, with x, y, w, h at every box. */
function layoutAll() {
  const leaves = visibleLeaves(),
    edges = visibleEdges(leaves);
  const clear = box => {
    box.nets = new Map();
    for (const c of childrenOf(box)) if (c.open && canOpen(c)) clear(c);
  };
  clear(rootItem);
  for (const edge of edges) spreadEdge(edge);
  layoutBox(rootItem);
  const out = {boxes: [], routes: [], edges, leaves};
  place(rootItem, 0, 0, out);
  return out;
}
