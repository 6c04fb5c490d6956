"""``python -m ds_dip.reproduction``: runs the parts that its input names, and tells its progress, JSON a line."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from ds_dip.files import FileError, first_line
from ds_dip.reproduction.catalogue import parts_of
from ds_dip.reproduction.running import Event, ordered, run_part
from ds_dip.reproduction.store import digest


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _watch(event: Event) -> None:
    _tell({"step": event.what})


def _read(orders: queue.Queue[dict[str, Any]]) -> None:
    """Take orders; where there are no more, the other end is gone or content, and this process ends at once."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Run one part after another."""
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        key, folder, settings = ordered(orders.get())
        try:
            run_part(settings, parts_of(settings.quick, settings.paper)[key], folder, digest(settings), _watch)
        except (FileError, OSError, ValueError) as error:
            _tell({"failed": first_line(error)})
        else:
            _tell({"done": key})


if __name__ == "__main__":
    main()
