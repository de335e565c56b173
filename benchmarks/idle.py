"""What an idle link costs in memory, in a process of its own. `python -m benchmarks.idle URL ERA NUMBER`."""

import asyncio
import gc
import resource
import sys
from pathlib import Path

from holdfast import Link
from holdfast.links import Options


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def main(url: str, era: str, number: int) -> None:
    options = Options(era=era)  # type: ignore[arg-type]
    for _ in range(20):  # what a first link brings with it, and a second does not
        async with Link(url, options) as link:
            await link.request("tools/list")
    gc.collect()
    before = resident()
    links = [Link(url, options) for _ in range(number)]
    for link in links:
        await link.request("tools/list")
    gc.collect()
    print((resident() - before) / number / 1024)
    for link in links:
        await link.close()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
