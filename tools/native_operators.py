#!/usr/bin/env python3
"""Which nodes of many models the native engine does not take, by operator and reason, most frequent first.

    python tools/native_operators.py                  # models of tests; torch, torchvision, timm, transformers
    python tools/native_operators.py lstm timm-       # those whose names contain one of these words
    python tools/native_operators.py --half           # with weights and activations in bf16

Models have random weights and small inputs; those whose library is not installed are left out. Each is captured, saved
and inspected by the command."""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "python")]

import real_models  # noqa: E402
import torch  # noqa: E402
from native import COMMAND  # noqa: E402
from torch import nn  # noqa: E402

import cleave  # noqa: E402

Entry = tuple[nn.Module, real_models.MakeInputs]
Builder = Callable[[], Entry]

TORCHVISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mobilenet_v2 regnet_y_400mf resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_v2_t vgg11_bn wide_resnet50_2 "
    "segmentation.fcn_resnet50 segmentation.lraspp_mobilenet_v3_large video.r3d_18 video.mc3_18 video.s3d "
    "optical_flow.raft_small"
)
TIMM = (
    "beit_base_patch16_224 cait_xxs24_224 coat_lite_tiny coatnet_0_rw_224 convmixer_768_32 convnextv2_atto "
    "crossvit_9_240 cspresnet50 darknet53 davit_tiny deit_tiny_patch16_224 dla34 dpn68 edgenext_xx_small "
    "efficientformer_l1 efficientvit_b0 eva02_tiny_patch14_224 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny ghostnet_100 "
    "gmlp_s16_224 halonet26t hardcorenas_a hgnet_tiny hrnet_w18_small inception_next_tiny lambda_resnet26t levit_128 "
    "lcnet_050 maxvit_tiny_rw_224 mixer_s16_224 mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 mvitv2_tiny "
    "nest_tiny nf_resnet26 nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0 regnety_002 repvgg_a0 res2net50_26w_4s "
    "resmlp_12_224 resnest14d rexnet_100 sebotnet33ts_256 selecsls42b seresnet18 skresnet18 swinv2_tiny_window8_256 "
    "tiny_vit_5m_224 tinynet_a tnt_s_patch16_224 tresnet_m twins_pcpvt_small visformer_tiny vit_tiny_patch16_224 "
    "volo_d1_224 xception41 xcit_nano_12_p16_224"
)
TRANSFORMERS = {  # model: what its configuration wants to be small; "hidden" stands for hidden_size and its kin
    "AlbertModel": {"embedding_size": 16},
    "BartModel": {},
    "BloomModel": {},
    "CamembertModel": {},
    "CodeGenModel": {"n_embd": 64, "n_head": 4, "rotary_dim": 8, "n_layer": 2},
    "DebertaModel": {},
    "DebertaV2Model": {},
    "DistilBertModel": {"dim": 32, "n_heads": 4, "hidden_dim": 64, "n_layers": 2},
    "ElectraModel": {"embedding_size": 16},
    "FalconModel": {},
    "FNetModel": {},
    "FunnelModel": {"d_model": 32, "d_head": 8, "n_head": 4, "block_sizes": [1, 1]},
    "Gemma2Model": {"head_dim": 8},
    "GemmaModel": {"head_dim": 8},
    "GPTJModel": {"n_embd": 64, "n_head": 4, "rotary_dim": 8, "n_layer": 2},
    "GPTNeoModel": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "GPTNeoXModel": {},
    "GptOssModel": {"head_dim": 8, "num_local_experts": 4},
    "LayoutLMModel": {},
    "MambaModel": {},
    "MistralModel": {"head_dim": 8},
    "MixtralModel": {"head_dim": 8},
    "MobileBertModel": {},
    "MPNetModel": {},
    "MptModel": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "OPTModel": {"word_embed_proj_dim": 32, "ffn_dim": 64},
    "PegasusModel": {},
    "PhiModel": {},
    "Phi3Model": {"pad_token_id": 0},
    "Qwen2Model": {},
    "Qwen2MoeModel": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4},
    "Qwen3Model": {"head_dim": 8},
    "RobertaModel": {},
    "RoFormerModel": {"embedding_size": 16},
    "SqueezeBertModel": {"embedding_size": 32},
    "StableLmModel": {},
    "XLMRobertaModel": {},
    "XLNetModel": {"d_model": 32, "n_head": 4, "d_inner": 64, "n_layer": 2},
}
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "d_model": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "n_layer": 2, "n_head": 4,
    "use_cache": False, "max_position_embeddings": 64, "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip


class Recurrent(nn.Module):
    """A recurrent layer between an embedding and a head."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.layer = layer
        self.head = nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(ids))[0].mean(1))


class Packed(Recurrent):
    """The same on sequences of different lengths."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([5] * len(ids))
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(out.mean(1))


