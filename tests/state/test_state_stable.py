"""Only what the next update alone changes may be copied later."""

import torch
from torch import nn

from durable_core.state import stable, tree


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 256))


def stepped(net, optimizer):
    net(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    return optimizer


def keys_of(objects, optimizers, modules):
    tensors = tree.flatten({name: obj.state_dict() for name, obj in objects.items()}, prefix="state").tensors
    return stable.keys(tensors, stable.storages(optimizers, modules)), tensors


def test_parameters_and_moments_are_stable_and_buffers_are_not():
    net = model()
    optimizer = stepped(net, torch.optim.AdamW(net.parameters()))
    found, tensors = keys_of({"model": net, "optimizer": optimizer}, [optimizer], [net])
    assert {key for key in found if key.startswith("state/model")} == {
        "state/model/0.weight", "state/model/2.weight"
    }  # fmt: skip
    assert sum("exp_avg" in key for key in found) == 4
    assert not any("running" in key or "bias" in key for key in found)  # a buffer; too small
    assert found < set(tensors)


def test_a_frozen_base_under_an_adapter_is_stable_and_an_average_is_not():
    base = nn.Linear(512, 512, bias=False).requires_grad_(False)
    net = nn.ModuleDict({"base": base, "adapter": nn.Linear(512, 512, bias=False)})
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(net["adapter"].parameters(), 0.1)
    found, _ = keys_of({"model": net, "ema": average}, [optimizer], [net, average])
    assert found == {"state/model/base.weight", "state/model/adapter.weight"}


def test_an_optimizer_with_closures_leaves_everything_to_the_boundary():
    net = nn.Linear(256, 256)
    optimizer = torch.optim.LBFGS(net.parameters())
    assert keys_of({"model": net}, [optimizer], [net])[0] == frozenset()


def test_parameters_that_some_other_optimizer_may_change_at_any_time_are_left_out():
    class Foreign(torch.optim.SGD):
        def eval(self): ...

    one, two = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
    net = nn.ModuleDict({"one": one, "two": two})
    known = torch.optim.SGD(one.parameters(), 0.1)
    for other in (Foreign(two.parameters(), 0.1), torch.optim.LBFGS(two.parameters())):
        assert keys_of({"model": net}, [known, other], [net])[0] == {"state/model/one.weight"}


def test_parameters_that_are_updated_in_the_backward_pass_are_left_out():
    one, two, three = (nn.Linear(256, 256, bias=False) for _ in range(3))
    net = nn.ModuleDict({"one": one, "two": two, "three": three})
    two.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    optimizer = torch.optim.SGD([one.weight, two.weight], 0.1)  # the third: somebody else's, unseen
    assert keys_of({"model": net}, [optimizer], [net])[0] == {"state/model/one.weight"}
