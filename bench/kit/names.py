"""Names of models, kinds of runs and ways, for programs that need no torch."""

from __future__ import annotations

TWELVE = (
    "torchvision-resnet50",
    "torchvision-mobilenet_v3_large",
    "torchvision-deeplabv3_resnet50",
    "torchvision-vit_b_16",
    "timm-resnet50",
    "timm-swin_tiny_patch4_window7_224",
    "ultralytics-yolov8n",
    "rfdetr-nano",
    "transformers-gpt2",
    "transformers-bert",
    "transformers-t5",
    "transformers-llama",
)
OWN = ("mlp", "llama-like")
MODELS = (*TWELVE, *OWN)
KINDS = {
    "whole": "the whole model",
    "split": "prefix and suffix of a split at 50 %",
    "suffix": "the suffix alone, of a split at 50 %",
    "debug": "debug mode: prefix and suffix with every result checked",
    "training": "a training round trip: prefix, suffix, backward of both",
    "prepare": "preparing a split at 50 % for batches 2 to 64 (eager: one forward)",
}
# Cheap ones first: where a row's time ends, those at the end are left out.
TITLES = {
    "eager": "eager",
    "tape": "Cleave tape",
    "tape-whole": "Cleave tape, whole",
    "copy": "copy of the boundary",
    "tape-none": "Cleave tape, no passes",
    "fast": "Cleave fast",
    "graph": "Cleave CUDA graph",
    "torchscript": "TorchScript",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    "compile": "torch.compile",
    "freezing": "torch.compile, freezing",
    "reduce-overhead": "torch.compile, reduce-overhead",
    "ariadne": "Ariadne",
    "cleave-openvino": "Cleave OpenVINO",
    "cleave-inductor": "Cleave Inductor",
    "cleave-compiled": "Cleave compiled",
    "ariadne-compiled": "Ariadne compiled",
}
EAGER = "eager"
DEVICES = ("cpu", "cuda")


def short_name(model: str) -> str:
    """A model's name for a table."""
    return model.replace("timm-swin_tiny_patch4_window7_224", "timm-swin_tiny")
