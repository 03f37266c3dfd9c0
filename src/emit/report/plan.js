/* The plan as C wrote it (html_data.c), and how its parts read: labels, shapes, amounts. */
const plan = JSON.parse(document.getElementById('data').textContent);
const text = id => (id < 0 ? '' : plan.strings[id]);
const nodeCount = plan.nodeOp.length;
const cutCount = Math.max(0, nodeCount - 1);

const KIND = {input: 0, param: 1, buffer: 2, attr: 3, constant: 4, object: 5, result: 6};
const KIND_WORDS = ['input', 'parameter', 'buffer', 'attribute', 'constant', 'object', 'result'];
const TYPE_WORDS = ['', 'bool', 'int', 'float', 'complex', 'str', 'object'];
const FLAG = {trainable: 1, guard: 2};

/* Texts that hold for a run of frontiers: [start, text, start, text, …] becomes one text per frontier. */
function unrolled(runs) {
  const out = new Array(cutCount).fill(null);
  for (let i = 0; i < runs.length; i += 2) out.fill(runs[i + 1], runs[i], i + 2 < runs.length ? runs[i + 2] : cutCount);
  return out;
}
const unsafe = unrolled(plan.unsafe);
const formulas = unrolled(plan.formulas || []);

/* ---- expressions ---- */

const EXPR_SIGNS = [null, null, '+', '-', '*', '//', '%', 'min', 'max'];

function exprText(id, tight = false) {
  const [op, a, b] = plan.exprs[id];
  if (op === 0) return String(a);
  if (op === 1) return text(plan.symbols[a][0]);
  if (op >= 7) return `${EXPR_SIGNS[op]}(${exprText(a)}, ${exprText(b)})`;
  const sum = op === 2 || op === 3;
  const body = exprText(a, !sum) + EXPR_SIGNS[op] + exprText(b, !sum || op === 3);
  return tight && (sum || op !== 4) ? `(${body})` : body;
}

/* All expressions at these sizes of the symbols; NaN where one is not defined. Operands come before their users. */
function evalExprs(sizes) {
  const out = new Float64Array(plan.exprs.length);
  plan.exprs.forEach(([op, a, b], i) => {
    const x = out[a],
      y = out[b];
    switch (op) {
      case 0:
        out[i] = a;
        break;
      case 1:
        out[i] = sizes[a];
        break;
      case 2:
        out[i] = x + y;
        break;
      case 3:
        out[i] = x - y;
        break;
      case 4:
        out[i] = x * y;
        break;
      case 5:
        out[i] = y === 0 ? NaN : Math.floor(x / y);
        break;
      case 6:
        out[i] = y === 0 ? NaN : x - Math.floor(x / y) * y;
        break;
      case 7:
        out[i] = Math.min(x, y);
        break;
      default:
        out[i] = Math.max(x, y);
    }
  });
  return out;
}

/* ---- values and nodes ---- */

const isTensor = v => plan.valueType[v] === 0 && plan.valueKind[v] !== KIND.object;
const isModuleTensor = v => plan.valueKind[v] >= KIND.param && plan.valueKind[v] <= KIND.attr;
const moves = v => plan.valueKind[v] === KIND.input || plan.valueKind[v] === KIND.result;

function valueLabel(v) {
  if (isModuleTensor(v)) return '@' + text(plan.valueName[v]);
  const hash = plan.valueKind[v] === KIND.constant || plan.valueKind[v] === KIND.object;
  return (hash ? '#' : '%') + plan.valueNumber[v];
}

function shapeText(v, sign = '\u00d7') {
  const dims = [];
  for (let d = 0; d < plan.valueNdim[v]; d++) dims.push(exprText(plan.dims[plan.valueShape[v] + d]));
  return dims.join(sign);
}

function typeText(v) {
  if (plan.valueKind[v] === KIND.object) return text(plan.valueName[v]);
  if (!isTensor(v)) return TYPE_WORDS[plan.valueType[v]];
  return `${plan.dtypes[plan.valueDtype[v]][0]}[${shapeText(v, ', ')}]`;
}

const opName = n =>
  text(plan.nodeOp[n])
    .replace(/^.*?::/, '')
    .replace(/\..*$/, '');
const scopePath = s => (s < 0 ? '' : text(plan.scopePath[s]));
const scopeClass = s => (s < 0 ? '' : text(plan.scopeClass[s]));

function nodeFlags(n) {
  const words = ['random', 'host read', 'impure', 'no grad', 'inference', 'autocast'];
  const found = words.filter((_, bit) => (plan.nodeFlags[n] >> bit) & 1);
  if (plan.nodeResults[n].some(v => plan.valueFlags[v] & FLAG.guard)) found.push('guard');
  if (plan.nodeWrites[n]) found.push('writes in place');
  return found;
}

/* ---- amounts for people ---- */

function scaled(x, units, step = 1000) {
  if (x === null || !isFinite(x)) return 'not known';
  let i = 0;
  while (Math.abs(x) >= step * 0.9995 && i < units.length - 1) {
    x /= step;
    i++;
  }
  const digits = i === 0 && Number.isInteger(x) ? 0 : Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2;
  return `${x.toFixed(digits)}\u00a0${units[i]}`.trim();
}
const showBytes = x => scaled(x, ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB']);
const showFlops = x => scaled(x, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP', 'PFLOP']);
const showCount = x => scaled(x, ['', 'K', 'M', 'B']).replace('\u00a0', '');
const showInt = x => x.toLocaleString('en');
const showShare = x => (x * 100).toFixed(x > 0 && x < 0.0995 ? 1 : 0) + '\u00a0%';
const showTime = s => scaled(s * 1e9, ['ns', '\u00b5s', 'ms', 's']);

/* ---- small helpers for the page ---- */

const $ = id => document.getElementById(id);

/* make('li', {class: 'x', onclick: f}, child, 'text', …). Names go in as text, never as markup. */
function make(tag, attributes = {}, ...children) {
  const svg = make.svgTags.has(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.filter(c => c !== null && c !== undefined));
  return e;
}
make.svgTags = new Set([
  'svg',
  'g',
  'path',
  'rect',
  'text',
  'tspan',
  'circle',
  'line',
  'linearGradient',
  'stop',
  'defs',
  'title',
  'polygon',
  'pattern',
  'clipPath',
]);

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/* Keeps a long name's two ends. */
function shortened(s, max) {
  return s.length <= max
    ? s
    : s.slice(0, Math.ceil(max * 0.4)) + '\u2026' + s.slice(s.length - Math.floor(max * 0.6) + 1);
}
