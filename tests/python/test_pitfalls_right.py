"""What capture gets right as it is, and must go on getting right: every construct of the list's third group.

See test_pitfalls.py for the other two. All of these replay; none may be refused, unless a test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Fn, guarded, must_replay, rand, tokens, twins
from torch import Tensor, nn

POSITIVE, ALSO_POSITIVE, NEGATIVE = (
    torch.tensor([1.0, 2.0]),
    torch.tensor([3.0, 0.5]),
    torch.tensor([-1.0, -2.0]),
)


def test_autograd_grad_inside_forward() -> None:
    def energy(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = lin(x * 1)
            (g,) = torch.autograd.grad(y.pow(2).sum(), lin.weight, create_graph=torch.is_grad_enabled())
        return y.detach() + x @ g.detach()

    must_replay(Fn(energy), rand((3, 4)))


def test_forces_from_an_energy_with_a_graph_through_them() -> None:
    def forces(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.enable_grad():
            (g,) = torch.autograd.grad(lin(x).tanh().sum(), x, create_graph=True)
        return g

    must_replay(Fn(forces), rand((3, 4)), grad=True)


def test_no_grad_and_enable_grad_blocks() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        @torch.no_grad()
        def target(self, x: Tensor) -> Tensor:
            return self.a(x).softmax(-1)

        def forward(self, x: Tensor) -> Tensor:
            t = self.target(x)
            with torch.no_grad():
                s = x.std()
                with torch.enable_grad():
                    k = self.b(x)
            return (self.a(x) / s - t) * k

    must_replay(Mixed(), rand((3, 4)))


def test_an_inference_mode_block() -> None:
    def block(x: Tensor) -> Tensor:
        with torch.inference_mode():
            s = x.detach().std() * 2
        return x + s

    must_replay(block, rand((3, 4)))


def test_vmap() -> None:
    must_replay(lambda x, w: torch.vmap(lambda t: (t @ w).sin() * 2)(x), rand((3, 4), (4, 5)))
    must_replay(
        lambda x, y: torch.vmap(torch.vmap(torch.dot), in_dims=(0, 0))(x, y),
        rand((2, 3, 4), (2, 3, 4)),
        grad=False,
    )
    must_replay(lambda x: torch.vmap(lambda t: t - t.mean(), in_dims=1, out_dims=1)(x), rand((3, 4)))


def test_vmap_over_stacked_modules() -> None:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda w: (x @ w).relu())(self.w)

    must_replay(Ensemble(), rand((3, 4)))


def test_vmap_with_randomness() -> None:
    must_replay(lambda x: torch.vmap(lambda t: t + torch.rand(4), randomness="different")(x), rand((3, 4)))


@pytest.mark.integration
def test_vmap_of_grad() -> None:
    must_replay(lambda x: torch.vmap(torch.func.grad(lambda t: (t**3).sum()))(x), rand((3, 4)), grad=False)


def test_functionalize() -> None:
    def inner(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)
        return y.view(-1) * 2

    must_replay(lambda x: torch.func.functionalize(inner)(x), rand((3, 4)))


def test_functional_call_with_other_parameters() -> None:
    def call(lin: nn.Linear, x: Tensor) -> Tensor:
        params = {k: v * 2 for k, v in lin.named_parameters()}
        return torch.func.functional_call(lin, params, (x,)) + lin(x)

    must_replay(Fn(call), rand((3, 4)))


class Tagged(Tensor):
    """A tensor subclass without dispatch of its own."""


def test_a_tensor_subclass_inside_forward() -> None:
    def inside(x: Tensor) -> Tensor:
        t = x.as_subclass(Tagged)
        return (t * 2 + t.sin()).as_subclass(Tensor)

    must_replay(inside, rand((3, 4)))


def test_a_tensor_subclass_in_and_out() -> None:
    must_replay(lambda x: x * 2 + 1, lambda: (torch.randn(3, 4).as_subclass(Tagged),), input_grad=False)
    must_replay(lambda x: (x * 2).as_subclass(Tagged), rand((3, 4)))


def test_a_subclass_with_its_own_dispatch() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def inside(x: Tensor) -> Tensor:
        t = TwoTensor(x * 2, x + 1)
        y = t * 3 + t
        return y.a + y.b  # type: ignore[attr-defined]

    must_replay(inside, rand((3, 4)), grad=False)


def test_nested_tensors() -> None:
    def nested(x: Tensor, y: Tensor) -> Tensor:
        n = torch.nested.nested_tensor([x, y])
        return torch.nested.to_padded_tensor(n * 2, 0.0)

    must_replay(nested, rand((3, 4), (2, 4)), grad=False, input_grad=False)
    must_replay(
        lambda x, y: torch.nested.as_nested_tensor([x, y]).to_padded_tensor(-1.0),
        rand((3, 4), (2, 4)),
        grad=False,
    )


def test_jagged_nested_tensors() -> None:
    def jagged(x: Tensor) -> Tensor:
        n = torch.nested.nested_tensor_from_jagged(x, offsets=torch.tensor([0, 2, 5]))
        return (n * 2 + 1).values()

    must_replay(jagged, rand((5, 4)), grad=False)


def test_sparse_tensors() -> None:
    def sparse(x: Tensor, v: Tensor) -> Tensor:
        s = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), v, (2, 3))
        return torch.sparse.mm(s, x) + s.to_dense() @ x

    must_replay(sparse, rand((3, 4), (3,)))


def test_sparse_outputs_and_csr() -> None:
    must_replay(lambda x: (x.to_sparse() * 2).coalesce(), rand((3, 4)), grad=False, input_grad=False)
    must_replay(lambda x: x.to_sparse_csr() @ x.t(), rand((3, 4)), grad=False, input_grad=False)


def test_complex_numbers() -> None:
    def spectrum(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.fft.rfft(x, dim=-1) * torch.exp(torch.tensor(1j))
        return (
            torch.fft.irfft(z, n=x.shape[-1]),
            z.abs(),
            z.angle(),
            z * 2j,
            torch.stft(x, 4, window=torch.hann_window(4), return_complex=True),
        )

    must_replay(spectrum, rand((2, 16)))


def test_quantized_tensors() -> None:
    def quantized(x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        return q.dequantize() + q.int_repr() * 0.5

    must_replay(quantized, rand((3, 4)), grad=False, input_grad=False)
    must_replay(
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        rand((3, 4)),
        grad=False,
        input_grad=False,
    )
    must_replay(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), rand((3, 4)))


def test_a_dynamically_quantized_linear() -> None:
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {nn.Linear}, torch.qint8)
    must_replay(lambda x: net(x), rand((3, 4)), grad=False, input_grad=False)


def test_parametrizations() -> None:
    class Symmetric(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w.triu() + w.triu(1).transpose(-1, -2)

    lin = nn.Linear(4, 4)
    torch.nn.utils.parametrize.register_parametrization(lin, "weight", Symmetric())
    must_replay(nn.Sequential(lin, nn.ReLU()), rand((3, 4)))
    must_replay(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), rand((3, 4)))


def test_weight_norm() -> None:
    must_replay(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), rand((3, 4)))


def test_old_style_weight_norm_by_a_forward_hook() -> None:
    model, twin = twins(lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4))))
    must_replay(model, rand((3, 4)), twin=twin, all_state=False)


@pytest.mark.parametrize("train", [False, True])
def test_spectral_norm(train: bool) -> None:
    must_replay(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), rand((3, 4)), train=train)


def test_embedding_bag() -> None:
    bag = nn.EmbeddingBag(10, 4, mode="mean")
    must_replay(bag, lambda: (torch.randint(0, 10, (7,)), torch.tensor([0, 3, 5])))
    must_replay(nn.Embedding(10, 4, padding_idx=0), tokens(3, 5, high=10))
    must_replay(nn.Embedding(10, 4, max_norm=1.0), tokens(3, 5, high=10), grad=False)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.RNNBase], train: bool) -> None:
    net = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
    must_replay(net, rand((2, 6, 4)), train=train)


def test_recurrent_cells_in_a_loop() -> None:
    def unroll(cell: Any, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h = h + cell(x[:, t]).tanh()
        return h

    must_replay(Fn(unroll), rand((2, 5, 4)))
    must_replay(nn.LSTMCell(4, 3), lambda: (torch.randn(2, 4), (torch.randn(2, 3), torch.randn(2, 3))))


def test_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 5, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            p = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.gru(p)[0], batch_first=True)[0]

    must_replay(Packed(), lambda: (torch.randn(3, 6, 4), torch.tensor([6, 3, 2])), input_grad=False)


def test_ctc_loss() -> None:
    def ctc(x: Tensor, y: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), y, torch.tensor([8, 7]), torch.tensor([3, 2]))

    must_replay(ctc, lambda: (torch.randn(8, 2, 6), torch.randint(1, 6, (2, 3))))


def test_grid_sample() -> None:
    def warp(x: Tensor, theta: Tensor) -> Tensor:
        return F.grid_sample(x, F.affine_grid(theta, [2, 3, 5, 5], align_corners=False), align_corners=False)

    must_replay(warp, rand((2, 3, 6, 6), (2, 2, 3)))
    must_replay(lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=False), rand((1, 2, 4, 4)))


def test_out_arguments() -> None:
    def out(x: Tensor) -> Tensor:
        y, z = torch.empty(3, 4), torch.empty(3, 4)
        torch.mul(x, 2, out=y)
        torch.add(y, x, out=z)
        torch.sin(z, out=y)
        return y + z

    must_replay(out, rand((3, 4)), input_grad=False)


def test_views_with_in_place_writes_on_inputs() -> None:
    def write(x: Tensor) -> Tensor:
        x[0].mul_(2)
        x[:, 1] = 5
        v = x.view(-1)[2:6]
        v += 1
        x.transpose(0, 1)[3].zero_()
        return v * 2

    must_replay(write, rand((3, 4)), input_grad=False)


def test_views_with_in_place_writes_on_temporaries() -> None:
    def write(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        a, b = y.chunk(2, dim=1)
        a += 1
        b.mul_(a.detach())
        y[1, 2:] = 0
        y.diagonal().add_(3)
        y[y > 2] = 0.5
        y.index_put_((torch.tensor([0]),), torch.tensor(1.0))
        return y, y[0], y.t()

    must_replay(write, rand((3, 4)), grad=False)
    must_replay(lambda x: (x * 1).add_(1).mul_(2).clamp_(max=3), rand((3, 4)))
    must_replay(lambda x: (x * 1).relu_() * x.cos().neg_(), rand((3, 4)))
    must_replay(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Hardswish(inplace=True)),
        rand((3, 4)),
    )


def test_foreach_ops() -> None:
    def foreach(x: Tensor, y: Tensor) -> list[Tensor]:
        z = torch._foreach_add([x, y], 2)
        torch._foreach_mul_(z, 3)
        return torch._foreach_sqrt(torch._foreach_abs(z))

    must_replay(foreach, rand((3, 4), (2,)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + torch.rand(4),
        lambda x: x + torch.randn_like(x),
        lambda x: F.dropout(x, 0.3, True),
        lambda x: F.dropout2d(x[None], 0.3, True),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: x[torch.randperm(3)],
        lambda x: torch.multinomial(x.softmax(-1), 2),
        lambda x: x.clone().uniform_() + torch.empty(4).normal_(),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.gumbel_softmax(x, hard=True),
        lambda x: torch.distributions.Normal(x, 1.0).rsample(),
        lambda x: torch.randint(0, 9, (4,)) * x,
        lambda x: torch.poisson(x.abs()) + torch.empty(3, 4).exponential_(),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
    ],
    ids=(
        "rand randn_like dropout dropout2d bernoulli randperm multinomial uniform_ rrelu gumbel normal "
        "randint poisson attention"
    ).split(),
)
def test_random_ops_draw_what_eager_draws(fn: Callable[[Tensor], Tensor]) -> None:
    must_replay(fn, rand((3, 4)))


def _bump(x: Tensor) -> None:
    x.add_(1)


_OPS = torch.library.Library("cleave_test", "DEF")
_OPS.define("plus_half(Tensor x, float k=0.5) -> Tensor")
_OPS.impl("plus_half", lambda x, k=0.5: x + k, "CompositeImplicitAutograd")
_OPS.define("bump_(Tensor(a!) x) -> ()")
_OPS.impl("bump_", _bump, "CPU")
_OPS.define("halves(Tensor x) -> Tensor[]")
_OPS.impl("halves", lambda x: [x[:1] * 1, x[1:] * 1], "CPU")


@torch.library.custom_op("cleave_test::cube", mutates_args=())
def _cube(x: Tensor) -> Tensor:
    return x * x * x


def _save_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


_cube.register_autograd(lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2, setup_context=_save_input)


def test_custom_operators() -> None:
    must_replay(lambda x: torch.ops.cleave_test.plus_half(x) * torch.ops.cleave_test.plus_half(x, 2.0), rand((3, 4)))
    must_replay(lambda x: _cube(x) + 1, rand((3, 4)))


def test_custom_operators_that_write_or_give_lists() -> None:
    def bump(x: Tensor) -> Tensor:
        y = x * 1
        torch.ops.cleave_test.bump_(y)
        a, b = torch.ops.cleave_test.halves(y)
        return a + b.sum()

    must_replay(bump, rand((3, 4)), grad=False, input_grad=False)


@torch.jit.script
def _scripted_branch(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


def test_torchscript_branches_are_guards() -> None:
    guarded(lambda x: _scripted_branch(x) + 1, POSITIVE, ALSO_POSITIVE, NEGATIVE)


def _scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2))


def _traced() -> nn.Module:
    return nn.Sequential(torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)), nn.Linear(4, 2))


@pytest.mark.parametrize("build", [_scripted, _traced])
def test_scripted_and_traced_submodules(build: Callable[[], nn.Module]) -> None:
    model, twin = twins(build)
    must_replay(model, rand((3, 4)), twin=twin)


def test_autocast_regions_with_their_weight_cache() -> None:
    def regions(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = lin(lin(x))
            with torch.autocast("cpu", enabled=False):
                z = lin(y.float())
            y = lin(z).softmax(-1)
        return lin(y.float())

    must_replay(Fn(regions), rand((3, 4)))


def test_an_autocast_region_in_half_precision() -> None:
    def region(lin: nn.Linear, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return lin(x) @ x.t()

    must_replay(Fn(region), rand((3, 4)), grad=False)


# ---- attention layers, both paths --------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
def test_multihead_attention_on_both_paths(train: bool) -> None:
    mha = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = mha

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            a, w = self.mha(x, x, x)
            b, _ = self.mha(x, a, a, need_weights=False)
            return a + b, w

    must_replay(Self(), rand((2, 5, 8)), train=train)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_on_both_paths(train: bool, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    must_replay(net, rand((2, 5, 8)), train=train)


def test_a_transformer_encoder_with_a_padding_mask() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

        def forward(self, x: Tensor, pad: Tensor) -> Tensor:
            return self.enc(x, src_key_padding_mask=pad)

    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    must_replay(Masked(), lambda: (torch.randn(2, 5, 8), mask.clone()))


def test_a_full_transformer_with_a_causal_mask() -> None:
    class Seq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(b.shape[1])
            return self.t(a, b, tgt_mask=mask, tgt_is_causal=True)

    must_replay(Seq(), rand((2, 4, 8), (2, 3, 8)))


def test_scaled_dot_product_attention_with_a_mask() -> None:
    must_replay(lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m > 0), rand((1, 2, 4, 8), (4, 4)))


# ---- tiny language models ----------------------------------------------------------------------------------


def _tiny(name: str) -> nn.Module:
    tf = pytest.importorskip("transformers")
    wide: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    if name == "GPT2":
        return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    if name == "BERT":
        return tf.BertModel(tf.BertConfig(**wide, intermediate_size=32, max_position_embeddings=32))
    if name == "OPT":
        config = tf.OPTConfig(**wide, ffn_dim=32, word_embed_proj_dim=16, max_position_embeddings=32)
        return tf.OPTForCausalLM(config)
    if name == "BART":
        return tf.BartModel(
            tf.BartConfig(
                vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32,
            )
        )  # fmt: skip
    if name == "Llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**wide, intermediate_size=32, num_key_value_heads=1))
    if name == "Mamba":
        return tf.MambaForCausalLM(tf.MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2))
    config = tf.MixtralConfig(
        **wide, intermediate_size=32, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=2
    )
    return tf.MixtralForCausalLM(config)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["GPT2", "BERT", "OPT", "BART", "Llama", "Mamba", "Mixtral"])
def test_tiny_language_models(name: str) -> None:
    model = _tiny(name)
    model.config.use_cache = False  # type: ignore[union-attr]
    must_replay(model, tokens(2, 6), seeds=(1,), all_state=False)


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_tiny_language_models_in_training(name: str) -> None:
    model = _tiny(name)
    model.config.use_cache = False  # type: ignore[union-attr]
    must_replay(model, tokens(2, 6), seeds=(1,), train=True, grad=True, all_state=False)


# ---- tied weights, parameters and inputs as outputs --------------------------------------------------------


def test_tied_weights_get_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.emb(ids).tanh())

    must_replay(Tied(), tokens(2, 3, high=10))


def test_one_layer_used_twice() -> None:
    must_replay(Fn(lambda lin, x: lin(lin(x).relu())), rand((3, 4)))


def test_parameters_buffers_and_inputs_returned() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))
            self.register_buffer("b", torch.randn(4))

        def forward(self, x: Tensor) -> tuple[Any, ...]:
            y = x * self.w
            return self.w, self.b, x, y, y, x.view(-1), y.detach(), self.w[1:]

    must_replay(Gives(), rand((3, 4)))


def test_a_model_without_operators() -> None:
    must_replay(nn.Identity(), rand((3, 4)))
    must_replay(lambda x, y: (y, x), rand((3,), (4,)))
