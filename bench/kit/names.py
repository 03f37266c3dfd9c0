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
# Those that bars need first, then by how long they take: where a row's time ends, those at the end are left out.
TITLES = {
    "eager": "eager",
    "tape": "Cleave tape",
    "tape-whole": "Cleave tape, whole",
    "copy": "copy of the boundary",
    "fast": "Cleave fast",
    "native": "Cleave native",
    "graph": "Cleave CUDA graph",
    "openvino": "OpenVINO",
    "compile": "torch.compile",
    "freezing": "torch.compile, freezing",
    "reduce-overhead": "torch.compile, reduce-overhead",
    "onnxruntime": "ONNX Runtime",
    "torchscript": "TorchScript",
    "tape-none": "Cleave tape, no passes",
    "cleave-openvino": "Cleave OpenVINO",
    "cleave-inductor": "Cleave Inductor",
    "cleave-compiled": "Cleave compiled",
    "ariadne": "Ariadne",
    "ariadne-compiled": "Ariadne compiled",
}
EAGER = "eager"
# For cleave.benchmark.compare. Threads of OpenMP, TBB and ONNX Runtime spin for some milliseconds before they sleep.
SHORT_CALLS = {"lead_in": 0.004, "block": 0.002}
DEVICES = ("cpu", "cuda")


BATCH = 4  # where everything is measured; also that of charts and short tables
PREPARED_AT = 8  # the batch size of rows of kind "prepare"
RESNET, MOBILENET, BERT = "torchvision-resnet50", "torchvision-mobilenet_v3_large", "transformers-bert"
NAMED = (RESNET, MOBILENET, BERT)  # bars are about these alone, too
ORDERS = ("bars", "models")


def by_need(model: str, batch: int, kind: str, device: str) -> tuple[int, int]:
    """A key that sorts rows: what bars need, the bars about many models first; then the rest."""
    named = NAMED.index(model) if model in NAMED else len(NAMED)
    first = [
        kind == "whole" and model in TWELVE and batch == BATCH,
        kind == "whole" and device == "cuda",  # every batch size has its bar there
        model == "mlp" and batch == 1 and kind in ("whole", "split"),
        kind == "split" and model in TWELVE and batch == BATCH,
        kind == "prepare" and model in TWELVE,
        kind == "whole",
        kind == "split",
        kind == "training",
    ]
    return (first.index(True) if True in first else len(first)), named


def short_name(model: str) -> str:
    """A model's name for a table."""
    return model.replace("timm-swin_tiny_patch4_window7_224", "timm-swin_tiny")
