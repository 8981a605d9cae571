//! What a trigger asks for, read from its metadata.
//!
//! Everything is checked before anything is measured, and keys that are not known are refused: a selector with a typing error in its key
//! would otherwise select everything.

use std::collections::HashMap;

use tonic::Status;

use super::proto::ScaledObjectRef;
use crate::quantity;
use crate::query::{self, MetricRequest};
use crate::route::MetricPath;

/// A trigger, understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trigger {
    /// The metric, in the ScaledObject's namespace.
    pub request: MetricRequest,
    /// The value that one replica is good for; at least [`SMALLEST`].
    pub target: f64,
    /// Above this value there is something to do; `0..`.
    pub activation: f64,
}

const METRIC: &str = "metric";
const SELECTOR: &str = "selector";
const TARGET: &str = "targetValue";
const ACTIVATION: &str = "activationTargetValue";

/// Keys that are KEDA's own business: how it reaches us.
const OF_KEDA: [&str; 6] = [
    "scalerAddress",
    "enableTLS",
    "unsafeSsl",
    "caCert",
    "tlsClientCert",
    "tlsClientKey",
];

/// KEDA passes targets on in thousandths, and the HPA refuses a target of 0.
const SMALLEST: f64 = 0.001;

impl Trigger {
    /// Reads a ScaledObject's trigger.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the field, its value and what would do.
    pub(crate) fn read(object: &ScaledObjectRef) -> Result<Self, Status> {
        let ScaledObjectRef {
            name: _,
            namespace,
            scaler_metadata: metadata,
        } = object;
        if namespace.is_empty() {
            return Err(wrong(
                "namespace",
                namespace,
                "put the ScaledObject's namespace here",
            ));
        }
        let own = [METRIC, SELECTOR, TARGET, ACTIVATION];
        let mut unknown: Vec<_> = metadata
            .keys()
            .filter(|key| !own.contains(&key.as_str()) && !OF_KEDA.contains(&key.as_str()))
            .collect();
        unknown.sort_unstable();
        if let Some(key) = unknown.first() {
            let need = format!("is no setting of this scaler: use {}", own.join(", "));
            return Err(field(key, &metadata[*key], &need));
        }
        let Some(metric) = metadata.get(METRIC).filter(|name| !name.is_empty()) else {
            return Err(field(
                METRIC,
                "",
                "name a metric, such as coppice_requests_waiting or vllm:num_requests_waiting",
            ));
        };
        let selector = metadata.get(SELECTOR).cloned().unwrap_or_default();
        let request = MetricRequest {
            path: MetricPath {
                namespace: namespace.clone(),
                // As autoscalers send it, so that answers are called as they are asked for.
                name: metric.to_ascii_lowercase(),
            },
            selector,
        };
        check(&request)?;
        let target = number(metadata, TARGET)?.ok_or_else(|| {
            field(
                TARGET,
                "",
                "put the value here that one replica is good for, such as 5 or 0.8",
            )
        })?;
        if target < SMALLEST {
            return Err(field(
                TARGET,
                &metadata[TARGET],
                "use a number of 0.001 or more",
            ));
        }
        let activation = number(metadata, ACTIVATION)?.unwrap_or(0.0);
        if activation < 0.0 {
            return Err(field(ACTIVATION, &metadata[ACTIVATION], "use 0 or more"));
        }
        Ok(Self {
            request,
            target,
            activation,
        })
    }

    /// The metric's name, as it is told to KEDA.
    pub(crate) fn name(&self) -> &str {
        &self.request.path.name
    }
}

/// Whether metric and selector can be asked for at all.
fn check(request: &MetricRequest) -> Result<(), Status> {
    let MetricPath { namespace, name } = &request.path;
    let selector = &request.selector;
    query::selector(selector).map_err(|refusal| field(SELECTOR, selector, refusal.message()))?;
    if query::is_wanted(name) {
        return Ok(());
    }
    query::query(namespace, name, "")
        .map(drop)
        .map_err(|refusal| field(METRIC, name, refusal.message()))
}

