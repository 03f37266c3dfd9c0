"""How to divide a model between here and a server, over links of any speed: latency, bytes, error of each way.

python bench/link.py [--model resnet50] [--cuts after:layer1 …] [--slower 10] [--image FILE] [--json FILE]

`cleave serve` runs on the loopback address behind a proxy of our own, which lets so many bytes pass in a second and
holds each direction back for half a round trip. For every rate and round trip all ways are measured: what is not work
in the best round, and to it the least work that any round took, as other programs have the machine, too. All here;
the input to the server as it is, or as JPEG, which a process beside the server decodes; each cut with its boundary as
it is, as int8 and in 4 bits. A * marks what clv_link_* takes, by work and bytes alone. Here and there are one
machine: `--slower` makes work here take so many times as long, by waiting, as on a small device. Weights are random
and the picture is made up, with the spectrum of pictures: sizes of q4 and JPEG and output errors say little about a
trained model. Ways that would take longer than `--longest` are added up from their bytes. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import io
import json
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kit.machine import about
from kit.throttle import Proxy
from PIL import Image

import cleave
from cleave import _native

RATES = (0.1, 1, 5.85, 18.8, 100, 1000)  # Mbit/s
ROUND_TRIPS = (5, 50, 100)  # ms
WAYS = (None, "int8", "q4")
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's models


@contextlib.contextmanager
def served(path: Path, command: str) -> Iterator[int]:
    """`cleave serve`; its port."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [command, "serve", "--port", "0", "--engine", "native", "--batching", "off", path], stderr=log
        )
        try:
            for _ in range(600):
                log.seek(0)
                found = re.search(r"serving at http://\S*:(\d+)", log.read())
                if found:
                    break
                time.sleep(0.05)
            else:
                raise SystemExit("the server does not start")
            yield int(found[1])
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class Times:
    """Seconds of a call: here, there, to code; bytes."""

    here: float
    there: float
    codec: float
    sent: int
    received: int


@dataclass(frozen=True)
class Way:
    """How a call is divided; `run` gives the output, and where the time went."""

    name: str
    remote: bool
    run: Callable[[], tuple[torch.Tensor, Times]]


@dataclass(frozen=True)
class Row:
    """One way over one link. measured: the bytes really went, else they are added by rate."""

    rate_mbit: float
    rtt_ms: float
    way: str
    ms: float
    bytes: int
    error: float
    measured: bool
    chosen: bool


@dataclass
class Known:
    """A way without a link: the least work that any run took here, there and to code, as other programs have this
    machine, too; and the error of the output."""

    way: Way
    here: float = math.inf
    there: float = math.inf
    codec: float = math.inf
    sent: int = 0
    received: int = 0
    error: float = 0.0

    @property
    def work(self) -> float:
        return self.here + self.there + self.codec

    def run(self) -> tuple[torch.Tensor, float]:
        """One run: the output, and the seconds that were not work."""
        start = time.perf_counter()
        y, t = self.way.run()
        total = time.perf_counter() - start
        self.here, self.there = min(self.here, t.here), min(self.there, t.there)
        self.codec = min(self.codec, t.codec)
        self.sent, self.received = t.sent, t.received
        return y, max(0.0, total - t.here - t.there - t.codec)


def look(way: Way, want: torch.Tensor, rounds: int) -> Known:
    """Some rounds over the loopback address."""
    known = Known(way)
    for _ in range(rounds + 4):
        y, _ = known.run()
    known.error = float((y - want).norm() / want.norm())
    return known


class Device:
    """Work on a machine that is so many times slower than this one: by waiting, as long as the fastest run asks for, as
    other programs have this processor, too."""

    def __init__(self, slower: float) -> None:
        self.slower = slower
        self.fastest: dict[str, float] = {}

    def does(self, name: str, work: Callable[[], Any]) -> tuple[Any, float]:
        """What it gives, and the seconds that it takes there."""
        start = time.perf_counter()
        result = work()
        took = time.perf_counter() - start
        best = self.fastest[name] = min(took, self.fastest.get(name, took))
        time.sleep(max(0.0, best * self.slower - took))
        return result, best * self.slower


# ---- the input


