//! What a pod wants from the node that plays it, read from its manifest. Pure.
//!
//! - A container whose image is `…/coppice-loadtest` and whose first argument is `engine` is a simulated engine: it is
//!   really served, at the pod's address. The same manifest runs on a real cluster. One a pod.
//! - Every other container is only said to run.
//! - The init container `grove-initc` holds the pod until the PodCliques that it names are ready; every other init
//!   container is done at once, and one that restarts always (a sidecar) runs.
//! - Annotations: [`STARTUP`], [`SHUTDOWN`].

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};

/// Annotation: the median time from the pod's start to ready, for instance `20s`; instead of the fleet's.
pub const STARTUP: &str = "testbed.coppice.dev/startup";
/// Annotation: how long a pod without an engine takes to end after its deletion, for instance `5s`; the grace period
/// still bounds it. Without it such a pod ends at once.
pub const SHUTDOWN: &str = "testbed.coppice.dev/shutdown";

/// The init container that holds a pod until the cliques before it are ready.
const GATE: &str = "grove-initc";
/// The port an engine listens on when its arguments name none.
const ENGINE_PORT: u16 = 8000;

/// What to play for one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Script {
    /// The name that stays when the pod is replaced: the hostname where there is one.
    pub(super) who: String,
    /// In the order of the manifest.
    pub(super) init_containers: Vec<Played>,
    pub(super) containers: Vec<Played>,
    pub(super) restart: Restart,
    /// The arguments of the gate, when the pod has one.
    pub(super) gate: Option<Vec<String>>,
    pub(super) engine: Option<Engine>,
    pub(super) startup: Option<Duration>,
    pub(super) shutdown: Duration,
    /// What in the pod could not be understood; the pod is played without it.
    pub(super) complaints: Vec<String>,
}

/// A container that is said to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Played {
    pub(super) name: String,
    pub(super) image: String,
    /// An init container that restarts always.
    pub(super) is_sidecar: bool,
}

/// A container that is really served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Engine {
    /// Behind `engine`.
    pub(super) arguments: Vec<String>,
    pub(super) port: u16,
}

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Script {
    pub(super) fn read(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let mut complaints = Vec::new();
        let mut annotation = |key: &str| {
            let text = pod.metadata.annotations.as_ref()?.get(key)?;
            match text
                .parse::<jiff::SignedDuration>()
                .ok()
                .and_then(|d| Duration::try_from(d).ok())
            {
                Some(duration) => Some(duration),
                None => {
                    complaints.push(format!(
                        "annotation {key}: {text:?} is not a duration; write for instance 20s"
                    ));
                    None
                }
            }
        };
        let startup = annotation(STARTUP);
        let shutdown = annotation(SHUTDOWN).unwrap_or_default();
        let engines: Vec<_> = spec
            .containers
            .iter()
            .filter(|c| is_engine(c))
            .map(|c| engine(pod, c))
            .collect();
        if engines.len() > 1 {
            complaints.push(
                "more than one container is a simulated engine; only the first is served"
                    .to_owned(),
            );
        }
        let init_containers = spec.init_containers.unwrap_or_default();
        Self {
            who: spec
                .hostname
                .unwrap_or_else(|| pod.metadata.name.clone().unwrap_or_default()),
            gate: init_containers
                .iter()
                .find(|c| c.name == GATE)
                .map(|c| c.args.clone().unwrap_or_default()),
            init_containers: init_containers.iter().map(played).collect(),
            containers: spec.containers.iter().map(played).collect(),
            restart: match spec.restart_policy.as_deref() {
                Some("Never") => Restart::Never,
                Some("OnFailure") => Restart::OnFailure,
                _ => Restart::Always,
            },
            engine: engines.into_iter().next(),
            startup,
            shutdown,
            complaints,
        }
    }

    /// Whether this init container is the gate.
    pub(super) fn is_gate(container: &Played) -> bool {
        container.name == GATE
    }
}

fn played(container: &Container) -> Played {
    Played {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        is_sidecar: container.restart_policy.as_deref() == Some("Always"),
    }
}

fn is_engine(container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let segment = image.rsplit('/').next().unwrap_or_default();
    let name = segment.split([':', '@']).next().unwrap_or_default();
    let first = container
        .args
        .as_ref()
        .and_then(|arguments| arguments.first());
    name == "coppice-loadtest" && first.is_some_and(|first| first == "engine")
}

