/* The graph: draws what lies in the window, colours it, and lets one move, open and choose. */

const pane = $('graph'),
  world = $('world');
const layersOf = {groups: $('groups'), edges: $('edges'), leaves: $('leaves'), notes: $('notes')};
const view = {x: 0, y: 0, scale: 1};
let drawing = {boxes: [], routes: [], edges: [], leaves: []};
const drawn = new Map(); /* box or route -> its element */

/* ---- measures ---- */

const widths = new Map();
const pen = document.createElement('canvas').getContext('2d');
function textWidth(s, font) {
  const key = font + s;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(s).width);
  }
  return widths.get(key);
}
const FONT = {title: '600 13px system-ui, sans-serif', note: '11px system-ui, sans-serif'};

function describe(item) {
  const cls = itemClass(item),
    call = itemCall(item);
  let title = shortened(itemTitle(item), 34);
  if (call) title += ` (${call})`;
  let note = shortened(itemNote(item), 38);
  if (item.kind === 'op' && item.scope >= 0) note = `${opName(item.node)}  ${note}`;
  return {title, cls: shortened(cls, 24), note};
}

/* A box that is not open: two lines, and a third for the work where it opens. */
function measure(item) {
  if (!item.face) item.face = describe(item);
  const {title, cls, note} = item.face;
  const head = textWidth(title, FONT.title) + (cls ? textWidth(cls, FONT.note) + 8 : 0);
  item.w = Math.max(84, Math.ceil(Math.max(head + (canOpen(item) ? 20 : 0), textWidth(note, FONT.note)) + 26));
  item.h = item.kind === 'input' || item.kind === 'output' ? 40 : canOpen(item) ? 52 : 44;
  item.ports = null;
}

function headWidth(box) {
  if (!box.face) box.face = describe(box);
  return textWidth(box.face.title, FONT.title) + textWidth(box.face.cls, FONT.note) + 60;
}

/* ---- elements ---- */

function boxElement(item) {
  const {note} = item.face,
    opens = canOpen(item),
    open = item.open && opens;
  const e = make('g', {
    class: `box ${item.kind}${open ? ' open' : ''}${opens ? ' opens' : ''}`,
    id: 'box-' + item.id,
    transform: `translate(${item.x} ${item.y})`,
    role: 'button',
    'aria-label': spoken(item),
    'aria-expanded': opens ? String(open) : null,
    'data-item': item.id,
  });
  if (opens && !open) e.append(make('rect', {class: 'under', x: 3, y: 3, width: item.w, height: item.h, rx: 9}));
  e.append(make('rect', {class: 'face', width: item.w, height: item.h, rx: open ? 12 : 9}));
  e.append(headText(item, opens ? 28 : 13, open ? 20 : 19));
  if (opens) e.append(make('path', {class: 'mark', d: open ? 'M12 13 l5 5 l5 -5' : 'M14 10 l5 5 l-5 5'}));
  if (!open) e.append(make('text', {class: 'note', x: opens ? 28 : 13, y: 35}, note));
  if (opens && !open) e.append(...workBar(item));
  return e;
}

function headText(item, x, y) {
  const head = make('text', {class: 'title', x, y}, item.face.title);
  if (item.face.cls) head.append(make('tspan', {class: 'class', dx: 8}, item.face.cls));
  return head;
}

/* The name of an open box once more, above the edges that enter it. */
const headAbove = item =>
  make(
    'g',
    {class: 'head', transform: `translate(${item.x} ${item.y})`, 'aria-hidden': 'true'},
    headText(item, 28, 20),
  );

/* How much of the work is done in a box. */
function workBar(item) {
  const share = state.costs.total ? itemFlops(item) / state.costs.total : 0;
  return [
    make('rect', {class: 'bar', x: 13, y: item.h - 9, width: item.w - 26, height: 3, rx: 1.5}),
    make('rect', {
      class: 'bar filled',
      x: 13,
      y: item.h - 9,
      width: Math.max(share > 0 ? 2 : 0, (item.w - 26) * share),
      height: 3,
      rx: 1.5,
    }),
  ];
}

function spoken(item) {
  const {title, cls, note} = item.face;
  const parts = [item.kind === 'run' ? 'nodes' : item.kind, title, cls, note];
  if (item.kind === 'module' || item.kind === 'run') parts.push(`${item.last - item.first + 1} nodes`);
  return parts.filter(Boolean).join(', ');
}