def picture() -> Image.Image:
    """Shapes with edges over noise whose amplitudes fall with the frequency, as those of photographs do."""
    generator = torch.Generator().manual_seed(1)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 224), torch.linspace(-1, 1, 224), indexing="ij")
    planes = []
    for k in range(3):
        noise = torch.fft.fft2(torch.randn(224, 224, generator=generator))
        f = torch.fft.fftfreq(224)
        steepness = (f[:, None] ** 2 + f[None] ** 2).sqrt().clamp_min(1 / 224)
        cloud = torch.fft.ifft2(noise / steepness).real
        shapes = ((x - 0.3 * k) ** 2 + y**2 < 0.2).float() - ((x + y).abs() < 0.1 * (k + 1)).float()
        planes.append(cloud / cloud.std() * 0.18 + 0.25 * shapes + 0.5)
    pixels = (torch.stack(planes, -1).clamp(0, 1) * 255).byte().numpy()
    return Image.fromarray(pixels)


def as_input(image: Image.Image) -> torch.Tensor:
    """As torchvision's models take it."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, image.height, image.width, 3)
    x = pixels.permute(0, 3, 1, 2).float() / 255
    return ((x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(SPREAD).view(1, 3, 1, 1)).contiguous()


class Decoder(http.server.ThreadingHTTPServer):
    """Beside the server: takes a JPEG, decodes it, and has the server run the model on it."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.model = cleave.connect(f"http://127.0.0.1:{port}/model")
        super().__init__(("127.0.0.1", 0), Decoding)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Decoding(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Decoder

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        start = time.perf_counter()
        y = self.server.model(as_input(Image.open(io.BytesIO(data)).convert("RGB")))
        took = time.perf_counter() - start
        answer = y.contiguous().numpy().tobytes()
        self.send_response(200)
        self.send_header("Server-Timing", f"compute;dur={1e3 * took:.3f}")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


# ---- the ways


def times_of(there: cleave.remote.RemoteModel, here: float) -> Times:
    t = there.times
    assert t is not None
    return Times(here, t.compute, t.encode + t.decode, t.sent_bytes, t.received_bytes)


def jpeg_way(image: Image.Image, port: int, device: Device, quality: int) -> Way:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def encode() -> bytes:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality)
        return out.getvalue()

    def run() -> tuple[torch.Tensor, Times]:
        data, here = device.does("JPEG", encode)
        link.request("POST", "/", data)
        answer = link.getresponse()
        body = answer.read()
        compute = float((answer.getheader("Server-Timing") or "").rpartition("=")[2]) / 1e3
        y = torch.frombuffer(bytearray(body), dtype=torch.float32).view(1, -1)
        return y, Times(here, compute, 0, len(data) + 200, len(body) + 200)

    return Way("input JPEG", True, run)


def cut_ways(folder: Path, port: int, cuts: list[str], x: torch.Tensor, command: str, device: Device) -> list[Way]:
    ways = []
    for cut in cuts:
        files = [folder / f"{len(ways)}-prefix.clv", folder / f"{len(ways)}-suffix.clv"]
        subprocess.run(
            [command, "split", folder / "model.clv", "-b", cut, "-o", *files], check=True, capture_output=True
        )
        prefix = cleave.load(files[0], sandbox=False, engine="native")
        there = cleave.connect(f"http://127.0.0.1:{port}/model@{cut}", timeout=600)
        for compress in WAYS:

            def run(
                prefix: cleave.LoadedModel = prefix,
                there: cleave.remote.RemoteModel = there,
                compress: str | None = compress,
                cut: str = cut,
            ) -> tuple[torch.Tensor, Times]:
                boundary, here = device.does(cut, lambda: prefix.run_prefix(x))
                y: torch.Tensor = there.run_suffix(boundary, compress=compress)
                return y, times_of(there, here)

            ways.append(Way(f"{cut.removeprefix('after:')} {compress or 'f32'}", True, run))
    return ways


def list_ways(
    folder: Path, port: int, pictures: int, cuts: list[str], image: Image.Image, command: str, device: Device
) -> list[Way]:
    """port: of the server behind the link; pictures: that of the decoder."""
    x = as_input(image)
    whole = cleave.load(folder / "model.clv", part="all", sandbox=False, engine="native")
    there = cleave.connect(f"http://127.0.0.1:{port}/model", timeout=600)

    def here() -> tuple[torch.Tensor, Times]:
        y, seconds = device.does("whole", lambda: whole(x))
        return y, Times(seconds, 0, 0, 0, 0)

    def raw() -> tuple[torch.Tensor, Times]:
        y: torch.Tensor = there(x)
        return y, times_of(there, 0)

    ways = [Way("all here", False, here), Way("input f32", True, raw), jpeg_way(image, pictures, device, 90)]
    return ways + cut_ways(folder, port, cuts, x, command, device)