def _recurrent(kind: str, packed: bool, **options: Any) -> Entry:
    layer = getattr(nn, kind)(12, 16, batch_first=True, **options)
    width = options.get("proj_size", 16) * (2 if options.get("bidirectional") else 1)
    make = lambda: real_models.Args(torch.randint(0, 50, (2, 7)))  # noqa: E731
    return (Packed if packed else Recurrent)(layer, width), make


def _torch_models() -> Iterator[tuple[str, Builder]]:
    for kind in ("RNN", "LSTM", "GRU"):
        for name, packed, options in (
            ("", False, {}),
            ("-2-layers-both-ways", False, {"num_layers": 2, "bidirectional": True}),
            ("-packed", True, {"bidirectional": True}),
        ):
            yield f"torch-{kind.lower()}{name}", lambda k=kind, p=packed, o=options: _recurrent(k, p, **o)
    yield "torch-lstm-proj", lambda: _recurrent("LSTM", False, proj_size=6)
    for first in (False, True):
        layer = lambda f=first: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=f)  # noqa: E731
        x = lambda: real_models.Args(torch.rand(2, 7, 32))  # noqa: E731
        yield f"torch-encoder-{first}", lambda b=layer, m=x: (nn.TransformerEncoder(b(), 2), m)
    x2 = lambda: real_models.Args(torch.rand(2, 7, 32), torch.rand(2, 5, 32))  # noqa: E731
    yield "torch-transformer", lambda: (nn.Transformer(32, 4, 2, 2, 64, batch_first=True), x2)


def _torchvision(name: str) -> Entry:
    module = importlib.import_module("torchvision").models
    for part in name.split(".")[:-1]:
        module = getattr(module, part)
    options: dict[str, Any] = {"weights": None}
    if "segmentation" in name:
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options.update(init_weights=False, aux_logits=False)
    size = 224 if name in ("maxvit_t", "swin_v2_t", "video.s3d") else 128 if "raft" in name else 96
    shape = (2, 3, 16, size, size) if "video" in name else (2, 3, size, size)
    draw = lambda: torch.rand(shape)  # noqa: E731
    make = lambda: real_models.Args(draw(), draw()) if "raft" in name else real_models.Args(draw())  # noqa: E731
    return getattr(module, name.rpartition(".")[2])(**options), make


def _timm(name: str) -> Entry:
    timm = importlib.import_module("timm")
    model = timm.create_model(name, pretrained=False)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, lambda: real_models.Args(torch.rand(2, *size))


def _transformers(name: str) -> Entry:
    tf = importlib.import_module("transformers")
    cls = getattr(tf, name)
    given = TRANSFORMERS[name]
    alias = cls.config_class.attribute_map
    config = cls.config_class(**{k: v for k, v in SMALL.items() if alias.get(k, k) not in given}, **given)
    ids = lambda n: torch.randint(2, 100, (2, n))  # noqa: E731
    if config.is_encoder_decoder:
        return cls(config), lambda: real_models.Args(input_ids=ids(8), decoder_input_ids=ids(6))
    return cls(config), lambda: real_models.Args(ids(8))


def models() -> Iterator[tuple[str, Builder]]:
    for name, make in real_models.BUILDERS.items():
        yield name, make
    yield from _torch_models()
    for family, names, build in (
        ("torchvision", TORCHVISION.split(), _torchvision),
        ("timm", TIMM.split(), _timm),
        ("transformers", list(TRANSFORMERS), _transformers),
    ):
        for name in names:
            yield f"{family}-{name}", lambda b=build, n=name: b(n)


def refused(build: Builder, half: bool) -> collections.Counter[str]:
    """Nodes that the engine does not take, by operator and reason."""
    torch.manual_seed(0)
    model, make = build()
    made = make()
    if half:
        model = model.bfloat16()
        cast = lambda t: t.bfloat16() if t.is_floating_point() else t  # noqa: E731
        made = real_models.Args(*map(cast, made.args), **{k: cast(t) for k, t in made.kwargs.items()})
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "model.clv"
        cleave.capture(model.eval(), made.args, made.kwargs, both_grad_modes=False).save(file, prove="none")
        words = [str(COMMAND), "inspect", str(file), "--engine", "native", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    return collections.Counter(f"{x['op']}: {x['reason']}" for x in json.loads(done.stdout))


def _line(found: collections.Counter[str]) -> str:
    return "; ".join(f"{count} of {what}" for what, count in found.most_common()) or "all taken"


def main() -> int:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("words", nargs="*", help="only models whose names contain one of these")
    a.add_argument("--half", action="store_true", help="in bf16")
    o = a.parse_args()
    every: collections.Counter[str] = collections.Counter()
    for name, build in models():
        if o.words and not any(word in name for word in o.words):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = refused(build, o.half)
        except Exception as e:  # whatever a library has to say
            print(f"{name:45} not captured: {type(e).__name__}: {str(e).partition(chr(10))[0][:100]}", flush=True)
            continue
        every.update(dict.fromkeys(found, 1))
        print(f"{name:45} {_line(found)}", flush=True)
    print("\nmodels\toperator")
    for what, count in every.most_common():
        print(f"{count}\t{what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