fn engine(pod: &Pod, container: &Container) -> Engine {
    let environment = environment(pod, container);
    let arguments: Vec<_> = container
        .args
        .iter()
        .flatten()
        .skip(1)
        .map(|argument| expand(argument, &environment))
        .collect();
    let mut port = ENGINE_PORT;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = if word == "--port" {
            words.next().map(String::as_str)
        } else {
            word.strip_prefix("--port=")
        };
        if let Some(parsed) = value.and_then(|value| value.parse().ok()) {
            port = parsed;
        }
    }
    Engine { arguments, port }
}

/// The variables that a container's arguments may name: literal ones and those from the pod's own metadata.
fn environment(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let field = variable
            .value_from
            .as_ref()
            .and_then(|source| source.field_ref.as_ref())
            .and_then(|reference| field(pod, &reference.field_path));
        let literal = variable
            .value
            .as_ref()
            .map(|value| expand(value, &variables));
        if let Some(value) = literal.or(field) {
            variables.insert(variable.name.clone(), value);
        }
    }
    variables
}

/// The downward API's fields of a pod's metadata.
fn field(pod: &Pod, path: &str) -> Option<String> {
    let keyed = |map: &Option<BTreeMap<String, String>>, prefix: &str| {
        let key = path
            .strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")?;
        Some(map.as_ref()?.get(key).cloned().unwrap_or_default())
    };
    match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => pod.spec.as_ref()?.node_name.clone(),
        _ => keyed(&pod.metadata.labels, "metadata.labels")
            .or_else(|| keyed(&pod.metadata.annotations, "metadata.annotations")),
    }
}

/// Replaces `$(NAME)` by the variable's value as the kubelet does: an unknown name stays, `$$` is a dollar.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            match variables.get(name) {
                Some(value) => result.push_str(value),
                None => {
                    result.push_str("$(");
                    result.push_str(name);
                    result.push(')');
                }
            }
            rest = after;
        } else {
            result.push('$');
            rest = after;
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(yaml: &str) -> Pod {
        serde_saphyr::from_str(yaml).unwrap()
    }

    const LEADER: &str = "
metadata:
  name: qwen-0-decode-0-leader-x7k2p
  namespace: serving
  labels: {grove.io/podclique-pod-index: '3'}
  annotations: {testbed.coppice.dev/startup: 20s, testbed.coppice.dev/shutdown: soon}
spec:
  hostname: qwen-0-decode-0-leader-0
  restartPolicy: OnFailure
  initContainers:
  - {name: copy, image: busybox}
  - {name: grove-initc, image: init, args: ['--podcliques=qwen-0-prefill:2']}
  containers:
  - {name: proxy, image: envoy}
  - name: engine
    image: registry.example:5000/coppice/coppice-loadtest:1.2@sha256:abc
    args: [engine, --model=qwen3, --port, '9000', --rank=$(INDEX), $$(INDEX), $(WHAT)]
    env:
    - {name: INDEX, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['grove.io/podclique-pod-index']\"}}}
";

    #[test]
    fn a_leader_pod_is_understood() {
        let script = Script::read(&pod(LEADER));
        assert_eq!(script.who, "qwen-0-decode-0-leader-0");
        assert_eq!(script.gate.unwrap(), ["--podcliques=qwen-0-prefill:2"]);
        assert_eq!(script.init_containers.len(), 2);
        assert_eq!(script.restart, Restart::OnFailure);
        assert_eq!(script.startup, Some(Duration::from_secs(20)));
        assert_eq!(script.shutdown, Duration::ZERO);
        let [complaint] = script.complaints.as_slice() else {
            panic!("{:?}", script.complaints)
        };
        assert!(
            complaint.contains("shutdown") && complaint.contains("soon"),
            "{complaint}"
        );
        let engine = script.engine.unwrap();
        assert_eq!(engine.port, 9000);
        assert_eq!(
            engine.arguments,
            [
                "--model=qwen3",
                "--port",
                "9000",
                "--rank=3",
                "$(INDEX)",
                "$(WHAT)"
            ]
        );
    }

    #[test]
    fn only_the_load_test_image_with_the_engine_command_is_served() {
        for (image, arguments, expected) in [
            ("coppice-loadtest", "[engine]", true),
            ("a/b/coppice-loadtest:v1", "[engine, --role=decode]", true),
            ("coppice-loadtest:v1", "[gateway]", false),
            ("coppice-loadtest", "[]", false),
            ("my-coppice-loadtest", "[engine]", false),
            ("coppice-loadtest/other", "[engine]", false),
        ] {
            let yaml =
                format!("spec: {{containers: [{{name: a, image: '{image}', args: {arguments}}}]}}");
            assert_eq!(
                Script::read(&pod(&yaml)).engine.is_some(),
                expected,
                "{image} {arguments}"
            );
        }
    }
}
