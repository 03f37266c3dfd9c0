"""A server that is killed under load gives no wrong answer: each is for its own request, or there is none."""

import http.client
import json
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from serving import NEEDS_SERVER, PROGRAM, infer_body, save_net

pytestmark = NEEDS_SERVER


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(folder, port, log):
    command = [PROGRAM, "serve", folder / "net.clv", "--port", str(port), "--log", "off", "--workers", "2"]
    process = subprocess.Popen(command, stderr=log)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return process
        except OSError:
            assert process.poll() is None
            time.sleep(0.02)
    raise AssertionError("the server does not start")


def answers_through_kills(folder, kills):
    """Which answers were right and which wrong, while the server was killed so often under load."""
    model = save_net(folder)
    right, wrong, stop = [], [], threading.Event()
    port = free_port()

    def client(k):
        count = 0
        link = None
        while not stop.is_set():
            count += 1
            x = np.array([[k, count % 1000, (count // 1000), -k]], np.float32)
            try:
                link = link or http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                link.request("POST", "/v2/models/net/infer", *infer_body({"x": x}))
                answer = link.getresponse()
                got = answer.read()
            except (OSError, http.client.HTTPException):
                link = None
                time.sleep(0.01)
                continue
            with torch.no_grad():
                expected = model(torch.from_numpy(x)).numpy().tobytes()
            head = int(answer.getheader("Inference-Header-Content-Length") or 0)
            good = answer.status == 200 and json.loads(got[:head])["model_name"] == "net" and got[head:] == expected
            (right if good else wrong).append((k, count, answer.status))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(1, 5)]
    with open(folder / "log", "w") as log:
        process = start(folder, port, log)
        try:
            for t in threads:
                t.start()
            for _ in range(kills):
                before = len(right)
                end = time.monotonic() + 30
                while len(right) < before + 5:
                    assert time.monotonic() < end
                    time.sleep(0.005)
                process.kill()
                process.wait()
                process = start(folder, port, log)
        finally:
            stop.set()
            for t in threads:
                t.join()
            process.kill()
            process.wait()
    return right, wrong


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_no_answer_is_wrong_while_the_server_is_killed_again_and_again(tmp_path, kills):
    right, wrong = answers_through_kills(tmp_path, kills)
    assert not wrong
    assert len(right) >= 5 * kills
