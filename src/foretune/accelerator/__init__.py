"""How tensors are copied to and from a device, awaited and timed there, and what memory the device reports.

All code that depends on how a device executes (streams, events, page-locked memory, asynchronous copies, memory
statistics, random states) is in this package. Its functions take a device and work on all of them. Devices differ:

- CUDA and ROCm execute a queue. Copies between the device and page-locked memory run in the background.
- MPS executes a queue, but its asynchronous copies and its timing events are unusable in torch 2.13 (see
  `copies_in_background` and `timing.clock_of`). Copies wait, and the host's clock measures.
- A CPU is its own host: everything is complete when a function returns.
"""
