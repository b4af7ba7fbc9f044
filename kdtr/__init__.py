"""kdtr: golden fixtures and cross-language conformance for speculative-decoding kernels."""

from __future__ import annotations

__version__ = "0.1.0"
