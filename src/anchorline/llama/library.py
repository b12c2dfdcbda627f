"""llama.cpp as a loaded library: its functions, its log, and the ggml/gguf calls that the binding leaves out.

Everything in this package reaches llama.cpp through ``api``. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_cpp import llama_cpp as _bindings

api: Any = _bindings
"""llama.h as ctypes functions; typed as Any because the binding's types are not."""

logger = logging.getLogger("anchorline.llama")

_ERROR_LINES = 20
_CONTINUATION = 5
_SAYS_NOTHING = ("failed to load model", "failed to decode", "failed to initialize batch")
_EXPECTED = "failed to find a memory slot"
"""Said whenever the pool is full, which the engine handles and reports itself."""
_LEVELS = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


class LogBridge:
    """Takes llama.cpp's log lines to ``logging`` and keeps the latest errors of whoever listens.

    llama.cpp has one log for the whole process, so there is one bridge. It may be called on any
    thread. Info lines become DEBUG: they describe llama.cpp's insides, not the server's.
    """

    def __init__(self) -> None:
        self._level = logging.DEBUG
        self._partial = ""
        self._listeners: list[deque[str]] = []
        self._sizes: list[list[str]] = []
        self._quiet_thread: int | None = None
        self.recent: deque[str] = deque(maxlen=_ERROR_LINES)
        """The latest warnings and errors of the whole process."""
        self.callback = api.llama_log_callback(self._receive)

    def _receive(self, native_level: int, text: bytes, _user_data: Any) -> None:
        if native_level != _CONTINUATION:
            self._level = _LEVELS.get(native_level, logging.DEBUG)
        if self._level == logging.DEBUG and not self._sizes and not logger.isEnabledFor(logging.DEBUG):
            return
        lines = (self._partial + text.decode("utf-8", "replace")).split("\n")
        self._partial = lines.pop()
        for line in filter(None, map(str.rstrip, lines)):
            expected = _EXPECTED in line or self._quiet_thread == threading.get_ident()
            level = logging.DEBUG if expected else self._level
            logger.log(level, "%s", line)
            if " size = " in line:
                for collected in self._sizes:
                    collected.append(line)
            if level >= logging.WARNING:
                for listener in (self.recent, *self._listeners):
                    listener.append(line)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Take what llama.cpp says on this thread inside the block as expected."""
        self._quiet_thread = threading.get_ident()
        try:
            yield
        finally:
            self._quiet_thread = None

    @contextmanager
    def sizes(self) -> Iterator[list[str]]:
        """Collect the lines logged inside the block that give a size."""
        lines: list[str] = []
        self._sizes.append(lines)
        try:
            yield lines
        finally:
            self._sizes[:] = [other for other in self._sizes if other is not lines]

    @contextmanager
    def listen(self) -> Iterator[deque[str]]:
        """Collect the latest warnings and errors logged inside the block."""
        lines: deque[str] = deque(maxlen=_ERROR_LINES)
        self._listeners.append(lines)
        try:
            yield lines
        finally:
            # By identity: two listeners with equal lines are still two.
            self._listeners[:] = [other for other in self._listeners if other is not lines]


def reason(lines: deque[str], *, otherwise: str) -> str:
    """The last thing llama.cpp complained about that says more than that something failed."""
    for line in reversed(lines):
        if not any(phrase in line for phrase in _SAYS_NOTHING):
            return re.sub(r"^\w+: (error loading model: )?", "", line)
    return lines[-1] if lines else otherwise


log = LogBridge()
# The binding installs a log callback of its own when it is imported; ours replaces it.
api.llama_log_set(log.callback, ctypes.c_void_p(0))
api.llama_backend_init()

_native = api._lib
_Pointer = ctypes.c_void_p


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    """Look up a ggml or gguf function; libllama's dependencies are searched along with it."""
    function = getattr(_native, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function


ggml_commit = _declare("ggml_commit", ctypes.c_char_p)
ggml_row_size = _declare("ggml_row_size", ctypes.c_size_t, ctypes.c_int, ctypes.c_int64)
ggml_blck_size = _declare("ggml_blck_size", ctypes.c_int64, ctypes.c_int)
ggml_get_name = _declare("ggml_get_name", ctypes.c_char_p, _Pointer)
ggml_nelements = _declare("ggml_nelements", ctypes.c_int64, _Pointer)
ggml_nbytes = _declare("ggml_nbytes", ctypes.c_size_t, _Pointer)
ggml_backend_tensor_set = _declare(
    "ggml_backend_tensor_set", None, _Pointer, _Pointer, ctypes.c_size_t, ctypes.c_size_t
)
ggml_backend_dev_count = _declare("ggml_backend_dev_count", ctypes.c_size_t)
ggml_backend_dev_get = _declare("ggml_backend_dev_get", _Pointer, ctypes.c_size_t)
ggml_backend_dev_name = _declare("ggml_backend_dev_name", ctypes.c_char_p, _Pointer)
ggml_backend_dev_type = _declare("ggml_backend_dev_type", ctypes.c_int, _Pointer)
ggml_backend_dev_backend_reg = _declare("ggml_backend_dev_backend_reg", _Pointer, _Pointer)
ggml_backend_reg_name = _declare("ggml_backend_reg_name", ctypes.c_char_p, _Pointer)
ggml_backend_dev_buffer_type = _declare("ggml_backend_dev_buffer_type", _Pointer, _Pointer)
ggml_backend_buft_name = _declare("ggml_backend_buft_name", ctypes.c_char_p, _Pointer)


class GgufInitParams(ctypes.Structure):
    """struct gguf_init_params: whether tensors get memory, and where a ggml_context goes."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


gguf_init_empty = _declare("gguf_init_empty", _Pointer)
gguf_init_from_file = _declare("gguf_init_from_file", _Pointer, ctypes.c_char_p, GgufInitParams)
gguf_find_key = _declare("gguf_find_key", ctypes.c_int64, _Pointer, ctypes.c_char_p)
gguf_get_kv_type = _declare("gguf_get_kv_type", ctypes.c_int, _Pointer, ctypes.c_int64)
gguf_get_arr_type = _declare("gguf_get_arr_type", ctypes.c_int, _Pointer, ctypes.c_int64)
gguf_get_arr_n = _declare("gguf_get_arr_n", ctypes.c_size_t, _Pointer, ctypes.c_int64)
gguf_get_arr_str = _declare("gguf_get_arr_str", ctypes.c_char_p, _Pointer, ctypes.c_int64, ctypes.c_size_t)
gguf_get_val_u32 = _declare("gguf_get_val_u32", ctypes.c_uint32, _Pointer, ctypes.c_int64)
gguf_get_data_offset = _declare("gguf_get_data_offset", ctypes.c_size_t, _Pointer)
gguf_get_n_tensors = _declare("gguf_get_n_tensors", ctypes.c_int64, _Pointer)
gguf_get_tensor_name = _declare("gguf_get_tensor_name", ctypes.c_char_p, _Pointer, ctypes.c_int64)
gguf_get_tensor_offset = _declare("gguf_get_tensor_offset", ctypes.c_size_t, _Pointer, ctypes.c_int64)
gguf_get_tensor_size = _declare("gguf_get_tensor_size", ctypes.c_size_t, _Pointer, ctypes.c_int64)
gguf_free = _declare("gguf_free", None, _Pointer)
gguf_set_val_u32 = _declare("gguf_set_val_u32", None, _Pointer, ctypes.c_char_p, ctypes.c_uint32)
gguf_set_val_f32 = _declare("gguf_set_val_f32", None, _Pointer, ctypes.c_char_p, ctypes.c_float)
gguf_set_val_bool = _declare("gguf_set_val_bool", None, _Pointer, ctypes.c_char_p, ctypes.c_bool)
gguf_set_val_str = _declare("gguf_set_val_str", None, _Pointer, ctypes.c_char_p, ctypes.c_char_p)
gguf_set_arr_data = _declare(
    "gguf_set_arr_data", None, _Pointer, ctypes.c_char_p, ctypes.c_int, _Pointer, ctypes.c_size_t
)
gguf_set_arr_str = _declare(
    "gguf_set_arr_str", None, _Pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t
)

GGUF_TYPE_UINT32 = 4
GGUF_TYPE_INT32 = 5
GGUF_TYPE_FLOAT32 = 6
GGUF_TYPE_BOOL = 7
GGUF_TYPE_STRING = 8
GGUF_TYPE_ARRAY = 9

KV_TYPE_IDS = {
    "f32": api.GGML_TYPE_F32,
    "f16": api.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the binding does not name
    "q8_0": api.GGML_TYPE_Q8_0,
    "q4_0": api.GGML_TYPE_Q4_0,
    "q4_1": api.GGML_TYPE_Q4_1,
    "iq4_nl": api.GGML_TYPE_IQ4_NL,
    "q5_0": api.GGML_TYPE_Q5_0,
    "q5_1": api.GGML_TYPE_Q5_1,
}
UNQUANTISED = frozenset({"f32", "f16", "bf16"})


def build_description() -> str:
    """Package version and what this build of llama.cpp was compiled with."""
    import llama_cpp

    system = api.llama_print_system_info().decode("utf-8", "replace").strip()
    return f"llama-cpp-python {llama_cpp.__version__} ({system})"


def build_commit() -> str:
    """The commit of llama.cpp that this build was made from, as far as it knows."""
    commit: bytes = ggml_commit()
    return commit.decode("utf-8", "replace")
