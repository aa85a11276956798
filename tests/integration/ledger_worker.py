"""A worker process for the kill tests: writes down every run before it lets the job complete.

Usage: python ledger_worker.py URL LEDGER LEASE_S WORK_S QUEUE...
"""

import os
import sys
import time

import pyq


def main() -> None:
    url, ledger_path, lease_s, work_s, *queues = sys.argv[1:]
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(job: pyq.JobContext) -> str:
        run = os.urandom(8).hex()
        os.write(ledger, f"{job.id} {job.attempt} {run}\n".encode())
        if float(work_s):
            time.sleep(float(work_s))
        return run

    pyq.Worker(*queues, handler=handle, url=url, concurrency=8, lease=float(lease_s)).run()


if __name__ == "__main__":
    main()
