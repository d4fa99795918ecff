"""Bugs that only a GPU shows: in asynchronous copies, streams, events, page-locked memory and memory statistics."""

from tests.mutants.bug import gpu_bug

_TRANSFERS = "simulated/test_transfers.py"
_ACTIVATIONS = f"{_TRANSFERS}::test_activations_are_copied_beside_computation_and_change_nothing"
_SWAPPED = "step/levers/test_swapping.py::test_on_a_gpu_the_weights_wait_in_page_locked_memory"
_ON_GPU = "step/test_optimizers_on_gpu.py"
_HOST_WAITS = "simulated/test_host_waits.py"
_LIST_OF_WAITS = "training/test_waits_on_gpu.py"
_RUN = "simulated/test_training_run.py"
_SEVERAL = "simulated/test_several_devices.py"
_CPU_COPIES = ("accelerator/test_page_locked.py", "accelerator/test_mps.py", "step/test_late_copies.py")
_CPU_LEVERS = (
    "step/levers/test_swapping.py",
    "step/levers/test_prefetching.py",
    "step/levers/test_offloading.py",
    "step/levers/test_segments.py",
    "step/levers/test_checkpointing.py",
)
_CPU_OPTIMIZERS = ("step/test_late_copies.py", "step/test_optimizer_places.py", "step/test_optimizers.py")
_CPU_LOOP = ("training/test_meter.py", "training/test_phases.py")

