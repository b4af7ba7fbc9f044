"""Work on a Dask cluster. The package is optional: `pip install kdtr[cluster]`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kdtr import __version__
from kdtr.errors import KdtrError

Item = TypeVar("Item")
Result = TypeVar("Result")


def need(module: str) -> Any:
    """An optional module. Raises KdtrError when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise KdtrError(module, "is not installed", remedy="pip install kdtr[cluster]") from error


def run(
    scheduler: str, task: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[int, Result]]:
    """Call `task` on each item on the workers: (position, result) as they come.

    Raises KdtrError when no cluster answers or a worker has another version of kdtr; errors of a
    task are raised here.
    """
    with _connected(scheduler) as client:
        at = {client.submit(task, item, pure=False): i for i, item in enumerate(items)}
        try:
            for future in need("distributed").as_completed(list(at), loop=client.loop):
                yield at.pop(future), future.result()
                future.release()  # the cluster holds few results at a time
        finally:
            client.cancel(list(at))


def _version() -> str:
    return __version__


@contextlib.contextmanager
def _connected(scheduler: str) -> Iterator[Any]:
    try:
        client = need("distributed").Client(scheduler, timeout="30s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise KdtrError(scheduler, "no Dask scheduler answers", got=error) from None
    with client:
        versions = set(client.run(_version).values())
        if not versions:
            raise KdtrError(scheduler, "the cluster has no workers")
        if versions != {__version__}:
            raise KdtrError(scheduler, "kdtr on the workers", __version__, sorted(versions))
        yield client
