"""Builds the optional extension ``rotary.kernels._cpu``; everything else is in pyproject.toml.

The extension needs a C++17 compiler and PyTorch at build time. Where either is missing, or the
compiler fails, the installation succeeds without it, says so, and the rotation runs in plain
PyTorch. It uses only PyTorch's stable ABI and Python's limited API, so one build serves PyTorch
2.10 and later and Python 3.10 and later.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

STABLE_ABI = "0x020a000000000000"  # PyTorch 2.10, the oldest that the extension must run with.

GCC_FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
MSVC_FLAGS = ["/std:c++17", "/O2", "/EHsc"]


class OptionalBuild(build_ext):
    """Build the extension if that is possible; say why if it is not."""

    def run(self) -> None:
        """Build, or say why not."""
        try:
            super().run()
        except Exception as error:  # No compiler, no headers, an unknown flag: all the same here.
            self._skip(error)

    def build_extension(self, ext: Extension) -> None:
        """Compile against the PyTorch that is installed."""
        try:
            from torch.utils.cpp_extension import include_paths, library_paths

            ext.include_dirs += include_paths()
            ext.library_dirs += library_paths()
            is_msvc = self.compiler.compiler_type == "msvc"
            ext.extra_compile_args = MSVC_FLAGS if is_msvc else GCC_FLAGS
            super().build_extension(ext)
        except Exception as error:
            self._skip(error)

    def copy_extensions_to_source(self) -> None:
        """Of an editable install; there is nothing to copy where nothing was built."""
        try:
            super().copy_extensions_to_source()
        except Exception as error:
            self._skip(error)

    def get_outputs(self) -> list[str]:
        """The files that are really there."""
        return [path for path in super().get_outputs() if _exists(path)]

    def _skip(self, error: Exception) -> None:
        print(
            f"rotary: the CPU extension was not built ({type(error).__name__}: {error}). The "
            "package works without it, in plain PyTorch; with a C++17 compiler and "
            "`pip install --no-build-isolation` it is faster.",
            file=sys.stderr,
        )


def _exists(path: str) -> bool:
    from pathlib import Path

    return Path(path).exists()


setup(
    ext_modules=[
        Extension(
            "rotary.kernels._cpu",
            ["src/rotary/kernels/cpu.cpp"],
            depends=[
                f"src/rotary/kernels/cpu_{part}.h" for part in ("rows", "running", "tables", "walk")
            ],
            language="c++",
            define_macros=[("TORCH_TARGET_VERSION", STABLE_ABI)],
            libraries=["torch_cpu", "c10"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