function routePath(points) {
  let d = `M${points[0].x} ${points[0].y}`;
  for (let i = 1; i < points.length; i++) {
    const a = points[i - 1],
      b = points[i],
      bend = (b.y - a.y) / 2;
    d += a.x === b.x ? `V${b.y}` : `C${a.x} ${a.y + bend} ${b.x} ${b.y - bend} ${b.x} ${b.y}`;
  }
  return d;
}

const routeElement = route => make('path', {class: 'edge', d: routePath(route.points)});

/* ---- what is drawn ---- */

function frameOf(route) {
  if (!route.frame) {
    const xs = route.points.map(p => p.x),
      ys = route.points.map(p => p.y);
    route.frame = {x: Math.min(...xs), y: Math.min(...ys), w: 0, h: 0};
    route.frame.w = Math.max(...xs) - route.frame.x;
    route.frame.h = Math.max(...ys) - route.frame.y;
  }
  return route.frame;
}

/* The window in the coordinates of the graph, with a margin so that little changes while it moves. */
function window_() {
  const w = pane.clientWidth,
    h = pane.clientHeight,
    margin = 200;
  return {
    left: (-view.x - margin) / view.scale,
    top: (-view.y - margin) / view.scale,
    right: (w - view.x + margin) / view.scale,
    bottom: (h - view.y + margin) / view.scale,
  };
}

const ELEMENTS_MAX = 5000;
let printing = false;

function seenThings() {
  const w = window_(),
    out = [];
  const inside = f => printing || (f.x < w.right && f.x + f.w > w.left && f.y < w.bottom && f.y + f.h > w.top);
  for (const box of drawing.boxes) if (inside(box)) out.push(box);
  for (const route of drawing.routes) {
    if (out.length > ELEMENTS_MAX) break;
    if (inside(frameOf(route))) out.push(route);
  }
  return out.length > ELEMENTS_MAX ? out.slice(0, ELEMENTS_MAX) : out;
}

function drawSeen() {
  world.setAttribute('transform', printing ? '' : `translate(${view.x} ${view.y}) scale(${view.scale})`);
  pane.classList.toggle('far', !printing && view.scale < 0.42);
  pane.classList.toggle('very-far', !printing && view.scale < 0.2);
  const seen = new Set(seenThings());
  for (const [thing, e] of drawn)
    if (!seen.has(thing)) {
      dropElement(e);
      drawn.delete(thing);
    }
  for (const thing of seen) if (!drawn.has(thing)) addElement(thing);
}

function addElement(thing) {
  const route = thing.points !== undefined;
  const e = route ? routeElement(thing) : boxElement(thing);
  drawn.set(thing, e);
  const open = !route && thing.open && canOpen(thing);
  (route ? layersOf.edges : open ? layersOf.groups : layersOf.leaves).append(e);
  if (open) layersOf.leaves.append((e.head = headAbove(thing)));
  if (route) colourRoute(thing, e);
  else colourBox(thing, e);
}

function dropElement(e) {
  if (e.head) e.head.remove();
  e.remove();
}

let frame = 0;
function redrawSoon() {
  if (!frame)
    frame = requestAnimationFrame(() => {
      frame = 0;
      drawSeen();
    });
}

function clearDrawn() {
  for (const e of drawn.values()) dropElement(e);
  drawn.clear();
}

/* Lays out again; `anchor` keeps its place on the screen. */
function relayout(anchor) {
  const before = anchor && anchor.x !== undefined ? {x: anchor.x, y: anchor.y} : null;
  drawing = layoutAll();
  clearDrawn();
  if (before) {
    view.x += (before.x - anchor.x) * view.scale;
    view.y += (before.y - anchor.y) * view.scale;
  }
  drawSeen();
  colourAll();
}

/* ---- colours ---- */

const sideOf = (item, cut) => (cut < 0 || item.last <= cut ? 'prefix' : item.first > cut ? 'suffix' : 'both');
const hueOf = i => `hsl(${Math.round((i * 137.508 + 190) % 360)} 45% 50%)`;

