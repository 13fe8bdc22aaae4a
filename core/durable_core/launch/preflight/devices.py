"""L5. Checks of what computes and what connects."""

from __future__ import annotations

from durable_core.launch.preflight.report import Found, failed, not_applicable, ok
from durable_core.launch.preflight.target import Target
from durable_core.types import Promise

#: Seconds for the smoke test where the spec declares no timeout of collectives.
UNDECLARED_S = 30.0
#: Processes of the smoke test: enough to meet, few enough for any host.
MEMBERS = 2


def device(target: Target) -> Found:
    """As many devices as workers here, and each multiplies as it should."""
    found = target.lab.device(target.local, target.device)
    if "error" in found:
        return failed(str(found["error"]), "take the device or its node out of service")
    return ok(f"{found['count']} x {found['device']}: a known product comes out right")


def collective(target: Target) -> Found:
    """Processes meet and add up within the timeout that the workers will be told (SCHED-16)."""
    declared = target.spec.failure.collective_timeout_seconds
    timeout = UNDECLARED_S if declared is None else declared
    found = target.lab.collective(MEMBERS, timeout)
    if "error" in found:
        return failed(
            f"within {timeout:g} s: {found['error']}",
            "look at the network, or raise the timeout",
            transient=True,
        )
    said = "" if declared is not None else "; failure.collective_timeout_seconds is not declared"
    return ok(f"{MEMBERS} members summed up in {found['seconds']:.2f} s of {timeout:g} s{said}")


def link(target: Target) -> Found:
    """Bytes per second of a sum over processes of this host."""
    required = target.link_bytes_per_second
    if required is None:
        return not_applicable("no link speed is required")
    declared = target.spec.failure.collective_timeout_seconds
    found = target.lab.collective(MEMBERS, UNDECLARED_S if declared is None else declared)
    if "error" in found:
        return failed(str(found["error"]), "nothing was measured: the collective failed", transient=True)
    measured = float(found["bytes_per_second"])
    told = f"{measured:.3g} of {required:.3g} bytes/s"
    return (
        ok(told) if measured >= required else failed(told, "take the node with the slow link out of service")
    )


def determinism(target: Target) -> Found:
    """What is declared of the numerics agrees with the promise and with the environment."""
    declared, promise = target.spec.determinism, target.spec.promise
    wrong = []
    if declared is not None and promise is Promise.BITWISE:
        if declared.deterministic_algorithms is False:
            wrong.append("deterministic_algorithms: false")
        if declared.cudnn_benchmark:
            wrong.append("cudnn_benchmark: true")
    if wrong:
        return failed(
            f"the promise is bitwise, and determinism says {', '.join(wrong)}",
            "change the flags, or promise exact-order",
        )
    for name, variable in (("cublas_workspace", "CUBLAS_WORKSPACE_CONFIG"),):
        wanted = None if declared is None else getattr(declared, name)
        here = target.environ.get(variable, "")
        if wanted is not None and here != wanted:
            return failed(f"{variable}={here!r}, and the spec says {wanted!r}", f"export {variable}={wanted}")
    if declared is not None and declared.tf32 is False and target.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
        return failed("NVIDIA_TF32_OVERRIDE=1, and the spec says tf32: false", "unset it")
    if declared is None:
        return not_applicable(f"the spec declares no flags (promise: {promise.value})")
    return ok(f"the declared flags agree with the promise: {promise.value}")
