"""In which order the parameters of the gradients were registered, which decides buckets that are never rebuilt."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.schema import RunManifest, StepProfile


def register_gradients(profile: StepProfile, manifest: RunManifest | None) -> StepProfile:
    """The profile with its gradients in registration order; as it is where the manifest tells of other gradients.

    Example: parameters 2, 0, 1 are ready in this order, so gradients 1, 2, 0 were registered in that one.
    """
    gradients = profile.slowest.gradients
    if manifest is None or len(manifest.ready_order) != len(gradients) or not profile.sizes_known:
        return profile
    if max(manifest.ready_order) >= len(manifest.parameters):
        return profile
    ready = [manifest.parameters[index] for index in manifest.ready_order]
    if [parameter.num_bytes for parameter in ready] != [gradient.num_bytes for gradient in gradients]:
        return profile
    registered = sorted(range(len(gradients)), key=manifest.ready_order.__getitem__)
    return replace(profile, registered=tuple(registered))
