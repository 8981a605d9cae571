//! GPUs of a pod.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// GPUs that a pod of this spec holds: the larger of what its containers ask for together and what one init container asks for.
///
/// `None`: unknown, because the pod claims devices by ResourceClaim and asks for none by `resource`, or a quantity is no whole number.
pub(crate) fn of_pod(spec: &PodSpec, resource: &str) -> Option<u32> {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let (sidecars, once): (Vec<&Container>, Vec<&Container>) = init
        .iter()
        .partition(|container| container.restart_policy.as_deref() == Some("Always"));
    let mut running = 0;
    for container in spec.containers.iter().chain(sidecars) {
        running += of_container(container, resource)?;
    }
    let mut starting = 0;
    for container in once {
        starting = starting.max(of_container(container, resource)?);
    }
    let gpus = running.max(starting);
    let claims = spec
        .resource_claims
        .as_ref()
        .is_some_and(|claims| !claims.is_empty());
    (gpus > 0 || !claims).then_some(gpus)
}

fn of_container(container: &Container, resource: &str) -> Option<u32> {
    let asked = container.resources.as_ref().and_then(|resources| {
        let limit = resources
            .limits
            .as_ref()
            .and_then(|limits| limits.get(resource));
        limit.or_else(|| {
            resources
                .requests
                .as_ref()
                .and_then(|requests| requests.get(resource))
        })
    });
    asked.map_or(Some(0), |quantity| quantity.0.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gpus(spec: serde_json::Value) -> Option<u32> {
        of_pod(&serde_json::from_value(spec).unwrap(), "nvidia.com/gpu")
    }

    #[test]
    fn containers_add_up_and_init_containers_do_not() {
        let container = |name: &str, gpus: &str| json!({"name": name, "resources": {"limits": {"nvidia.com/gpu": gpus}}});
        let spec = json!({"containers": [container("a", "4"), container("b", "2")], "initContainers": [container("c", "8")]});
        assert_eq!(gpus(spec), Some(8));
        let mut sidecar = container("d", "1");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({"containers": [container("a", "4")], "initContainers": [sidecar]});
        assert_eq!(gpus(spec), Some(5));
    }

    #[test]
    fn no_gpu_is_zero_and_a_claim_is_unknown() {
        assert_eq!(gpus(json!({"containers": [{"name": "a"}]})), Some(0));
        assert_eq!(
            gpus(json!({"containers": [{"name": "a"}], "resourceClaims": [{"name": "gpu"}]})),
            None
        );
        let odd = json!({"containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": "500m"}}}]});
        assert_eq!(gpus(odd), None);
    }
}
