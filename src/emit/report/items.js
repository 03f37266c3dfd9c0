/* Items: the boxes of the graph. A plan is a list of nodes; consecutive nodes of one module are one call of it, so that
 * every box is an interval of the list and edges between boxes only ever go forward.
 *
 * Children are made when a box is opened. A module that does one thing is shown as that thing, and what has very many
 * children is shown in runs, so that no box opens into more than a screen can hold. */

const CHILDREN_MAX = 180,
  RUNS = 60;

/* Modules around a node, outermost first, without the root. */
const scopeChains = plan.scopePath.map(() => null);
function scopeChain(s) {
  if (s < 0) return [];
  if (!scopeChains[s]) scopeChains[s] = [...scopeChain(plan.scopeParent[s]), ...(scopePath(s) === '' ? [] : [s])];
  return scopeChains[s];
}

const rootScope = plan.scopePath.findIndex(id => text(id) === '');

function newGroup(scope, parent, first) {
  return {scope, first, last: first, entries: [], call: 0, parent};
}

/* The tree of calls: entries are nodes (numbers) and groups. */
const callTree = (() => {
  const calls = new Map();
  const root = newGroup(rootScope, null, 0);
  let open = [root];
  for (let n = 0; n < nodeCount; n++) {
    const chain = scopeChain(plan.nodeScope[n]);
    let depth = 0;
    while (depth < chain.length && depth + 1 < open.length && open[depth + 1].scope === chain[depth]) depth++;
    open.length = depth + 1;
    for (; depth < chain.length; depth++) {
      const group = newGroup(chain[depth], open[depth], n);
      group.call = (calls.get(group.scope) || 0) + 1;
      calls.set(group.scope, group.call);
      open[depth].entries.push(group);
      open.push(group);
    }
    open[depth].entries.push(n);
    for (const group of open) group.last = n;
  }
  root.calls = calls;
  return root;
})();

const items = []; /* by id; only those that were made so far */

function newItem(fields) {
  const item = {
    id: items.length,
    parent: null,
    group: null,
    node: -1,
    scope: -1,
    children: null,
    open: false,
    depth: 0,
    ...fields,
  };
  items.push(item);
  return item;
}

const rootItem = newItem({
  kind: 'module',
  group: callTree,
  scope: rootScope,
  first: 0,
  last: nodeCount - 1,
  open: true,
});

/* The path below the module that the box around it stands for. */
function pathBelow(scope, parent) {
  const above = scopePath(parent.scope),
    path = scopePath(scope);
  return above && path.startsWith(above + '.') ? path.slice(above.length + 1) : path;
}

function makeChild(entry, parent) {
  let scope = -1,
    call = 0;
  while (typeof entry !== 'number' && entry.run === undefined) {
    scope = entry.scope;
    call = entry.call;
    if (entry.entries.length > 1) break;
    entry = entry.entries[0];
  }
  const base = {parent, depth: parent.depth + 1};
  if (typeof entry === 'number')
    return newItem({...base, kind: 'op', node: entry, first: entry, last: entry, scope, call});
  const run = entry.run !== undefined;
  return newItem({
    ...base,
    kind: run ? 'run' : 'module',
    group: entry,
    first: entry.first,
    last: entry.last,
    scope: run ? parent.scope : scope,
    call,
  });
}

const entryFirst = e => (typeof e === 'number' ? e : e.first);
const entryLast = e => (typeof e === 'number' ? e : e.last);

function inRuns(entries) {
  if (entries.length <= CHILDREN_MAX) return entries;
  const size = Math.max(50, Math.ceil(entries.length / RUNS)),
    out = [];
  for (let i = 0; i < entries.length; i += size) {
    const part = entries.slice(i, i + size);
    out.push({run: i, first: entryFirst(part[0]), last: entryLast(part[part.length - 1]), entries: part});
  }
  return out;
}

const inputItems = [];
function childrenOf(item) {
  if (item.children) return item.children;
  item.children = inRuns(item.group.entries).map(e => makeChild(e, item));
  if (item === rootItem) addEnds(item);
  return item.children;
}

/* The root also holds what comes in, before its nodes, and what goes out, after them. */
function addEnds(root) {
  plan.inputs.forEach((v, i) => {
    inputItems.push(newItem({kind: 'input', parent: root, value: v, index: i, first: -1, last: -1, depth: 1}));
  });
  root.outputItem = newItem({kind: 'output', parent: root, first: nodeCount, last: nodeCount, depth: 1});
  root.children = [...inputItems, ...root.children, root.outputItem];
}

const canOpen = item => item.group !== null;