fn number(metadata: &HashMap<String, String>, key: &str) -> Result<Option<f64>, Status> {
    let Some(text) = metadata.get(key) else {
        return Ok(None);
    };
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number <= quantity::MAX => Ok(Some(number)),
        _ => Err(field(
            key,
            text,
            "write a number up to 9e15, such as 5 or 0.8",
        )),
    }
}

/// A key of the metadata is not as it should be.
fn field(key: &str, value: &str, need: &str) -> Status {
    wrong(&format!("scalerMetadata.{key}"), value, need)
}

/// A field of a request is not as it should be.
pub(super) fn wrong(name: &str, value: &str, need: &str) -> Status {
    let shown: String = value.chars().take(MAX_SHOWN).collect();
    let name: String = name.chars().take(MAX_SHOWN).collect();
    Status::invalid_argument(format!("{name}: {shown:?}: {need}"))
}

/// Characters of what a caller sent that an error repeats.
const MAX_SHOWN: usize = 100;

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn read(metadata: &[(&str, &str)]) -> Result<Trigger, Status> {
        let metadata = metadata.iter();
        Trigger::read(&ScaledObjectRef {
            name: "chat".into(),
            namespace: "serving".into(),
            scaler_metadata: metadata
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        })
    }

    #[test]
    fn a_trigger_is_read_with_its_defaults() {
        let trigger = read(&[
            ("scalerAddress", "coppice-adapter.coppice-system:6565"),
            ("metric", "vllm:Num_Requests_Waiting"),
            ("targetValue", "2.5"),
        ]);
        assert_eq!(
            trigger.unwrap(),
            Trigger {
                request: MetricRequest {
                    path: MetricPath {
                        namespace: "serving".into(),
                        name: "vllm:num_requests_waiting".into()
                    },
                    selector: String::new(),
                },
                target: 2.5,
                activation: 0.0,
            }
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_field_value_and_next_step() {
        let good = [("metric", "coppice_requests_waiting"), ("targetValue", "5")];
        let with = |key: &'static str, value: &'static str| -> Vec<(&str, &str)> {
            let others = good.iter().filter(|(name, _)| *name != key);
            others.copied().chain([(key, value)]).collect()
        };
        for (metadata, parts) in [
            (vec![], ["scalerMetadata.metric", "name a metric"]),
            (
                with("metric", ""),
                ["scalerMetadata.metric", "name a metric"],
            ),
            (
                with("metric", "coppice_nothing"),
                ["\"coppice_nothing\"", "use one of"],
            ),
            (with("metric", "a/b"), ["\"a/b\"", "a scraped series"]),
            (
                with("selector", "app=a b"),
                ["scalerMetadata.selector: \"app=a b\"", "at character"],
            ),
            (
                vec![good[0]],
                ["scalerMetadata.targetValue", "one replica is good for"],
            ),
            (
                with("targetValue", "many"),
                ["scalerMetadata.targetValue: \"many\"", "write a number"],
            ),
            (with("targetValue", "NaN"), ["\"NaN\"", "write a number"]),
            (with("targetValue", "inf"), ["\"inf\"", "write a number"]),
            (with("targetValue", "0"), ["\"0\"", "0.001 or more"]),
            (with("targetValue", "-1"), ["\"-1\"", "0.001 or more"]),
            (
                with("activationTargetValue", "-1"),
                ["activationTargetValue: \"-1\"", "0 or more"],
            ),
            (
                with("threshold", "5"),
                ["scalerMetadata.threshold: \"5\"", "targetValue"],
            ),
        ] {
            let status = read(&metadata).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            for part in parts {
                assert!(
                    status.message().contains(part),
                    "{part:?} is not in {status}"
                );
            }
        }
    }

    #[test]
    fn errors_repeat_little_of_what_was_sent() {
        let long = "x".repeat(60_000);
        let status = read(&[("metric", "m"), ("targetValue", &long)]).unwrap_err();
        assert!(status.message().len() < 300, "{}", status.message().len());
        let status = read(&[(&long, "5")]).unwrap_err();
        assert!(status.message().len() < 300, "{}", status.message().len());
    }
}
