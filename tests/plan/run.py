"""Golden tests of plan text and of the command line.

    python tests/plan/run.py path/to/cleave [--update]

Beside each x.plan lie x.print and x.inspect, what `cleave print` and `cleave inspect` write, and x.source, what
`cleave source` writes or why it refuses; x.stages is the same for a pipeline of two stages, and x.dot and x.split.dot
are what `cleave dot` draws. Beside each bad_x.plan lies bad_x.err, what `cleave verify` says about it.

cli.txt, capture.txt, diff.txt and partition.txt are transcripts: each `$ cleave …` is run and what it writes must
follow; the .clv files that diff.txt compares are written by `test_diff tests/plan/diff`. models.txt and run.txt are
such transcripts over the files of models/ (models/make.py writes those again), each in a copy of that folder; run.txt
needs cleave-torch. my.key and other.pub there are the keys of the first examples in RFC 8032. The example of
docs/plan-format.md must print as itself; docs/command-line.md has all commands, and what it shows is what they write.
Completion scripts are read by their shells, bash really completes, and manual pages format without a warning. --update
rewrites the expected files; look at the difference before you commit it.
"""

from __future__ import annotations

import difflib
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs" / "plan-format.md"
PAGE = DOCS.with_name("command-line.md")


class Runner:
    """Runs the command in this folder and compares what it writes with files."""

    def __init__(self, cleave: str, update: bool) -> None:
        self.cleave = str(Path(cleave).resolve())
        self.update = update
        self.passed = 0
        self.failed = 0
        self.missing: set[str] = set()
        self.state = tempfile.TemporaryDirectory()  # of the user who saved the files of models/
        key = Path(self.state.name, "cleave", "seal.key")
        key.parent.mkdir(mode=0o700)
        key.touch(mode=0o600)
        key.write_bytes(bytes(range(32)))

    def run(self, *args: str, text: str = "", folder: Path = HERE) -> tuple[int, str, str]:
        command = [self.cleave, *args]
        away = ("CLEAVE_PYTHON", "CLEAVE_CACHE")  # capture explains itself without a Python
        env = {k: v for k, v in os.environ.items() if k not in away} | {"XDG_STATE_HOME": self.state.name}
        done = subprocess.run(
            command, cwd=folder, input=text.encode(), env=env, capture_output=True, timeout=60, check=False
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def check(self, name: str, ok: bool, why: str = "") -> None:
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {name}\n{why}")

    def compare(self, name: str, got: str, file: Path) -> None:
        if self.update:
            file.write_text(got)
        want = file.read_text() if file.exists() else ""
        lines = difflib.unified_diff(want.splitlines(), got.splitlines(), file.name, "got", lineterm="")
        self.check(name, got == want, "\n".join(lines))

    def good(self, plan: Path) -> None:
        """A plan that verifies: its canonical text and its page."""
        for command in ("print", "inspect"):
            code, out, err = self.run(command, plan.name)
            self.check(f"{plan.name}: {command} succeeds", code == 0 and not err, err)
            self.compare(f"{plan.name}: {command}", out, plan.with_suffix(f".{command}"))
        code, out, err = self.run("source", plan.name)
        self.check(f"{plan.name}: source is written or refused", (code == 0) == (not err), err)
        self.compare(f"{plan.name}: source", out + err, plan.with_suffix(".source"))
        if out:
            compile(out, plan.name, "exec")
        code, out, err = self.run("source", plan.name, "--stages", "2")
        self.check(f"{plan.name}: stages are written or refused", (code == 0) == (not err), err)
        self.compare(f"{plan.name}: stages", out + err, plan.with_suffix(".stages"))
        if out:
            compile(out, plan.name, "exec")
        self.pictures(plan)
        printed = plan.with_suffix(".print")
        code, out, err = self.run("print", printed.name)
        self.check(f"{plan.name}: the canonical text prints as itself", out == printed.read_text(), err)

    def pictures(self, plan: Path) -> None:
        """The picture of a plan, and the one of its cut with all there is to show."""
        all_of_it = ["-b", "50%", "--detail", "operation", "--targets", "--markers", "--indices"]
        for name, options in ((".dot", []), (".split.dot", all_of_it)):
            code, out, err = self.run("dot", plan.name, *options)
            self.check(f"{plan.name}: {name} is written or refused", (code == 0) == (not err), err)
            self.compare(f"{plan.name}: {name}", out + err, plan.with_suffix(name))
            if out:
                self.outside(f"{plan.name}: Graphviz reads {name}", ["dot", "-Tsvg", "-o", "/dev/null"], out)

    def bad(self, plan: Path) -> None:
        """A plan that is refused, with its message."""
        code, out, err = self.run("verify", plan.name)
        self.check(f"{plan.name}: exit status", code == 1 and not out, f"exit status {code}")
        self.compare(f"{plan.name}: message", err, plan.with_suffix(".err"))

    def transcript(self, file: Path, folder: Path = HERE) -> None:
        """Each command of the transcript, run again."""
        got = []
        for line in re.findall(r"^\$ cleave(.*)$", file.read_text(), re.MULTILINE):
            code, out, err = self.run(*shlex.split(line), folder=folder)
            out = re.sub(r'"seconds":[^,}]*', '"seconds":0', out)  # of partition --json: what a clock says
            got.append(f"$ cleave{line}\n{out}{err}[exit status {code}]\n")
        self.compare(file.name, "\n".join(got), file)

    def models(self) -> None:
        """What is done with model files, without torch and with it."""
        names = ["models.txt"]
        if Path(self.cleave).with_name("cleave-torch").exists():
            names.append("run.txt")
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(HERE / "models", folder, dirs_exist_ok=True)
                self.transcript(HERE / name, Path(folder))

    def documented(self) -> None:
        """The example of the documentation is a plan, in canonical form."""
        found = re.search(r"^```\n(cleave-plan 1\n.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
        example = found.group(1) if found else ""
        _, out, err = self.run("print", "-", text=example)
        self.check("the example of plan-format.md", out == example and example != "", err or out)

    def commands(self) -> list[str]:
        """Those that `cleave --help` lists."""
        return re.findall(r"^  (\w+) ", self.run("--help")[1].split("commands\n")[1].split("\n\n")[0], re.MULTILINE)

    def shown(self) -> None:
        """What docs/command-line.md shows is what the commands write, one after the other in one folder."""
        page = PAGE.read_text()
        for name in self.commands():
            self.check(f"{PAGE.name} has a part about {name}", f"\n## {name}\n" in page)
        torch = Path(self.cleave).with_name("cleave-torch").exists()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(HERE / "models", folder, dirs_exist_ok=True)
            for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
                lines = re.findall(r"^\$ cleave (.*)$", block, re.MULTILINE)
                if any(line.startswith(("run ", "trace ")) for line in lines) and not torch:
                    continue
                got = []
                for line in lines:
                    _, out, err = self.run(*shlex.split(line), folder=Path(folder))
                    got.append(f"$ cleave {line}\n{out}{err}")
                self.check(f"{PAGE.name}: {lines[0]}", "\n".join(got) == block, "\n".join(got))

    def outside(self, name: str, command: list[str], text: str) -> None:
        """A program of the machine that must read the text without a word; not checked where there is none."""
        if not shutil.which(command[0]):
            if command[0] not in self.missing:
                print(f"skipped what {command[0]} checks: it is not installed")
            self.missing.add(command[0])
            return
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        self.check(name, done.returncode == 0 and not done.stderr, done.stderr)

    def completion_scripts(self) -> None:
        """Every shell takes its script."""
        for shell in ("bash", "zsh", "fish"):
            code, script, err = self.run("completion", shell)
            self.check(f"completion {shell} is written", code == 0 and script != "", err)
            self.outside(f"{shell} reads its completion script", [shell, "-n"], script)

    def offered(self, *words: str) -> set[str]:
        """What bash offers for the last of the words, asked as bash itself does it."""
        script = self.run("completion", "bash")[1]
        line = "COMP_WORDS=(" + " ".join(shlex.quote(w) for w in words) + f"); COMP_CWORD={len(words) - 1}\n"
        asked = script + line + '_cleave; printf "%s\\n" "${COMPREPLY[@]}"\n'
        done = subprocess.run(["bash"], input=asked, capture_output=True, text=True, cwd=HERE, timeout=60, check=True)
        return set(done.stdout.split())

    def completes(self) -> None:
        """bash completes commands, options, words, columns and files."""
        cases = {
            ("cleave", "ca"): {"calibrate", "candidates", "capture"},
            ("cleave", "--co"): {"--color"},
            ("cleave", "--color", "a"): {"auto", "always"},
            ("cleave", "--color", "never", "ver"): {"verify"},
            ("cleave", "help", "in"): {"inspect"},
            ("cleave", "candidates", "--max-p"): {"--max-prefix-memory", "--max-prefix-params"},
            ("cleave", "candidates", "--minimize", "pre"): {"prefix_memory", "prefix_flops"},
            ("cleave", "candidates", "--minimize", "=", "lat"): {"latency"},
            ("cleave", "candidates", "--minimize", "="): {
                *(
                    "boundary_bytes",
                    "latency",
                    "prefix_memory",
                    "suffix_memory",
                    "prefix_flops",
                    "suffix_flops",
                    "balance",
                )
            },
            ("cleave", "frontiers", "--sort", "boundary_b"): {"boundary_bytes", "boundary_bytes_formula"},
            ("cleave", "candidates", "--max-bytes", ""): set(),
            ("cleave", "candidates", "twice.p"): {"twice.plan", "twice.print"},
            ("cleave", "completion", "f"): {"fish"},
        }
        for words, want in cases.items():
            got = self.offered(*words)
            self.check(f"completion of {' '.join(words)}", got == want, f"offered: {sorted(got)}")

    def manual(self) -> None:
        """Pages of all commands, which format without a warning."""
        with tempfile.TemporaryDirectory() as folder:
            code, _, err = self.run("man", "--directory", folder)
            pages = sorted(Path(folder).iterdir())
            want = sorted(["cleave.1", *(f"cleave-{name}.1" for name in self.commands())])
            self.check("man writes all pages", code == 0 and [p.name for p in pages] == want, err)
            for page in pages:
                text = page.read_text()
                self.outside(f"groff formats {page.name}", ["groff", "-man", "-ww", "-Tutf8"], text)
                self.outside(f"mandoc reads {page.name}", ["mandoc", "-Tlint", "-Werror"], text)

    def on_terminal(self, *args: str, **env: str) -> str:
        """What the command writes to a terminal."""
        ours, theirs = pty.openpty()
        command = [self.cleave, *args]
        environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "XDG_STATE_HOME": self.state.name, **env}
        done = subprocess.run(command, cwd=HERE, stdout=theirs, stderr=theirs, env=environ, timeout=60, check=False)
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # the other side is closed
            pass
        os.close(ours)
        return f"{text.decode()}{done.returncode}"

    def colors(self) -> None:
        """Colours on a terminal only, and as NO_COLOR and --color say."""
        ask = ("candidates", "residual.plan")
        escape = "\033["
        self.check("colours on a terminal", escape in self.on_terminal(*ask))
        self.check("no colours with NO_COLOR", escape not in self.on_terminal(*ask, NO_COLOR="1"))
        self.check("no colours with --color never", escape not in self.on_terminal(*ask, "--color", "never"))
        self.check("no colours in a pipe", escape not in self.run(*ask)[1])
        self.check("colours with --color always", escape in self.run(*ask, "--color=always")[1])

    def objects(self) -> None:
        """--json is JSON, and has what the table has."""
        for plan in sorted(HERE.glob("[!b]*.plan")):
            for command in ("inspect", "verify", "candidates"):
                _, out, err = self.run(command, "--json", plan.name)
                try:
                    json.loads(out)
                except ValueError as error:
                    self.check(f"{plan.name}: {command} --json", False, f"{error}\n{err}")

    def odd_names(self) -> None:
        """Bytes that are no UTF-8 (stray, surrogate, too long, too large) come out as JSON all the same."""
        odd = r"\xff \xc3 \xed\xa0\x80 \xc0\x80 \xe0\x80\x80 \xf0\x80\x80\x80 \xf4\x90\x80\x80 \xc3\xa9 \x1b"
        text = (HERE / "residual.plan").read_text().replace(" conv1 ", f' "{odd}" ')
        for command in ("inspect", "candidates"):
            command_line = [self.cleave, command, "--json", "-"]
            done = subprocess.run(command_line, input=text.encode(), capture_output=True, timeout=60, check=False)
            try:
                json.loads(done.stdout.decode())
                self.check(f"{command} --json of odd names", done.returncode == 0, done.stderr.decode())
            except ValueError as error:
                self.check(f"{command} --json of odd names", False, str(error))

    def torch(self) -> None:
        """Commands that run plans are done by cleave-torch, where there is one."""
        code, out, err = self.run("selftest")
        if Path(self.cleave).with_name("cleave-torch").exists():
            self.check("cleave becomes cleave-torch", (code, out, err) == (0, "ok: plans run here\n", ""), out + err)
            env = {**os.environ, "CLEAVE_TORCH_PROGRAM": "/bin/echo"}
            done = subprocess.run(
                [self.cleave, "-q", "selftest"], capture_output=True, text=True, env=env, timeout=60, check=False
            )
            self.check("CLEAVE_TORCH_PROGRAM wins", done.stdout == "-q selftest\n", done.stdout + done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copy(self.cleave, folder)
            done = subprocess.run([alone, "selftest"], capture_output=True, text=True, timeout=60, check=False)
            self.check(
                "without cleave-torch there is a hint", done.returncode == 1 and "hint: " in done.stderr, done.stderr
            )
            env = {**os.environ, "CLEAVE_TORCH_PROGRAM": "/bin/echo"}
            done = subprocess.run(
                [alone, "-q", "selftest"], capture_output=True, text=True, env=env, timeout=60, check=False
            )
            self.check("CLEAVE_TORCH_PROGRAM is found", done.stdout == "-q selftest\n", done.stdout + done.stderr)


def main(args: list[str]) -> int:
    paths = [a for a in args if a != "--update"]
    if len(paths) != 1:
        print(__doc__)
        return 2
    runner = Runner(paths[0], "--update" in args)
    for plan in sorted(HERE.glob("*.plan")):
        if plan.name.startswith("bad_"):
            runner.bad(plan)
        else:
            runner.good(plan)
    for name in ("cli.txt", "capture.txt", "diff.txt", "partition.txt"):
        runner.transcript(HERE / name)
    runner.models()
    runner.documented()
    runner.shown()
    runner.completion_scripts()
    runner.completes()
    runner.manual()
    runner.colors()
    runner.objects()
    runner.odd_names()
    runner.torch()
    print(f"{runner.passed} passed, {runner.failed} failed")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
