"""What the runners share: jobs read from standard input, and their results, one line each, in the file that is named.

A job is {"target": DIR, "drafter": DIR or null, "length": draft tokens, "max_new": tokens, "prompts": [[token ids]]} and
what the engine wants besides. A result is {"tokens": [[..]], "drafts": [..], "drafted": [..], "accepted": [..]}, the last
three as the engine counts them for each prompt, or {"error": "..."}.
"""
import json
import multiprocessing
import os
import sys
import traceback

os.environ["HF_HUB_OFFLINE"] = "1"
# The models are tiny: more threads wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Result:
    """Collects what the engine says of each prompt."""

    def __init__(self):
        self.found = {"tokens": [], "drafts": [], "drafted": [], "accepted": []}

    def add(self, tokens, drafts, drafted, accepted):
        for name, value in zip(self.found, ([int(t) for t in tokens], int(drafts), int(drafted), int(accepted))):
            self.found[name].append(value)


def longest(job):
    """Tokens of the longest sequence, with room for drafts that go too far: engines draft nothing that would not fit."""
    return max(map(len, job["prompts"])) + job["max_new"] + 4 * job["length"]


def attempt(run, job, out):
    try:
        found = run(job).found
    except BaseException:
        found = {"error": traceback.format_exc()}
    with open(out, "a") as file:
        file.write(json.dumps(found) + "\n")


def run_all(run):
    """`run` makes a result of a job. Each has a process of its own, forked from this one, which has imported the engine."""
    [out] = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    for number, job in enumerate(json.load(sys.stdin), 1):
        process = fork.Process(target=attempt, args=(run, job, out))
        process.start()
        process.join()
        if not os.path.exists(out) or sum(1 for _ in open(out)) < number:
            raise SystemExit(f"job {number} died with {process.exitcode}")
