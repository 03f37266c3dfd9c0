/* Computes the cost of every frontier at given sizes, and its time over a link.
 *
 * At the sizes that the page opens with the numbers are those that C counted. At other sizes they are counted here, the
 * way src/split/frontier.c does: every value is alive over an interval of positions, so all are sums over intervals. */

const firstUse = (() => {
  const first = Int32Array.from(plan.valueLast);
  for (let n = nodeCount - 1; n >= 0; n--) {
    for (const v of plan.nodeArgs[n]) first[v] = n;
    if (plan.nodeWrites[n]) for (const v of plan.nodeWrites[n]) first[v] = n;
  }
  return first;
})();
const born = v => (plan.valueKind[v] === KIND.input ? 0 : plan.valueDef[v]);

/* Positions at which a value crosses: from born up to, not with, the end. */
const crossEnd = v => Math.min(plan.valueLast[v], cutCount);
const crosses = (v, k) => isTensor(v) && moves(v) && plan.valueLast[v] >= 0 && born(v) <= k && k < crossEnd(v);

function crossingValues(k) {
  const out = [];
  for (let v = 0; v < plan.valueKind.length; v++) if (crosses(v, k)) out.push(v);
  return out;
}

function elements(v, sizes, signed) {
  let n = 1;
  for (let d = 0; d < plan.valueNdim[v]; d++) {
    const size = sizes[plan.dims[plan.valueShape[v] + d]];
    n *= signed ? size : Math.max(size, 0);
  }
  return n;
}

function countFlops(exprs) {
  return Float64Array.from(plan.nodeWork, ([factor, of, first, n], i) => {
    let work = factor;
    if (of >= 0) work *= elements(of, exprs, true);
    else work *= plan.nodeResults[i].reduce((sum, v) => sum + (isTensor(v) ? elements(v, exprs, true) : 0), 0);
    for (let d = 0; d < n; d++) work *= exprs[plan.dims[first + d]];
    return work > 0 ? work : 0;
  });
}

const runningSum = column => {
  let sum = 0;
  return column.map(x => (sum += x));
};

/* amount[k] for k in [from, to) */
function addOver(column, from, to, amount) {
  if (from >= to) return;
  column[from] += amount;
  column[to] -= amount;
}

function countBytes(valueBytes) {
  const column = new Float64Array(cutCount + 1);
  for (let v = 0; v < valueBytes.length; v++)
    if (isTensor(v) && moves(v) && plan.valueLast[v] >= 0) addOver(column, born(v), crossEnd(v), valueBytes[v]);
  return runningSum(column);
}

/* Bytes of the model's own tensors on each side, and the most that inputs and results take at one time. */
function countMemory(valueBytes) {
  const first = Int32Array.from(firstUse),
    last = Int32Array.from(plan.valueLast);
  const own = {prefix: new Float64Array(nodeCount + 1), suffix: new Float64Array(nodeCount + 1)};
  const live = new Float64Array(nodeCount + 2);
  plan.valueRoot.forEach((root, v) => {
    if (root === v || first[v] < 0) return;
    first[root] = first[root] < 0 ? first[v] : Math.min(first[root], first[v]);
    last[root] = Math.max(last[root], last[v]);
  });
  plan.valueRoot.forEach((root, v) => {
    if (root !== v || !isTensor(v)) return;
    if (moves(v)) addOver(live, born(v), Math.min(last[v] < 0 ? born(v) : last[v], nodeCount - 1) + 1, valueBytes[v]);
    else if (first[v] >= 0) {
      addOver(own.prefix, Math.min(first[v], cutCount), cutCount, valueBytes[v]);
      addOver(own.suffix, 0, Math.min(last[v], cutCount), valueBytes[v]);
    }
  });
  return {prefix: runningSum(own.prefix), suffix: runningSum(own.suffix), live: runningSum(live)};
}

function peaks(held) {
  const prefix = new Float64Array(cutCount),
    suffix = new Float64Array(cutCount);
  let peak = 0;
  for (let k = 0; k < cutCount; k++) {
    peak = Math.max(peak, held.live[k]);
    prefix[k] = held.prefix[k] + peak;
  }
  peak = 0;
  for (let k = cutCount - 1; k >= 0; k--) {
    peak = Math.max(peak, held.live[k + 1]);
    suffix[k] = held.suffix[k] + peak;
  }
  return {prefix, suffix};
}

const orNaN = x => (x === null ? NaN : x);
const asCounted = name => Float64Array.from(plan[name], orNaN);

/* Everything that depends on sizes. `costs.bytes[k]`, `.prefixFlops[k]`, …: of frontier k. */
function costsAt(sizes) {
  const exprs = evalExprs(sizes);
  const valueBytes = Float64Array.from(plan.valueKind, (_, v) =>
    isTensor(v) ? elements(v, exprs) * Math.floor(plan.dtypes[plan.valueDtype[v]][1] / 8) : 0,
  );
  const nodeFlops = countFlops(exprs);
  const flopsUpTo = runningSum(nodeFlops);
  const total = nodeCount ? flopsUpTo[nodeCount - 1] : 0;
  const costs = {
    exprs,
    valueBytes,
    nodeFlops,
    flopsUpTo,
    total,
    prefixParams: asCounted('prefixParams'),
    suffixParams: asCounted('suffixParams'),
  };
  if (plan.symbols.every((s, i) => s[4] === sizes[i])) {
    for (const name of ['bytes', 'prefixFlops', 'suffixFlops', 'prefixMemory', 'suffixMemory'])
      costs[name] = asCounted(name);
    return costs;
  }
  const memory = peaks(countMemory(valueBytes));
  return Object.assign(costs, {
    bytes: countBytes(valueBytes).subarray(0, cutCount),
    prefixFlops: flopsUpTo.subarray(0, cutCount),
    suffixFlops: flopsUpTo.subarray(0, cutCount).map(x => total - x),
    prefixMemory: memory.prefix,
    suffixMemory: memory.suffix,
  });
}

/* ---- latency ---- */

function latenciesOf(costs, link) {
  const out = {total: new Float64Array(cutCount), best: -1};
  for (let k = 0; k < cutCount; k++) {
    out.total[k] =
      costs.prefixFlops[k] / link.prefixSpeed +
      costs.bytes[k] / link.bandwidth +
      costs.suffixFlops[k] / link.suffixSpeed;
    if (!unsafe[k] && isFinite(out.total[k]) && isBetter(out, costs, k)) out.best = k;
  }
  return out;
}

/* Of equal ones that with fewer bytes, then the earlier, as clv_objective says. */
function isBetter(latency, costs, k) {
  const b = latency.best;
  if (b < 0 || latency.total[k] !== latency.total[b]) return b < 0 || latency.total[k] < latency.total[b];
  return costs.bytes[k] < costs.bytes[b];
}

const inputBytes = costs => plan.inputs.reduce((sum, v) => sum + costs.valueBytes[v], 0);