/* The deepest box, existing or not yet made, for a node: opens everything above it. */
function revealNode(n) {
  let item = rootItem;
  while (canOpen(item)) {
    item.open = true;
    item = childrenOf(item).find(c => c.first <= n && n <= c.last);
  }
  return item;
}

/* The box of the first call of a module; what is around it is opened, it is not. A module that does one thing has the box
   of that thing, one that holds only another module has that one's. */
function revealScope(scope) {
  let group = null;
  const seek = g => {
    for (const e of g.entries) {
      if (typeof e === 'number' || !scopeChain(scope).includes(e.scope)) continue;
      if (e.scope === scope) return e;
      const found = seek(e);
      if (found) return found;
    }
    return null;
  };
  group = seek(callTree);
  if (!group) return rootItem;
  let item = rootItem;
  while (canOpen(item) && !(item.first === group.first && item.last === group.last && item !== rootItem)) {
    item.open = true;
    const next = childrenOf(item).find(c => c.first <= group.first && group.last <= c.last);
    if (!next) break;
    item = next;
  }
  return item;
}

/* ---- what a box says ---- */

function itemTitle(item) {
  switch (item.kind) {
    case 'input':
      return text(plan.valueName[item.value]) || 'input ' + item.index;
    case 'output':
      return 'output';
    case 'run':
      return `${plan.nodeName[item.first]} \u2026 ${plan.nodeName[item.last]}`;
    case 'op':
      return item.scope >= 0 ? pathBelow(item.scope, item.parent) : opName(item.node);
    default:
      return item === rootItem ? plan.title : pathBelow(item.scope, item.parent);
  }
}

function itemClass(item) {
  if (item.kind === 'op') return item.scope >= 0 ? scopeClass(item.scope) : '';
  return item.kind === 'module' ? scopeClass(item.scope) : '';
}

const itemCall = item => (item.call > 1 || (callTree.calls.get(item.scope) > 1 && item.call === 1) ? item.call : 0);

/* The first tensor that leaves a box. */
function itemResult(item) {
  if (item.kind === 'input') return item.value;
  if (item.kind === 'output') return -1;
  const found = plan.nodeResults[item.last].find(isTensor);
  return found === undefined ? -1 : found;
}

function itemNote(item) {
  if (item.kind === 'output') return plan.outputs.length === 1 ? '1 tensor' : `${plan.outputs.length} values`;
  const v = itemResult(item);
  const shape = v < 0 ? '' : plan.valueNdim[v] === 1 ? `[${shapeText(v)}]` : shapeText(v) || 'scalar';
  if (item.kind === 'run') return `${showInt(item.last - item.first + 1)} nodes`;
  return shape;
}

/* Distinct parameters that the nodes of a box read: [values]. */
function itemParams(item) {
  if (!item.params) {
    const found = new Set();
    for (let n = Math.max(0, item.first); n <= item.last && n < nodeCount; n++)
      for (const v of plan.nodeArgs[n]) if (plan.valueKind[v] === KIND.param) found.add(v);
    item.params = [...found];
  }
  return item.params;
}

const paramCount = item => itemParams(item).reduce((sum, v) => sum + elements(v, state.costs.exprs), 0);

function itemFlops(item) {
  if (item.first < 0 || item.first >= nodeCount) return 0;
  const {flopsUpTo, nodeFlops} = state.costs;
  return flopsUpTo[item.last] - flopsUpTo[item.first] + nodeFlops[item.first];
}

/* ---- edges between nodes ---- */

/* Sources of each node as [source, value, …]: nodes are numbers from 0, input i is -1-i. What was written in place since
   is a source too, though no argument names it. */
const nodeSources = (() => {
  const inputOf = new Map(plan.inputs.map((v, i) => [v, i]));
  const writer = new Int32Array(plan.valueKind.length).fill(-1);
  return plan.nodeArgs.map((args, n) => {
    const out = [];
    for (const v of new Set(args)) addSources(out, v, inputOf, writer);
    if (plan.nodeWrites[n]) for (const v of plan.nodeWrites[n]) writer[plan.valueRoot[v]] = n;
    return out;
  });
})();

function addSources(out, v, inputOf, writer) {
  const def = plan.valueDef[v],
    wrote = writer[plan.valueRoot[v]];
  if (def >= 0) out.push(def, v);
  else if (inputOf.has(v)) out.push(-1 - inputOf.get(v), v);
  if (wrote >= 0 && wrote > def) out.push(wrote, v);
}

const outputSources = (() => {
  const inputOf = new Map(plan.inputs.map((v, i) => [v, i]));
  const out = [];
  for (const v of new Set([...plan.outputs, ...plan.rebinds.map(r => r[1])]))
    addSources(out, v, inputOf, new Int32Array(plan.valueKind.length).fill(-1));
  return out;
})();
