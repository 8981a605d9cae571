//! How long pods take from creation to readiness, seen by watching them become ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::views::PodView;

/// Pods of a policy that are not ready yet. A pod that is ready when first seen tells nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Starts {
    /// By uid: whether it could not be scheduled at some time.
    waiting: BTreeMap<String, bool>,
}

impl Starts {
    /// Takes in the pods of a policy, each with its role, and gives the starts that ended since the last call.
    ///
    /// A start takes from creation to readiness; time in which the pod could not be scheduled is left out.
    pub(crate) fn observe<'a>(
        &mut self,
        pods: impl Iterator<Item = (&'a str, &'a Arc<PodView>)>,
    ) -> Vec<(&'a str, Duration)> {
        let before = std::mem::take(&mut self.waiting);
        let mut ended = Vec::new();
        for (role, pod) in pods {
            let uid = &pod.facts.uid;
            let was_stuck = before.get(uid).copied();
            match pod.ready {
                None if !pod.terminating => {
                    let stuck = was_stuck.unwrap_or(false) || pod.unschedulable.is_some();
                    self.waiting.insert(uid.clone(), stuck);
                }
                Some(ready) => ended.extend(
                    was_stuck
                        .and_then(|stuck| took(pod, ready, stuck))
                        .map(|took| (role, took)),
                ),
                None => {}
            }
        }
        ended
    }
}

fn took(pod: &PodView, ready: Timestamp, stuck: bool) -> Option<Duration> {
    let from = if stuck { pod.scheduled? } else { pod.created? };
    Duration::try_from(ready.duration_since(from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn pod(conditions: &Value) -> Arc<PodView> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "engine"}]},
            "status": {"phase": "Running", "conditions": conditions},
        }))
        .unwrap();
        Arc::new(PodView::new(pod, "nvidia.com/gpu"))
    }

    fn condition(type_: &str, status: &str, at: &str) -> Value {
        json!({"type": type_, "status": status, "lastTransitionTime": format!("2026-01-01T00:{at}Z")})
    }

    const NONE: [Duration; 0] = [];

    fn observed(starts: &mut Starts, conditions: &Value) -> Vec<Duration> {
        let pod = pod(conditions);
        starts
            .observe(std::iter::once(("server", &pod)))
            .into_iter()
            .map(|(_, took)| took)
            .collect()
    }

    #[test]
    fn a_start_is_timed_from_creation_once() {
        let mut starts = Starts::default();
        let scheduled = condition("PodScheduled", "True", "00:01");
        assert_eq!(observed(&mut starts, &json!([scheduled])), NONE);
        let ready = json!([scheduled, condition("Ready", "True", "01:30")]);
        assert_eq!(observed(&mut starts, &ready), [Duration::from_secs(90)]);
        assert_eq!(observed(&mut starts, &ready), NONE);
    }

    #[test]
    fn time_without_a_place_is_left_out() {
        let mut starts = Starts::default();
        assert_eq!(
            observed(
                &mut starts,
                &json!([condition("PodScheduled", "False", "00:01")])
            ),
            NONE
        );
        let ready = json!([
            condition("PodScheduled", "True", "10:00"),
            condition("Ready", "True", "10:40")
        ]);
        assert_eq!(observed(&mut starts, &ready), [Duration::from_secs(40)]);
    }

    #[test]
    fn a_pod_that_was_ready_before_tells_nothing() {
        let ready = json!([
            condition("PodScheduled", "True", "00:01"),
            condition("Ready", "True", "01:30")
        ]);
        assert_eq!(observed(&mut Starts::default(), &ready), NONE);
    }
}
