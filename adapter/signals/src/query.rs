//! Questions and answers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::metric::{Metric, UnknownMetric};
use crate::selector::{InvalidSelector, Selector};

/// Which endpoints.
///
/// The selector's keys are pod labels, and three of our own: `model` (the served model's name), `model_id` (the same,
/// made a legal label value by [`model_id`]) and `role` (the pod's label `role`, else what the server says about itself:
/// `prefill`, `decode`, `aggregated`, `frontend`). A pod label of the same name wins over `model` and `model_id`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selection {
    /// Namespace of the pods; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Requirements on labels.
    pub selector: Selector,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Query {
    /// What is asked for.
    pub metric: Metric,
    /// From which endpoints.
    pub selection: Selection,
    /// Look-back of rates and quantiles; `None`, or one longer than [`Settings::window`](crate::Settings::window):
    /// that one.
    pub window: Option<Duration>,
}

/// A text that is no query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuery {
    /// No such metric.
    #[error(transparent)]
    Metric(#[from] UnknownMetric),
    /// Not a label selector.
    #[error(transparent)]
    Selector(#[from] InvalidSelector),
}

/// The answer to a query, over all its endpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The value; always finite, never negative for our own metrics. Unit: the metric's.
    pub value: f64,
    /// When the oldest contributing sample was taken.
    pub timestamp: Timestamp,
    /// Look-back of a rate or a quantile: the longest one that contributed. `None` for a snapshot.
    pub window: Option<Duration>,
    /// Live endpoints whose value is in the answer.
    pub contributing: usize,
    /// Live endpoints that were asked.
    pub live: usize,
    /// `namespace`, `model`, `model_id`, `role`: each only where all contributing endpoints agree.
    pub labels: BTreeMap<String, String>,
    /// How the endpoints' values became one.
    pub rule: Rule,
    /// Whether the server counts it only when a request ends, so that it comes in lumps and lags.
    pub at_finish: bool,
    /// What a careful reader should know: endpoints left out, values counted only when requests end.
    pub warnings: Vec<String>,
}

/// How the values of several endpoints become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Sum.
    Sum,
    /// Sum over those known, times live over known.
    SumScaledUp,
    /// Mean over engines.
    Mean,
    /// Greatest.
    Max,
    /// Least.
    Min,
    /// Quantile of all endpoints' observations together.
    Quantile,
    /// Sum of one counter over the sum of another.
    Ratio,
}

/// The value of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointAnswer {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Its value, or why there is none.
    pub value: Result<Measured, Missing>,
    /// When its sample was taken; `None` when it never was.
    pub timestamp: Option<Timestamp>,
}

/// What is known about an endpoint, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Namespace.
    pub namespace: String,
    /// Pod, or name of the static target.
    pub name: String,
    /// `host:port`.
    pub address: String,
    /// Path.
    pub path: String,
    /// Ready and not terminating.
    pub live: bool,
    /// The server recognised, `unknown` for one that is not known; `None` before the first good scrape.
    pub server: Option<String>,
    /// Models it serves.
    pub models: Vec<String>,
    /// Its role, where known.
    pub role: Option<String>,
    /// When the last good sample was taken.
    pub last_sample: Option<Timestamp>,
    /// Why its samples do not count.
    pub problem: Option<Why>,
    /// How the last scrape failed, if it did.
    pub failure: Option<String>,
    /// Series remembered.
    pub series: usize,
}

/// A measured value with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The value; finite.
    pub value: f64,
    /// Age of the oldest contributing sample.
    pub age: Duration,
    /// Endpoints that contributed.
    pub endpoints: usize,
    /// Whether it was scaled up for endpoints that did not answer.
    pub scaled_up: bool,
    /// Whether the server counts it only when a request ends, so that it comes in lumps and lags.
    pub at_finish: bool,
}