function mixOf(item, of) {
  const found = new Set();
  for (let n = Math.max(0, item.first); n <= item.last && n < nodeCount && found.size < 2; n++) found.add(of[n]);
  return found.size === 1 ? [...found][0] : -1;
}

const COLOURS = {
  cut(item, e) {
    const side =
      state.cut < 0
        ? 'none'
        : item.kind === 'output'
          ? 'suffix'
          : item.kind === 'input'
            ? 'prefix'
            : sideOf(item, state.cut);
    e.dataset.side = side;
    if (side === 'both' && !e.classList.contains('open')) splitFace(item);
  },
  stages(item, e) {
    const stage = item.first < 0 || item.first >= nodeCount ? -1 : mixOf(item, plan.stageOf);
    e.dataset.group = stage;
    e.style.setProperty('--hue', stage < 0 ? 'var(--muted)' : hueOf(stage));
    if (stage < 0 && item.kind !== 'input' && item.kind !== 'output' && !e.classList.contains('open')) stripe(item, e);
  },
  segments(item, e) {
    const segment = item.first < 0 || item.first >= nodeCount ? -1 : mixOf(item, plan.segmentOf);
    e.dataset.group = segment;
    e.dataset.compiled = segment < 0 ? mixOfCompiled(item) : plan.segments[segment][0] ? 'yes' : 'no';
  },
  work(item, e) {
    const share = state.costs.total ? itemFlops(item) / state.costs.total : 0;
    e.style.setProperty('--heat', Math.sqrt(share).toFixed(3));
  },
};

/* A closed box of several stages shows them in their order, each as high as it has nodes. */
function stripe(item, e) {
  const id = 'stripes-' + item.id,
    count = item.last - item.first + 1,
    stops = [];
  for (let n = item.first; n <= item.last && stops.length < 64; n++) {
    if (n > item.first && plan.stageOf[n] === plan.stageOf[n - 1]) continue;
    const at = (n - item.first) / count;
    if (stops.length) stops.push(make('stop', {offset: at, class: 'stripe'}));
    stops.push(make('stop', {offset: at, class: 'stripe'}));
    for (const s of stops.slice(-1)) s.style.setProperty('--hue', hueOf(plan.stageOf[n]));
    if (stops.length > 1) stops[stops.length - 2].style.setProperty('--hue', hueOf(plan.stageOf[n - 1]));
  }
  if ($(id)) $(id).remove();
  e.prepend(make('linearGradient', {id, x1: 0, y1: 0, x2: 0, y2: 1}, ...stops));
  e.querySelector('.face').style.fill = `url(#${id})`;
}

/* A box of several segments: all compiled, none, or some. */
function mixOfCompiled(item) {
  if (item.first < 0 || item.first >= nodeCount) return 'none';
  const found = new Set();
  for (let n = item.first; n <= item.last && found.size < 2; n++) found.add(plan.segments[plan.segmentOf[n]][0]);
  return found.size > 1 ? 'some' : found.has(1) ? 'yes' : 'no';
}

/* At most one box that is not open has nodes on both sides; it is coloured in the share of its nodes. */
function splitFace(item) {
  const share = `${(100 * (state.cut - item.first + 1)) / (item.last - item.first + 1)}%`;
  for (const stop of document.querySelectorAll('#both stop[data-cut]')) stop.setAttribute('offset', share);
}

function colourBox(item, e) {
  e.classList.toggle('selected', item === state.selected);
  COLOURS[state.colour](item, e);
}

const useCrosses = (s, n) => s <= state.cut && n > state.cut;

function crossingUse(edge) {
  if (state.cut < 0 || edge.from.first > state.cut || edge.to.last <= state.cut) return false;
  for (let i = 0; i < edge.uses.length; i += 3) if (useCrosses(edge.uses[i], edge.uses[i + 1])) return true;
  return false;
}

function colourRoute(route, e) {
  const crossing = state.colour === 'cut' && route.edges.some(crossingUse);
  const near = state.selected && route.edges.some(x => x.from === state.selected || x.to === state.selected);
  e.classList.toggle('crossing', crossing);
  e.classList.toggle('near', Boolean(near));
}

