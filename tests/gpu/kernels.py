"""Which kernels time goes to, from what CubeCL writes with `[profiling] logger = { level = "basic", file = "launches.log" }`.

    python kernels.py launches.log
"""

import collections
import re
import sys

UNITS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
LINE = re.compile(r"\| ([0-9.]+)(ns|µs|ms|s) *\| (.*)")
SHOWN = 30


def main():
    spent, launches = collections.Counter(), collections.Counter()
    with open(sys.argv[1], errors="replace") as lines:
        for found in filter(None, map(LINE.match, lines)):
            name = found[3].strip()[:100]
            spent[name] += float(found[1]) * UNITS[found[2]]
            launches[name] += 1
    total = sum(spent.values())
    print(f"{total:.1f} ms in {sum(launches.values())} launches")
    for name, took in spent.most_common(SHOWN):
        print(f"{took:10.2f} ms {100 * took / total:5.1f} % {launches[name]:6d} x {name}")


if __name__ == "__main__":
    main()