/// Why there is no value. Never read it as zero.
///
/// The texts are stable between calls: ages are rounded, endpoints are counted and one is named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No live endpoint matches.
    #[error("no ready endpoint matches {selection}")]
    NoEndpoints {
        /// What was asked for, as text.
        selection: String,
    },
    /// Too few of the live endpoints have a value.
    #[error("{known} of {live} endpoints have a value, {needed} are needed: {}", summary(.problems))]
    QuorumNotMet {
        /// Endpoints with a fresh value.
        known: usize,
        /// Live endpoints.
        live: usize,
        /// How many would do.
        needed: usize,
        /// What is wrong with the others, the most frequent first.
        problems: Vec<Problem>,
    },
    /// The endpoints answer, and none of their servers has such a signal.
    #[error("not exposed by {}", .servers.join(", "))]
    NotExposed {
        /// The servers recognised, by name.
        servers: Vec<String>,
    },
    /// Nothing happened within the window, so there is no quantile or ratio.
    #[error("no observation within the last {} s", .window.as_secs())]
    NoObservations {
        /// The window.
        window: Duration,
    },
    /// A series asked for by its own name for the first time: it is collected from the next scrape on.
    #[error("series {name} is collected from now on: ask again after the next scrape")]
    JustAdded {
        /// Its name.
        name: String,
    },
    /// A series asked for by its own name that cannot be added.
    #[error(
        "series {name} cannot be added: {limit} series are collected by name already (limits.raw_names)"
    )]
    TooManySeries {
        /// Its name.
        name: String,
        /// The limit.
        limit: usize,
    },
}

/// What keeps some endpoints from having a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What.
    pub why: Why,
    /// How many endpoints.
    pub endpoints: usize,
    /// One of them.
    pub example: String,
}

/// What keeps an endpoint from having a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// Not scraped yet.
    NotScraped,
    /// No scrape has succeeded within the age limit; the last one failed like this (a short phrase).
    Failed(String),
    /// The last good sample is older than the limit; seconds, rounded up to ten.
    Stale(u64),
    /// A rate or a quantile needs two samples.
    FirstSample,
    /// The server has no such signal.
    NotExposed,
    /// The body named no server that we know.
    Unrecognised,
    /// The value sent is impossible: NaN, infinite, negative or out of range.
    Impossible,
    /// It is a share of something of which there is none just now.
    Undefined,
    /// A limit on targets, series or models was reached: which.
    Limited(&'static str),
}

impl Query {
    /// Reads a query from a metric name, a namespace and a label selector.
    ///
    /// # Errors
    /// The metric is unknown or the selector malformed.
    pub fn parse(
        metric: &str,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Self, InvalidQuery> {
        Ok(Self {
            metric: Metric::parse(metric)?,
            selection: Selection {
                namespace: namespace.map(str::to_owned),
                selector: selector.parse()?,
            },
            window: None,
        })
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "namespace {namespace}")?,
            None => f.write_str("any namespace")?,
        }
        if self.selector.is_everything() {
            Ok(())
        } else {
            write!(f, ", labels {}", self.selector)
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::SumScaledUp => "sum, scaled up for missing endpoints",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
            Self::Quantile => "quantile of all observations",
            Self::Ratio => "ratio of sums",
        })
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotScraped => f.write_str("not scraped yet"),
            Self::Failed(how) => write!(f, "scrape failed ({how})"),
            Self::Stale(seconds) => write!(f, "last sample up to {seconds} s old"),
            Self::FirstSample => f.write_str("one sample so far, two are needed"),
            Self::NotExposed => f.write_str("not exposed by this server"),
            Self::Unrecognised => f.write_str("no known server"),
            Self::Impossible => f.write_str("impossible value"),
            Self::Undefined => f.write_str("a share of nothing"),
            Self::Limited(limit) => write!(f, "{limit} reached"),
        }
    }
}

impl Missing {
    /// Every [`Self::category`].
    pub const CATEGORIES: [&str; 6] = [
        "NoEndpoints",
        "QuorumNotMet",
        "NotExposed",
        "NoObservations",
        "JustAdded",
        "TooManySeries",
    ];

