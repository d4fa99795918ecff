"""torch.cuda.Stream and torch.cuda.Event over torch's generic ones, which reach the simulated device."""

from types import ModuleType
from typing import Any


def install(torch: ModuleType, sim: Any) -> None:
    """Puts the classes and the functions of streams into torch.cuda."""
    cuda = torch.cuda
    cuda_type = int(torch.device("cuda").type == "cuda")  # c10::DeviceType::CUDA is 1

    def index_of(device: Any) -> int:
        return int(cuda._utils._get_device_index(device, optional=True))

    class Stream(torch.Stream):  # type: ignore[name-defined, misc]
        def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> Any:
            cuda._lazy_init()
            if "stream_id" in known:
                return super().__new__(
                    cls,
                    stream_id=known["stream_id"],
                    device_index=known["device_index"],
                    device_type=known.get("device_type", cuda_type),
                )
            return super().__new__(cls, device=torch.device("cuda", index_of(device)), priority=priority)

        cuda_stream = property(lambda self: self.stream_id)
        _as_parameter_ = property(lambda self: self.stream_id)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def __eq__(self, other: object) -> bool:
            if not isinstance(other, torch.Stream):
                return False
            return bool((self.stream_id, self.device) == (other.stream_id, other.device))

        def __hash__(self) -> int:
            return hash((self.stream_id, self.device))

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x} (simulated)>"

    class Event(torch.Event):  # type: ignore[name-defined, misc]
        is_timed: bool

        # The other options of torch's class make no difference here.
        def __new__(cls, enable_timing: bool = False, *_: bool, **__: bool) -> Any:
            event = super().__new__(cls, device="cuda", enable_timing=enable_timing)
            event.is_timed = enable_timing
            return event

        cuda_event = property(lambda self: self.event_id)

        def record(self, stream: Any = None) -> None:
            super().record(cuda.current_stream() if stream is None else stream)

        def wait(self, stream: Any = None) -> None:
            super().wait(cuda.current_stream() if stream is None else stream)

        def elapsed_time(self, end: Any) -> float:
            if not (self.is_timed and end.is_timed):
                raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
            return float(sim.elapsed_time(self, end))

    class StreamContext:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is None:
                return
            self.src_prev_stream = cuda.current_stream(None)
            self.dst_prev_stream = cuda.current_stream(self.stream.device)
            torch.accelerator.set_stream(self.stream)

        def __exit__(self, *_: object) -> None:
            if self.stream is None:
                return
            torch.accelerator.set_stream(self.dst_prev_stream)
            torch.accelerator.set_stream(self.src_prev_stream)

    def current_stream(device: Any = None) -> Any:
        cuda._lazy_init()
        with cuda.device(index_of(device)):
            stream = torch.accelerator.current_stream(index_of(device))
        return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    def default_stream(device: Any = None) -> Any:
        cuda._lazy_init()
        return Stream(stream_id=0, device_index=index_of(device), device_type=cuda_type)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            torch.accelerator.set_stream(stream)

    def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    for module in (cuda, cuda.streams):
        module.Stream, module.Event = Stream, Event
    cuda.current_stream, cuda.default_stream, cuda.set_stream = current_stream, default_stream, set_stream
    cuda._set_stream_by_id = set_stream_by_id
    cuda.StreamContext = cuda.stream = StreamContext