function colourAll() {
  pane.dataset.colour = state.colour;
  const raised = [];
  for (const [thing, e] of drawn) {
    if (thing.points) {
      colourRoute(thing, e);
      if (e.classList.contains('crossing') || e.classList.contains('near')) raised.push(e);
    } else colourBox(thing, e);
  }
  layersOf.edges.append(...raised);
  noteCrossing();
}

/* What crosses is written once at each box that it comes from. */
function noteCrossing() {
  layersOf.notes.replaceChildren();
  if (state.colour !== 'cut' || state.cut < 0) return;
  const sources = new Map();
  for (const edge of drawing.edges) {
    if (!crossingUse(edge)) continue;
    if (!sources.has(edge.from)) sources.set(edge.from, new Set());
    for (let i = 0; i < edge.uses.length; i += 3)
      if (useCrosses(edge.uses[i], edge.uses[i + 1])) sources.get(edge.from).add(edge.uses[i + 2]);
  }
  for (const [item, values] of [...sources].slice(0, 40)) layersOf.notes.append(crossingNote(item, [...values]));
  const split = drawing.leaves.find(b => b.first <= state.cut && b.last > state.cut);
  if (split) layersOf.notes.append(splitNote(split));
}

/* The cut goes through a closed box. */
function splitNote(item) {
  const y = item.y + (item.h * (state.cut - item.first + 1)) / (item.last - item.first + 1);
  return make(
    'g',
    {class: 'split-note'},
    make('line', {x1: item.x - 10, x2: item.x + item.w + 10, y1: y, y2: y}),
    pill(showBytes(state.costs.bytes[state.cut]), item.x + item.w + 10, y - 9),
  );
}

function pill(label, x, y) {
  return make(
    'g',
    {class: 'crossing-note', transform: `translate(${x} ${y})`},
    make('rect', {width: textWidth(label, FONT.note) + 16, height: 18, rx: 9}),
    make('text', {x: 7, y: 12.5}, label),
  );
}

function crossingNote(item, values) {
  const bytes = values.reduce((sum, v) => sum + state.costs.valueBytes[v], 0);
  return pill(showBytes(bytes), item.x + item.w / 2 + 6, item.y + item.h + 5);
}

/* ---- opening, choosing, moving ---- */

function toggleItem(item) {
  if (!canOpen(item) || item === rootItem) return;
  item.open = !item.open;
  if (item.open && drawing.leaves.length + childrenOf(item).length > VISIBLE_MAX) {
    item.open = false;
    say(`More than ${showInt(VISIBLE_MAX)} boxes would be open; close some first`);
    return;
  }
  relayout(item);
  if (item === state.selected) showDetails(item);
  say(`${itemTitle(item)} ${item.open ? 'opened' : 'closed'}`);
}

/* What is seen first: the modules that do the most are opened until there is something to look at. */
function openFirst() {
  for (let seen = childrenOf(rootItem).length; seen < FIRST_MIN;) {
    const closed = visibleLeaves().filter(b => canOpen(b) && seen + childrenOf(b).length <= FIRST_MAX);
    if (!closed.length) return;
    const most = closed.reduce((a, b) => (itemFlops(b) > itemFlops(a) ? b : a));
    most.open = true;
    seen += childrenOf(most).length - 1;
  }
}
const FIRST_MIN = 9,
  FIRST_MAX = 40;

/* Opens level by level while there is room. */
function openAll() {
  let level = childrenOf(rootItem),
    count = level.length;
  while (level.length) {
    const next = [];
    for (const item of level) {
      if (!canOpen(item)) continue;
      const more = childrenOf(item).length;
      if (count + more > OPEN_ALL_MAX) {
        say(`Opened the first ${showInt(count)} boxes`);
        return finishOpening();
      }
      item.open = true;
      count += more;
      next.push(...childrenOf(item));
    }
    level = next;
  }
  finishOpening();
}
const OPEN_ALL_MAX = 1500;

function finishOpening() {
  relayout(null);
  fit();
}

function closeAll() {
  for (const item of items) if (item !== rootItem) item.open = false;
  if (state.selected && !isSeen(state.selected)) state.selected = null;
  relayout(null);
  fit();
}

function isSeen(item) {
  for (let p = item.parent; p; p = p.parent) if (!p.open) return false;
  return true;
}