    /// A short name for events, metric labels and log fields.
    #[must_use]
    pub const fn category(&self) -> &'static str {
        match self {
            Self::NoEndpoints { .. } => "NoEndpoints",
            Self::QuorumNotMet { .. } => "QuorumNotMet",
            Self::NotExposed { .. } => "NotExposed",
            Self::NoObservations { .. } => "NoObservations",
            Self::JustAdded { .. } => "JustAdded",
            Self::TooManySeries { .. } => "TooManySeries",
        }
    }
}

fn summary(problems: &[Problem]) -> String {
    let texts: Vec<_> = problems
        .iter()
        .take(3)
        .map(
            |Problem {
                 why,
                 endpoints,
                 example,
             }| match endpoints {
                1 => format!("{example} {why}"),
                more => format!("{more} like {example} {why}"),
            },
        )
        .collect();
    texts.join("; ")
}

/// The name of a model as a legal label value: lower case, every run of other characters one `-`, at most 63 characters.
///
/// Two models whose names differ only in such characters share an id; a name that had to be cut ends in a hash of the
/// whole name.
#[must_use]
pub fn model_id(model: &str) -> String {
    let mut id = String::with_capacity(model.len().min(64));
    for c in model.chars() {
        match c {
            'a'..='z' | '0'..='9' | '.' | '_' => id.push(c),
            'A'..='Z' => id.push(c.to_ascii_lowercase()),
            _ if !id.ends_with('-') => id.push('-'),
            _ => {}
        }
    }
    let trimmed = id.trim_matches(['-', '.', '_']);
    if trimmed.len() <= 63 {
        return trimmed.to_owned();
    }
    let hash = model.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(
        "{}-{:08x}",
        trimmed[..54].trim_end_matches(['-', '.', '_']),
        hash >> 32
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_id_is_always_a_legal_label_value() {
        assert_eq!(
            model_id("meta-llama/Llama-3.1-8B-Instruct"),
            "meta-llama-llama-3.1-8b-instruct"
        );
        assert_eq!(model_id("//tenant \"A\" \\"), "tenant-a");
        assert_eq!(model_id("ü"), "");
        let long = model_id(&"x/".repeat(80));
        assert_eq!(long.len(), 63 - 1);
        for id in [long, model_id(&"a".repeat(64)), model_id(&"a".repeat(63))] {
            assert!(format!("model_id={id}").parse::<Selector>().is_ok(), "{id}");
        }
        assert_ne!(model_id(&"a".repeat(64)), model_id(&"a".repeat(65)));
    }

    #[test]
    fn a_missing_value_says_who_and_why() {
        let missing = Missing::QuorumNotMet {
            known: 1,
            live: 4,
            needed: 4,
            problems: vec![
                Problem {
                    why: Why::Stale(40),
                    endpoints: 2,
                    example: "serving/a".to_owned(),
                },
                Problem {
                    why: Why::Failed("connect".to_owned()),
                    endpoints: 1,
                    example: "serving/b".to_owned(),
                },
            ],
        };
        assert_eq!(
            missing.to_string(),
            "1 of 4 endpoints have a value, 4 are needed: 2 like serving/a last sample up to 40 s old; serving/b scrape failed (connect)"
        );
        assert_eq!(missing.category(), "QuorumNotMet");
    }

    #[test]
    fn a_query_is_read_or_refused() {
        let query = Query::parse("coppice_requests_waiting", Some("serving"), "app=vllm").unwrap();
        assert_eq!(
            query.selection.to_string(),
            "namespace serving, labels app=vllm"
        );
        assert!(matches!(
            Query::parse("coppice_x", None, ""),
            Err(InvalidQuery::Metric(_))
        ));
        assert!(matches!(
            Query::parse("x", None, "a b"),
            Err(InvalidQuery::Selector(_))
        ));
    }
}
