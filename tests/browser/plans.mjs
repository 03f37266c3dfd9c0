// Plans to look at: text as docs/plan-format.md has it.

/* A network of residual blocks with a symbol B: convolutions, normalisation, an activation in place, skips. */
export function residual(blocks = 4) {
  const head = ['cleave-plan 1', 'model "Residual"', 'symbol B 1..64', 'scope "" "Residual"', 'scope stem "Conv2d"'];
  const tensors = ['input %0 f32[B,3,32,32] name="image"', 'param @stem.weight f32[16,3,3,3] trainable'];
  const nodes = [];
  let last = 0;
  const node = (op, args, shape, scope, rest = '') => {
    nodes.push(
      `%${last + 1} = aten::${op}(${args}) -> f32[${shape}]${rest} in ${scope} at "net.py:${nodes.length + 1}"`,
    );
    return ++last;
  };
  const shape = 'B,16,32,32';
  let x = node('conv2d', '%0, @stem.weight, none, [1, 1], [1, 1], [1, 1], 1', shape, 'stem');
  for (let i = 0; i < blocks; i++) {
    const scope = `body.${i}`;
    head.push(
      `scope ${scope} "Block"`,
      `scope ${scope}.conv1 "Conv2d"`,
      `scope ${scope}.conv2 "Conv2d"`,
      `scope ${scope}.relu "ReLU"`,
    );
    for (const c of ['conv1', 'conv2'])
      tensors.push(`param @${scope}.${c}.weight f32[16,16,3,3] trainable`, `param @${scope}.${c}.bias f32[16]`);
    const conv = (v, c) =>
      node(
        'conv2d',
        `%${v}, @${scope}.${c}.weight, @${scope}.${c}.bias, [1, 1], [1, 1], [1, 1], 1`,
        shape,
        `${scope}.${c}`,
      );
    const a = conv(x, 'conv1');
    const b = node('relu_', `%${a}`, shape, `${scope}.relu`, ` view-of %${a} writes %${a}`);
    const c = conv(b, 'conv2');
    const sum = node('add.Tensor', `%${c}, %${x}, 1`, shape, scope);
    x = node('relu', `%${sum}`, shape, `${scope}.relu`);
  }
  head.push('scope head "Linear"');
  tensors.push('param @head.weight f32[10,16] trainable');
  const pooled = node('mean.dim', `%${x}, [2, 3], false`, 'B,16', '""');
  const out = node('linear', `%${pooled}, @head.weight, none`, 'B,10', 'head');
  return [...head, ...tensors, ...nodes, `output %${out}`, ''].join('\n');
}

/* A chain of nodes without modules; every tenth reads the value from ten before. */
export function chain(count) {
  const nodes = [];
  for (let i = 0; i < count; i++) {
    const far = i >= 10 && i % 10 === 0 ? i - 10 : i;
    nodes.push(`%${i + 1} = aten::add.Tensor(%${i}, %${far}, 1) -> f32[8]`);
  }
  return ['cleave-plan 1', 'model "Chain"', 'input %0 f32[8] name="x"', ...nodes, `output %${count}`, ''].join('\n');
}

/* Views of memory that is written later: some of its frontiers cannot be cut. */
export const unsafe = `cleave-plan 1
model "Unsafe"
symbol B 1..8
scope "" "Unsafe"
input %0 f32[B,4] name="x"
%1 = aten::mul.Tensor(%0, num(2.0)) -> f32[B,4]
%2 = aten::slice.Tensor(%1, 1, 0, 2, 1) -> f32[B,2] view-of %1
%3 = aten::slice.Tensor(%1, 1, 1, 3, 1) -> f32[B,2] view-of %1
%4 = aten::add_.Tensor(%2, num(1.0), 1) -> f32[B,2] view-of %1 writes %2
%5 = aten::mul.Tensor(%3, %4) -> f32[B,2]
%6 = aten::relu(%5) -> f32[B,2]
output %6
`;

/* Names that a page must not run. */
const evil = String.raw`</script><script>window.evil=1</script><img src=x onerror=window.evil=1>`;
export const hostile = `cleave-plan 1
model "${evil}"
scope "" "${evil}"
scope "${evil}" "${evil}"
input %0 f32[4] name="${evil}"
param @"${evil}" f32[4]
%1 = aten::mul.Tensor(%0, @"${evil}") -> f32[4] in "${evil}" at "${evil}"
%2 = aten::relu(%1) -> f32[4] in "${evil}"
%3 = aten::relu(%2) -> f32[4]
output %3
`;