function moveView(to, animate = true) {
  const from = {...view},
    start = performance.now();
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  if (!animate || still || !document.hasFocus()) {
    Object.assign(view, to);
    drawSeen();
    return;
  }
  const turn = ++moveView.turn;
  const step = now => {
    if (turn !== moveView.turn) return;
    const t = Math.min(1, (now - start) / 260),
      ease = 1 - (1 - t) ** 3;
    for (const key of ['x', 'y', 'scale']) view[key] = from[key] + (to[key] - from[key]) * ease;
    drawSeen();
    if (t < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
moveView.turn = 0;

/* The whole graph where it stays readable, else its full width from the top, else what it begins with. */
function fit(animate = true) {
  const w = pane.clientWidth,
    h = pane.clientHeight,
    margin = w < 600 ? 54 : 28,
    first = drawing.leaves[0];
  const across = (w - 2 * margin) / rootItem.w,
    whole = Math.min(across, (h - 2 * margin) / rootItem.h);
  const scale = clamp(Math.max(whole, Math.min(across, 0.75)), 0.6, 1.25);
  const middle = rootItem.w * scale > w && first ? first.x + first.w / 2 : rootItem.w / 2;
  moveView({scale, x: w / 2 - middle * scale, y: Math.max(margin, (h - rootItem.h * scale) / 2)}, animate);
}

function fitWhole() {
  const w = pane.clientWidth,
    h = pane.clientHeight,
    margin = 20;
  const scale = clamp(Math.min((w - 2 * margin) / rootItem.w, (h - 2 * margin) / rootItem.h), 0.02, 1.25);
  moveView({scale, x: (w - rootItem.w * scale) / 2, y: (h - rootItem.h * scale) / 2});
}

function zoom(factor, x = pane.clientWidth / 2, y = pane.clientHeight / 2, animate = true) {
  const scale = clamp(view.scale * factor, 0.02, 3),
    by = scale / view.scale;
  moveView({scale, x: x - (x - view.x) * by, y: y - (y - view.y) * by}, animate);
}

/* Brings a box into the middle, near enough to read. */
function show(item) {
  const scale = clamp(view.scale, 0.7, 1.3);
  const tall = item.h * scale > pane.clientHeight * 0.8;
  moveView({
    scale,
    x: pane.clientWidth / 2 - (item.x + item.w / 2) * scale,
    y: tall ? 40 - item.y * scale : pane.clientHeight / 2 - (item.y + item.h / 2) * scale,
  });
}

/* Only as far as needed. */
function showIfHidden(item) {
  const left = item.x * view.scale + view.x,
    top = item.y * view.scale + view.y,
    margin = 24;
  const right = left + item.w * view.scale,
    bottom = top + Math.min(item.h * view.scale, 80);
  if (left < margin || top < margin || right > pane.clientWidth - margin || bottom > pane.clientHeight - margin)
    show(item);
}

function select(item, options = {}) {
  state.selected = item;
  colourAll();
  showDetails(item);
  if (item) {
    pane.setAttribute('aria-activedescendant', 'box-' + item.id);
    if (options.announce !== false) say(spoken(item));
  } else pane.removeAttribute('aria-activedescendant');
}

/* The box nearest in a direction; along edges where there are any. */
function neighbour(item, key) {
  const next = new Set();
  if (key === 'ArrowDown') for (const e of drawing.edges) if (e.from === item) next.add(e.to);
  if (key === 'ArrowUp') for (const e of drawing.edges) if (e.to === item) next.add(e.from);
  const middle = item.x + item.w / 2,
    centre = item.y + item.h / 2;
  if (key === 'ArrowLeft' || key === 'ArrowRight') {
    const sign = key === 'ArrowLeft' ? -1 : 1;
    for (const b of drawing.leaves)
      if ((b.x + b.w / 2 - middle) * sign > 1 && Math.abs(b.y + b.h / 2 - centre) < 120) next.add(b);
  }
  const far = b => Math.abs(b.x + b.w / 2 - middle) + Math.abs(b.y + b.h / 2 - centre) * 1.5;
  if (next.size) return [...next].sort((a, b) => far(a) - far(b))[0];
  return key === 'ArrowDown' || key === 'ArrowUp' ? inOrder(item, key === 'ArrowDown' ? 1 : -1) : null;
}

function inOrder(item, by) {
  const i = drawing.leaves.indexOf(item);
  return i < 0 ? drawing.leaves[0] : drawing.leaves[clamp(i + by, 0, drawing.leaves.length - 1)];
}

const GRAPH_KEYS = {
  Enter: item => item && toggleItem(item),
  ' ': item => item && toggleItem(item),
  c: item => item && cutAfter(item),
  Escape: item => item && select(item.parent && item.parent !== rootItem ? item.parent : null),
  Home: () => choose(drawing.leaves[0]),
  End: () => choose(drawing.leaves[drawing.leaves.length - 1]),
  '+': () => zoom(1.25),
  '=': () => zoom(1.25),
  '-': () => zoom(0.8),
  0: () => fit(),
};

function choose(item) {
  if (!item) return;
  select(item);
  showIfHidden(item);
}

function onGraphKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const item = state.selected;
  if (event.key.startsWith('Arrow')) choose(item && isSeen(item) ? neighbour(item, event.key) : drawing.leaves[0]);
  else if (GRAPH_KEYS[event.key]) GRAPH_KEYS[event.key](item);
  else return;
  event.preventDefault();
}

/* ---- pointer ---- */

const itemAt = target => {
  const e = target.closest && target.closest('[data-item]');
  return e ? items[Number(e.dataset.item)] : null;
};

const pointers = new Map();
let dragged = false;

function onPointerDown(event) {
  if (event.button > 0) return;
  pointers.set(event.pointerId, {x: event.clientX, y: event.clientY});
  if (pointers.size === 1) dragged = false;
  moveView.turn++;
}

function onPointerMove(event) {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const now = {x: event.clientX, y: event.clientY};
  if (!dragged && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
  if (!dragged) {
    dragged = true;
    pane.setPointerCapture(event.pointerId);
    pane.classList.add('dragging');
  }
  if (pointers.size === 2) pinch(event.pointerId, now);
  else {
    view.x += now.x - before.x;
    view.y += now.y - before.y;
  }
  pointers.set(event.pointerId, now);
  redrawSoon();
}

function pinch(id, now) {
  const [a, b] = [...pointers.entries()],
    other = (a[0] === id ? b : a)[1],
    before = pointers.get(id);
  const far = Math.hypot(before.x - other.x, before.y - other.y) || 1;
  const box = pane.getBoundingClientRect();
  zoom(Math.hypot(now.x - other.x, now.y - other.y) / far, other.x - box.left, other.y - box.top, false);
}

function onPointerUp(event) {
  pointers.delete(event.pointerId);
  if (!pointers.size) pane.classList.remove('dragging');
}

function onGraphClick(event) {
  if (dragged) return;
  const item = itemAt(event.target);
  if (!item) return select(null);
  select(item, {announce: false});
  if (canOpen(item) && (!item.open || isHead(item, event))) toggleItem(item);
}

/* An open box closes at its head alone: the rest of it is ground to click on. */
function isHead(item, event) {
  const y = (event.clientY - pane.getBoundingClientRect().top - view.y) / view.scale;
  return y < item.y + GAP.head;
}

function onWheel(event) {
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 18 : 1;
  if (event.ctrlKey || event.metaKey) {
    const box = pane.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * unit * 0.0045), event.clientX - box.left, event.clientY - box.top, false);
    return;
  }
  view.x -= (event.shiftKey ? event.deltaY : event.deltaX) * unit;
  view.y -= (event.shiftKey ? 0 : event.deltaY) * unit;
  redrawSoon();
}

function startGraph() {
  pane.addEventListener('pointerdown', onPointerDown);
  pane.addEventListener('pointermove', onPointerMove);
  pane.addEventListener('pointerup', onPointerUp);
  pane.addEventListener('pointercancel', onPointerUp);
  pane.addEventListener('click', onGraphClick);
  pane.addEventListener('wheel', onWheel, {passive: false});
  pane.addEventListener('keydown', onGraphKey);
  $('zoom-in').addEventListener('click', () => zoom(1.3));
  $('zoom-out').addEventListener('click', () => zoom(1 / 1.3));
  $('zoom-fit').addEventListener('click', fitWhole);
  $('open-all').addEventListener('click', openAll);
  $('close-all').addEventListener('click', closeAll);
  new ResizeObserver(redrawSoon).observe(pane);
}