BUGS = (
    # Copies
    gpu_bug(
        "a copy from pageable memory is requested as asynchronous",
        "accelerator/copies.py",
        "asynchronous = copies_in_background(device) and page_locked.is_locked(host)",
        "asynchronous = copies_in_background(device)",
        simulated=(_TRANSFERS,),
        cpu=_CPU_COPIES,
    ),
    gpu_bug(
        "the event of a step's numbers is recorded before their copy",
        "accelerator/copies.py",
        """\
        self._host = together.cpu() if not copies_in_background(device) else to_host(together)
        self._copies = CopiesIssued(device)
""",
        """\
        self._copies = CopiesIssued(device)
        self._host = together.cpu() if not copies_in_background(device) else to_host(together)
""",
        simulated=(f"{_TRANSFERS}::test_numbers_are_complete_once_they_are_waited_for",),
        cpu=(*_CPU_LOOP, "accelerator/test_mps.py"),
    ),
    gpu_bug(
        "copies are waited for with all the work of the device",
        "accelerator/copies.py",
        "            self._event.synchronize()",
        "            torch.accelerator.synchronize()",
        simulated=(f"{_TRANSFERS}::test_only_the_copies_are_waited_for",),
        cpu=(*_CPU_COPIES, "step/test_ema.py"),
    ),
    gpu_bug(
        "copies that stay are handed over before they are complete",
        "accelerator/copies.py",
        "        wait_for_copies(device)\n        for _, stored in copies:",
        "        for _, stored in copies:",
        simulated=(_TRANSFERS,),
        cpu=(*_CPU_COPIES, *_CPU_LEVERS[:2]),
    ),
    gpu_bug(
        "copies on the second stream do not wait for computation",
        "accelerator/copy_queues.py",
        "        self._side.wait_stream(self._streams.current_stream(self._device))\n",
        "",
        simulated=(_ACTIVATIONS, _SWAPPED),
        cpu=_CPU_LEVERS,
    ),
    gpu_bug(
        "the end of copies is recorded on the stream that computes",
        "accelerator/copy_queues.py",
        "done.record(self._side)",
        "done.record(self._streams.current_stream(self._device))",
        simulated=(_ACTIVATIONS, _SWAPPED),
        cpu=_CPU_LEVERS,
    ),
    # Memory, random numbers, time
    gpu_bug(
        "the host's cache is emptied instead of the device's",
        "accelerator/memory.py",
        "        torch.accelerator.empty_cache()",
        "        torch.accelerator.empty_host_cache()",
        simulated=("accelerator/test_memory_on_gpu.py",),
        cpu=("accelerator/test_mps.py", "training/test_encoding.py"),
    ),
    gpu_bug(
        "random states of one device are restored",
        "accelerator/random_states.py",
        "devices=range(torch.cuda.device_count())",
        "devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []",
        simulated=("accelerator/test_random_states.py",),
        cpu=("accelerator/test_random_states.py",),
    ),
    gpu_bug(
        "a refusal to page-lock memory ends the run",
        "accelerator/page_locked.py",
        "except RuntimeError as error:",
        "except torch.OutOfMemoryError as error:",
        simulated=(f"{_TRANSFERS}::test_a_run_goes_on_where_page_locking_is_refused",),
        cpu=_CPU_COPIES,
    ),
    gpu_bug(
        "another device is waited for",
        "accelerator/timing.py",
        "torch.accelerator.synchronize(device)",
        "torch.accelerator.synchronize()",
        simulated=("simulated/test_waiting.py",),
        cpu=("training/test_phases.py", "measure/calibration/test_calibrating.py"),
    ),
    gpu_bug(
        "a step counts as made when the device begins it",
        "training/phases.py",
        "return not self.marks or self.marks[-1][1].has_arrived()",
        "return not self.marks or self.marks[0][1].has_arrived()",
        simulated=(_RUN, _LIST_OF_WAITS),
        cpu=_CPU_LOOP,
    ),
    gpu_bug(
        "a step on a GPU is timed by the host's clock",
        "training/meter.py",
        "phases_s = host_s if device_s is None else device_s",
        "phases_s = host_s",
        simulated=(f"{_RUN}::test_steps_are_timed_by_the_clock_of_the_device",),
        cpu=_CPU_LOOP,
    ),
    # Block swap, activation offload, checkpointing
    gpu_bug(
        "a swapped block computes before its weights have arrived",
        "step/levers/swapping.py",
        "        self._copies[number].arrival.wait()\n        frozen =",
        "        frozen =",
        simulated=(_SWAPPED,),
        cpu=_CPU_LEVERS,
    ),
    gpu_bug(
        "memory of a swapped block is released while it is copied",
        "step/levers/swapping.py",
        "        self._copies[number].arrival.wait()\n        del",
        "        del",
        simulated=(f"{_TRANSFERS}::test_a_swapped_block_that_never_ran_leaves_no_copy_in_flight",),
        cpu=_CPU_LEVERS,
    ),
    gpu_bug(
        "an activation is freed while it is copied to the host",
        "step/levers/offloading.py",
        "        self._leaving = _Copy(None, tensor, started[0], tensor._version)\n",
        "",
        simulated=(_ACTIVATIONS,),
        cpu=_CPU_LEVERS,
    ),
    gpu_bug(
        "the random state of a GPU is saved only with activation offload",
        "step/levers/checkpointing.py",
        "_with_tensors_in_front if keeps_rng or moves_inputs else _as_called",
        "_with_tensors_in_front if moves_inputs else _as_called",
        simulated=(_SWAPPED,),
        cpu=_CPU_LEVERS,
    ),
    # Optimizer and average on the host, fused backward
    gpu_bug(
        "bf16 weights are widened before their copies are complete",
        "step/optimizers/on_host.py",
        "    wait_for_copies(device)\n    return {",
        "    return {",
        simulated=(_ON_GPU,),
        cpu=_CPU_OPTIMIZERS,
    ),
    gpu_bug(
        "an offloaded optimizer waits for each gradient",
        "step/optimizers/on_host.py",
        "                weight.grad = None\n            wait_for_copies(moved[0][0].device)\n",
        "                wait_for_copies(weight.device)\n                weight.grad = None\n",
        simulated=(_ON_GPU, f"{_TRANSFERS}::test_an_offloaded_optimizer_waits_once_for_each_step"),
        cpu=_CPU_OPTIMIZERS,
    ),
    gpu_bug(
        "weights are averaged before they have arrived on the host",
        "step/ema.py",
        "        issued.wait()\n",
        "",
        simulated=(f"{_ON_GPU}::test_average_on_the_host",),
        cpu=("step/test_ema.py", "step/test_late_copies.py", "step/test_optimizer_places.py"),
    ),
    gpu_bug(
        "an average on the host is validated there",
        "step/training_step.py",
        "{name: average.to(self.trained[name].device) for name, average",
        "{name: average for name, average",
        simulated=(f"{_SEVERAL}::test_two_devices[DDP-block swap, activation offload, EMA on the host]",),
        cpu=("training/test_validating.py", "step/test_ema.py", "step/test_optimizer_places.py"),
    ),
    gpu_bug(
        "fused backward asks the device whether each gradient is finite",
        "step/optimizers/in_backward.py",
        "        self.updaters[weight].step()\n",
        "        if weight.grad is not None and weight.grad.isfinite().all():\n"
        "            self.updaters[weight].step()\n",
        simulated=(f"{_HOST_WAITS}::test_weights_are_updated_in_the_backward_pass_without_a_wait",),
        cpu=("step/test_optimizer_places.py",),
    ),
    # Checkpoints, batches, waits of the host
    gpu_bug(
        "a checkpoint is written before its copy is complete",
        "training/checkpoint_files.py",
        'shard.tensor.detach().to("cpu", copy=True)',
        'shard.tensor.detach().to("cpu", non_blocking=True, copy=True)',
        simulated=("training/test_saver.py",),
        cpu=("training/test_saver.py", "training/test_checkpoints.py"),
    ),
    gpu_bug(
        "batches are copied to the device from pageable memory",
        "accelerator/copies.py",
        'return {"pin_memory": copies_in_background(device)}',
        'return {"pin_memory": False}',
        simulated=(_LIST_OF_WAITS,),
        cpu=("data/test_loading.py",),
    ),
    gpu_bug(
        "workers of the loader are copies of a process that uses a GPU",
        "data/loading.py",
        'return "fork" if sys.platform == "linux" and not holds_device else "spawn"',
        'return "fork" if sys.platform == "linux" else "spawn"',
        simulated=("data/test_loading.py",),
        cpu=("data/test_loading.py",),
    ),
    gpu_bug(
        "numbers of a family are copied to the device from pageable memory",
        "models/family.py",
        "return moved(page_locked.locked(numbers, device) if copies_in_background(device) else numbers, device)",
        "return moved(numbers, device)",
        simulated=(f"{_HOST_WAITS}::test_latents_are_scaled_without_a_wait",),
        cpu=("models/test_families.py",),
    ),
    # Quantised bases
    gpu_bug(
        "levels of nf4 stay on the host",
        "step/quantizing/bitsandbytes_weights.py",
        "levels = _scale_levels().to(weight.device, copy=True)",
        "levels = _scale_levels()",
        simulated=("step/quantizing/test_layers.py",),
        cpu=("step/quantizing/test_layers.py", "step/quantizing/test_applying.py"),
    ),
    gpu_bug(
        "the backward pass takes quantised weights from where the layer has them",
        "step/quantizing/layer.py",
        "bits = dict(zip(ctx.names, ctx.saved_tensors, strict=True))",
        "bits = ctx.layer.bits()",
        simulated=(_SWAPPED,),
        cpu=("step/quantizing/test_layers.py", *_CPU_LEVERS[:2]),
    ),
    # Several devices
    gpu_bug(
        "DDP is given weights that are on the host",
        "step/engine.py",
        "        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(denoiser, frozen)\n",
        "",
        simulated=("simulated/test_ddp_and_the_host.py",),
        cpu=("step/test_what_engines_send.py",),
    ),
    gpu_bug(
        "DDP computes on the first GPU in every process",
        "step/engine.py",
        'device_ids=[device] if device.type == "cuda" else None',
        'device_ids=[0] if device.type == "cuda" else None',
        simulated=("simulated/test_ddp_and_the_host.py::test_ddp_computes_on_the_device_of_its_process",),
        cpu=("step/test_what_engines_send.py",),
    ),
    gpu_bug(
        "the first GPU is the current one in every process",
        "training/ranks.py",
        "        torch.cuda.set_device(device)\n",
        "        torch.cuda.init()\n",
        simulated=("simulated/test_current_device.py",),
        cpu=(
            "training/test_ranks.py::test_a_process_finds_its_place",
            "training/test_ranks.py::test_two_processes_save_in_the_background",
        ),
    ),
    gpu_bug(
        "a process that sees only its own GPU looks for another one",
        "training/devices.py",
        'index = local_rank if wanted == "cuda" and len(of_type) > 1 else 0',
        'index = local_rank if wanted == "cuda" else 0',
        simulated=("simulated/test_current_device.py",),
        cpu=("training/test_devices.py", "training/test_places.py"),
    ),
    gpu_bug(
        "gradients are clipped by the norm of a process's own shards",
        "step/clipping.py",
        "            dist.all_reduce(square, group=first.device_mesh.get_group(axis))\n",
        "            first.device_mesh.get_group(axis)\n",
        simulated=(f"{_SEVERAL}::test_two_devices[FSDP2-full]",),
        cpu=("training/test_sharded_checkpoints.py", "step/test_what_engines_send.py"),
    ),
    gpu_bug(
        "energy is that of the first GPU",
        "training/places.py",
        "return tuple(places[other] for other in on_host) if rank == on_host[0] else ()",
        "return (places[rank],) if rank == on_host[0] else ()",
        simulated=(f"{_SEVERAL}::test_energy_and_peak_are_those_of_all_devices_of_all_hosts",),
        cpu=("training/test_places.py", "training/telemetry/test_sampler.py"),
    ),
    gpu_bug(
        "the peak of a run is that of its first process",
        "training/run_totals.py",
        "_most([one.peak_device_bytes for one in found])",
        "own.peak_device_bytes",
        simulated=(f"{_SEVERAL}::test_energy_and_peak_are_those_of_all_devices_of_all_hosts",),
        cpu=("training/test_places.py",),
    ),
    # Runs, sampling, fp16, out of memory, visible devices
    gpu_bug(
        "a run has the peak of the run before it",
        "training/train.py",
        "    reset_peaks(choose_device(experiment.parallel.device, ranks.local_rank))\n",
        "",
        simulated=(f"{_TRANSFERS}::test_each_of_two_trainings_in_a_process_records_its_own_peak",),
        cpu=("training/test_train.py::test_epochs_become_steps", "training/test_devices.py"),
    ),
    gpu_bug(
        "models are sampled in fp32 wherever they were trained",
        "training/sampling_setup.py",
        "choice.precision or (usual_precision(device) if experiment is None else experiment.train.precision)",
        'choice.precision or "fp32"',
        simulated=("simulated/test_workflow.py::test_a_model_is_sampled_in_half_precision_if_nobody_says_otherwise",),
        cpu=("quality/test_gathering.py", "training/test_sampling.py", "quality/test_side_by_side.py"),
    ),
    gpu_bug(
        "validation prompts stay on the host",
        "training/validating.py",
        "t.to(device, dtype if t.is_floating_point() else None)",
        "t.to(dtype if t.is_floating_point() else t.dtype)",
        simulated=(f"{_RUN}::test_prompts_are_sampled_on_the_device",),
        cpu=("training/test_validating.py",),
    ),
    gpu_bug(
        "mixed precision is switched on for the CPU",
        "step/sample_loss.py",
        "policy.autocast(clean.device.type)",
        'policy.autocast("cpu")',
        simulated=(_RUN, _SWAPPED),
        cpu=("step/test_precision.py", "step/test_training_step.py"),
    ),
    gpu_bug(
        "only the caching allocator runs out of memory",
        "core/memory_errors.py",
        "return lacking_memory_in(str(error)) if isinstance(error, RuntimeError) else None",
        "return None",
        simulated=("simulated/test_out_of_memory.py",),
        cpu=("core/test_memory_errors.py", "training/test_train.py::test_running_out_of_memory_is_distinguished"),
    ),
    gpu_bug(
        "cards that a container hides are given to tasks",
        "executors/local.py",
        "        num = _num_seen_by_torch(variables, unless_known=num)\n",
        "        num = num or _num_seen_by_torch(variables, unless_known=num)\n",
        simulated=("simulated/test_tasks.py",),
        cpu=("executors/test_devices.py", "executors/test_local.py"),
    ),
)
