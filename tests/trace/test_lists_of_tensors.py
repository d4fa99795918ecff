"""What an operator on a list of tensors makes belongs to the blocks of these tensors, whichever are in the list."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from foretune.trace.recorder import Allocation, Recorder


def test_results_belong_to_the_blocks_of_the_tensors_in_the_list() -> None:
    recorder = Recorder(lambda _: None)
    with FakeTensorMode(), recorder:
        weights = [torch.ones(4), torch.ones(5), torch.ones(6), torch.ones(7)]
        for block, weight in enumerate(weights[:3]):
            recorder.blocks_of[recorder.number_of(weight)] = block
        # Without the first, as if it had no gradient; the last is in no block. The second operator works on results.
        roots = torch._foreach_sqrt(weights[1:])
        torch._foreach_neg(roots)
        torch.add(weights[1], 1)
    made = [event for event in recorder.recording.events if isinstance(event, Allocation)]
    operators = ("_foreach_sqrt", "_foreach_neg")
    found = [(event.operator, event.listed_with) for event in made if event.operator in operators]
    assert found == [(name, block) for name in operators for block in (1, 2, None)]
    (alone,) = (event for event in made if event.operator == "add")
    assert alone.listed_with is None
