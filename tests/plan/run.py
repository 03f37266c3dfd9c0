"""Golden tests of plan text and of the command line.

    python tests/plan/run.py path/to/cleave [--update]

Beside each x.plan lie x.print and x.inspect, what `cleave print` and `cleave inspect` write, and x.source, what
`cleave source` writes or why it refuses. Beside each bad_x.plan lies bad_x.err, what `cleave verify` says about it.
cli.txt is a transcript: each `$ cleave …` is run and what it writes must follow. The example of docs/plan-format.md
must print as itself. --update rewrites the expected files; look at the difference before you commit it.
"""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs" / "plan-format.md"


class Runner:
    """Runs the command in this folder and compares what it writes with files."""

    def __init__(self, cleave: str, update: bool) -> None:
        self.cleave = str(Path(cleave).resolve())
        self.update = update
        self.passed = 0
        self.failed = 0

    def run(self, *args: str, text: str = "") -> tuple[int, str, str]:
        command = [self.cleave, *args]
        done = subprocess.run(command, cwd=HERE, input=text.encode(), capture_output=True, timeout=60, check=False)
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
        printed = plan.with_suffix(".print")
        code, out, err = self.run("print", printed.name)
        self.check(f"{plan.name}: the canonical text prints as itself", out == printed.read_text(), err)

    def bad(self, plan: Path) -> None:
        """A plan that is refused, with its message."""
        code, out, err = self.run("verify", plan.name)
        self.check(f"{plan.name}: exit status", code == 1 and not out, f"exit status {code}")
        self.compare(f"{plan.name}: message", err, plan.with_suffix(".err"))

    def transcript(self, file: Path) -> None:
        """Each command of the transcript, run again."""
        got = []
        for line in re.findall(r"^\$ cleave(.*)$", file.read_text(), re.MULTILINE):
            code, out, err = self.run(*shlex.split(line))
            got.append(f"$ cleave{line}\n{out}{err}[exit status {code}]\n")
        self.compare(file.name, "\n".join(got), file)

    def documented(self) -> None:
        """The example of the documentation is a plan, in canonical form."""
        found = re.search(r"^```\n(cleave-plan 1\n.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
        example = found.group(1) if found else ""
        _, out, err = self.run("print", "-", text=example)
        self.check("the example of plan-format.md", out == example and example != "", err or out)


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
    runner.transcript(HERE / "cli.txt")
    runner.documented()
    print(f"{runner.passed} passed, {runner.failed} failed")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
