//! A second opinion: `prometheus-parse`, on inputs that it reads correctly.
//!
//! It drops names with colons and splits labels at commas before it looks at quotes, so both are kept out; without TYPE
//! lines it folds nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test reads fixtures and fails by panicking"
)]

use std::collections::BTreeMap;

use coppice_exposition::{Limits, OwnedSample, collect};
use prometheus_parse::{Scrape, Value};
use proptest::prelude::*;

type Series = (String, BTreeMap<String, String>);

fn theirs(text: &str) -> Vec<(Series, f64)> {
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let mut samples = Vec::new();
    for sample in scrape.samples {
        let labels: BTreeMap<String, String> = sample
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        match sample.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => {
                samples.push(((sample.metric, labels), value));
            }
            Value::Histogram(buckets) => {
                for bucket in buckets {
                    let mut labels = labels.clone();
                    labels.insert("le".to_owned(), bucket.less_than.to_string());
                    samples.push(((format!("{}_bucket", sample.metric), labels), bucket.count));
                }
            }
            Value::Summary(quantiles) => {
                for quantile in quantiles {
                    let mut labels = labels.clone();
                    labels.insert("quantile".to_owned(), quantile.quantile.to_string());
                    samples.push(((sample.metric.clone(), labels), quantile.count));
                }
            }
        }
    }
    sorted(samples)
}

fn ours(text: &str) -> Vec<(Series, f64)> {
    let (samples, report) = collect(text.as_bytes(), &Limits::default()).unwrap();
    assert_eq!(report.malformed, 0, "{:?}", report.problems);
    let number = |labels: &mut BTreeMap<String, String>, name: &str| {
        if let Some(value) = labels.get_mut(name) {
            *value = value.parse::<f64>().unwrap().to_string();
        }
    };
    sorted(
        samples
            .into_iter()
            .map(
                |OwnedSample {
                     name,
                     mut labels,
                     value,
                     ..
                 }| {
                    if name.ends_with("_bucket") {
                        number(&mut labels, "le");
                    }
                    number(&mut labels, "quantile");
                    ((name, labels), value)
                },
            )
            .collect(),
    )
}

fn sorted(mut samples: Vec<(Series, f64)>) -> Vec<(Series, f64)> {
    samples.sort_by(|(one, a), (other, b)| one.cmp(other).then(a.total_cmp(b)));
    samples
}

fn assert_same(text: &str) -> usize {
    let (theirs, ours) = (theirs(text), ours(text));
    for (their, our) in theirs.iter().zip(&ours) {
        assert_eq!(their.0, our.0);
        assert_eq!(their.1.to_bits(), our.1.to_bits(), "{:?}", their.0);
    }
    assert_eq!(theirs.len(), ours.len());
    ours.len()
}

#[test]
fn a_captured_body_without_colons_is_read_alike() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../signals/testdata/");
    for (file, samples) in [
        ("dynamo-frontend-1.6.1-agg-busy-t1.txt", 773),
        ("dynamo-frontend-1.6.1-pd-failing-t1.txt", 831),
        ("dynamo-worker-1.6.1-pd-prefill-busy-t1.txt", 103),
    ] {
        let text = std::fs::read_to_string(format!("{folder}{file}")).unwrap();
        assert_eq!(assert_same(&text), samples, "{file}");
    }
}

proptest! {
    #[test]
    fn colon_free_samples_are_read_alike(
        samples in proptest::collection::vec(
            (
                "[a-zA-Z_][a-zA-Z0-9_]{0,16}",
                proptest::collection::btree_map("[a-zA-Z_][a-zA-Z0-9_]{0,8}", "[a-zA-Z0-9 /.-]{0,10}", 0..4),
                any::<f64>().prop_filter("one NaN has many bit patterns", |value| !value.is_nan()),
                proptest::option::of(0_i64..2_000_000_000_000),
            ),
            0..20,
        ),
    ) {
        let mut text = String::new();
        for (name, labels, value, timestamp) in &samples {
            let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let timestamp = timestamp.map_or(String::new(), |timestamp| format!(" {timestamp}"));
            text.push_str(&format!("{name}{labels} {value:?}{timestamp}\n"));
        }
        prop_assert_eq!(assert_same(&text), samples.len());
    }
}