def network(k: Known, rate: float, rtt: float) -> float:
    """Seconds that a link takes, by its bytes."""
    return rtt + (k.sent + k.received) / rate if k.way.remote else 0.0


def over_link(k: Known, proxies: list[Proxy], rate: float, rtt: float, rounds: int, longest: float) -> float | None:
    """Seconds on the network in the best round over the link; None: it would take too long."""
    if not k.way.remote:
        k.run()
        return 0.0
    if k.work + network(k, rate, rtt) > longest:
        return None
    for proxy in proxies:
        proxy.rate, proxy.delay = rate, rtt / 2
    best = min(k.run()[1] for _ in range(rounds))
    for proxy in proxies:
        proxy.rate, proxy.delay = math.inf, 0.0
    return best


def choose(known: list[Known], rate: float, rtt: float) -> int:
    """What the library takes when it knows the link."""
    described = [(k.way.name, k.way.remote, k.here, k.there, k.codec, k.sent, k.received) for k in known]
    return _native.choose_way(described, 0.1, rtt, rate)


def measure(
    ways: list[Way],
    proxies: list[Proxy],
    want: torch.Tensor,
    links: list[tuple[float, float]],
    rounds: int,
    longest: float,
) -> Iterator[Row]:
    """The network of every way and link; work is added at the end, when the least is known."""
    known = [look(way, want, rounds) for way in ways]
    found = []
    for mbit, ms in links:
        found.append([over_link(k, proxies, mbit * 1e6 / 8, ms / 1e3, rounds, longest) for k in known])
        print(f"measured {mbit:g} Mbit/s, {ms:g} ms", file=sys.stderr, flush=True)
    for (mbit, ms), seconds in zip(links, found, strict=True):
        rate, rtt = mbit * 1e6 / 8, ms / 1e3
        chosen = choose(known, rate, rtt)
        for i, (k, spent) in enumerate(zip(known, seconds, strict=True)):
            total = k.work + (network(k, rate, rtt) if spent is None else spent)
            yield Row(mbit, ms, k.way.name, 1e3 * total, k.sent, k.error, spent is not None, i == chosen)


def show(row: Row) -> None:
    mark = ("*" if row.chosen else " ") + (" " if row.measured else "~")
    link = f"{row.rate_mbit:7g} {row.rtt_ms:6g}"
    print(f"{link} {mark}{row.way:14} {row.ms:9.1f} {row.bytes:9} {row.error:9.2g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--cuts", nargs="*", default=["after:layer1", "after:layer2", "after:layer3", "after:layer4"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", nargs="*", type=float, default=RATES, help="Mbit/s")
    parser.add_argument("--round-trips", nargs="*", type=float, default=ROUND_TRIPS, help="ms")
    parser.add_argument("--longest", type=float, default=20, help="seconds")
    parser.add_argument("--slower", type=float, default=10, help="how many times as long work here takes")
    parser.add_argument("--image", type=Path, help="a picture instead of one that is made up")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--command", default=str(Path(sysconfig.get_path("scripts")) / "cleave"))
    args = parser.parse_args()
    import torchvision

    start = about()
    torch.manual_seed(0)
    model = getattr(torchvision.models, args.model)(weights=None).eval()
    image = Image.open(args.image).convert("RGB").resize((224, 224)) if args.image else picture()
    rows = []
    links = [(mbit, ms) for mbit in args.rates for ms in args.round_trips]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cleave.capture(model, (as_input(image),)).save(folder / "model.clv")
        port = stack.enter_context(served(folder / "model.clv", args.command))
        proxies = [stack.enter_context(contextlib.closing(Proxy(p))) for p in (port, Decoder(port).server_port)]
        ways = list_ways(folder, proxies[0].port, proxies[1].port, args.cuts, image, args.command, Device(args.slower))
        want = ways[0].run()[0]
        print(f"{'Mbit/s':>7} {'rtt ms':>6}  {'way':14} {'ms':>9} {'bytes':>9} {'error':>9}")
        for row in measure(ways, proxies, want, links, args.rounds, args.longest):
            rows.append(asdict(row))
            show(row)
    if args.json:
        how = f"{args.model}, rounds per link: {args.rounds}; the device is {args.slower:g} times slower than this."
        head = {**start, "how": how}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
