//! Every body of `testdata/adversarial`, read as its manifest wants.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test reads fixtures and fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use coppice_exposition::{
    Consumer, Ending, Limits, OwnedSample, Refused, Report, Sample, collect, read,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Entry {
    file: String,
    expect: Expect,
}

/// What `adapter/signals` tests has `_signals` in its name here; an unknown key fails the test.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    ok: Value,
    #[serde(default)]
    want: Vec<(String, BTreeMap<String, String>, f64)>,
    samples: Option<usize>,
    samples_min: Option<usize>,
    distinct: Option<usize>,
    #[serde(default)]
    nan: Vec<String>,
    #[serde(default)]
    inf: Vec<String>,
    bad_lines_min: Option<u64>,
    encoding: Option<String>,
    flag: Option<String>,
    #[serde(rename = "pair")]
    _pair_signals: Option<String>,
    #[serde(rename = "increase")]
    _increase_signals: Option<Value>,
    #[serde(rename = "derive")]
    _derive_signals: Option<Value>,
    #[serde(rename = "decoded_bytes")]
    _decoded_bytes_signals: Option<u64>,
    #[serde(rename = "note")]
    _note: Option<String>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/adversarial")
}

fn body(file: &str) -> Vec<u8> {
    std::fs::read(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn manifest() -> Vec<Entry> {
    serde_json::from_slice(&body("manifest.json")).unwrap()
}

fn all(file: &str) -> (Vec<OwnedSample>, Report) {
    collect(&body(file), &Limits::default()).unwrap_or_else(|refused| panic!("{file}: {refused}"))
}

fn check_samples(file: &str, expect: &Expect, samples: &[OwnedSample]) {
    for (name, labels, value) in &expect.want {
        // Of a series sent twice, the last one holds.
        let found = samples.iter().rev().find(|sample| {
            sample.name == *name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(key) == Some(value))
        });
        let found = found.unwrap_or_else(|| panic!("{file}: no {name} {labels:?}"));
        assert_eq!(
            found.value.to_bits(),
            value.to_bits(),
            "{file}: {name} {labels:?}"
        );
    }
    let with_v = |v: &String| {
        let mut matching = samples
            .iter()
            .filter(|sample| sample.labels.get("v") == Some(v));
        matching
            .next()
            .unwrap_or_else(|| panic!("{file}: no sample with v={v:?}"))
            .value
    };
    assert!(expect.nan.iter().all(|v| with_v(v).is_nan()), "{file}");
    assert!(
        expect
            .inf
            .iter()
            .all(|v| with_v(v).to_bits() == f64::INFINITY.to_bits()),
        "{file}"
    );
    if let Some(count) = expect.samples {
        assert_eq!(samples.len(), count, "{file}: samples");
    }
    if let Some(least) = expect.samples_min {
        assert!(
            samples.len() >= least,
            "{file}: {} samples, at least {least} expected",
            samples.len()
        );
    }
}

#[test]
fn each_body_is_read_as_the_manifest_wants() {
    let entries = manifest();
    let listed: BTreeSet<_> = entries.iter().map(|entry| entry.file.clone()).collect();
    let there: BTreeSet<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "manifest.json")
        .collect();
    assert_eq!(listed, there, "the manifest lists the files that are there");

    for Entry { file, expect } in &entries {
        if expect.encoding.is_some() {
            let refused = collect(&body(file), &Limits::default()).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "the body is gzip data, not an exposition",
                "{file}"
            );
            continue;
        }
        match &expect.ok {
            Value::Bool(false) => {
                let refused = collect(&body(file), &Limits::default()).expect_err(file);
                assert!(
                    matches!(refused, Refused::NotAnExposition { .. }),
                    "{file}: {refused}"
                );
            }
            Value::Bool(true) => {
                let (samples, report) = all(file);
                check_samples(file, expect, &samples);
                assert_eq!(report.samples, samples.len() as u64, "{file}");
                assert!(
                    report.malformed >= expect.bad_lines_min.unwrap_or(0),
                    "{file}: {report:?}"
                );
                assert!(!report.is_truncated(), "{file}");
            }
            Value::String(kind) if kind == "empty" => {
                let (samples, report) = all(file);
                assert_eq!((samples.len(), report.malformed), (0, 0), "{file}");
            }
            Value::String(kind) if kind == "partial" => {
                let (samples, report) = all(file);
                assert!(samples.len() > 100, "{file}");
                assert_eq!(
                    report.is_truncated(),
                    expect.flag.as_deref() == Some("truncated"),
                    "{file}: {report:?}"
                );
            }
            other => panic!("{file}: unknown ok {other}"),
        }
    }
}

#[test]
fn well_formed_bodies_have_no_malformed_lines() {
    for file in [
        "openmetrics-exemplars-eof.txt",
        "label-escapes.txt",
        "label-punctuation.txt",
        "timestamps.txt",
        "crlf.txt",
    ] {
        let (_, report) = all(file);
        assert_eq!(report.malformed, 0, "{file}: {:?}", report.problems);
    }
}

#[test]
fn each_malformed_line_is_described_with_its_place() {
    let (_, report) = all("bad-lines-among-good.txt");
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "line 4, column 54: not a number",
            "line 5, column 49: the quoted string does not end",
            "line 6, column 38: ',' or '}' expected after the label",
            "line 7, column 34: a quoted string expected",
            "line 8, column 53: a value expected",
            "line 9, column 59: the end of the line expected",
            "line 10, column 1: not a metric name",
            "line 11, column 1: not a metric name",
        ]
    );
    assert_eq!(report.malformed, 8);
    let (_, report) = all("special-values.txt");
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "line 15, column 12: not a number",
            "line 16, column 14: not a number"
        ]
    );
}

#[test]
fn the_end_marker_ends_the_body() {
    let (samples, report) = all("data-after-eof.txt");
    assert_eq!(samples.len(), 1);
    assert!(
        matches!(report.ending, Ending::Eof { ignored } if ignored > 50),
        "{report:?}"
    );
    assert_eq!(all("only-eof.txt").1.ending, Ending::Eof { ignored: 0 });
    assert_eq!(
        all("no-trailing-newline.txt").1.ending,
        Ending::WithinLine { malformed: false }
    );
}

#[test]
fn a_series_sent_twice_has_one_fingerprint() {
    struct Fingerprints(BTreeSet<u64>);
    impl<'t> Consumer<'t> for Fingerprints {
        type Key = ();
        fn select(&mut self, _: &[u8]) -> Option<()> {
            Some(())
        }
        fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
            self.0.insert(sample.fingerprint());
        }
    }
    for Entry { file, expect } in manifest() {
        let Some(distinct) = expect.distinct else {
            continue;
        };
        let mut fingerprints = Fingerprints(BTreeSet::new());
        read(&body(&file), &Limits::default(), &mut fingerprints).unwrap();
        assert_eq!(fingerprints.0.len(), distinct, "{file}");
    }
}

#[test]
fn each_limit_says_which_and_where() {
    let limited = |file: &str, limits: Limits| match collect(&body(file), &limits) {
        Err(refused) => refused.to_string(),
        Ok((_, report)) => report.problems[0].to_string(),
    };
    let limits = Limits::default;
    assert_eq!(
        limited(
            "long-line.txt",
            Limits {
                line_bytes: 1000,
                ..limits()
            }
        ),
        "line 3, column 1001: the line is longer than the limit of 1000 bytes (line_bytes)"
    );
    assert_eq!(
        limited(
            "many-labels.txt",
            Limits {
                labels: 64,
                ..limits()
            }
        ),
        "line 2, column 559: more labels than the limit of 64 (labels)"
    );
    assert_eq!(
        limited(
            "crlf.txt",
            Limits {
                name_bytes: 10,
                ..limits()
            }
        ),
        "line 3, column 1: the metric name is longer than the limit of 10 bytes (name_bytes)"
    );
    assert_eq!(
        limited(
            "crlf.txt",
            Limits {
                samples: 2,
                ..limits()
            }
        ),
        "more samples than the limit of 2 (samples) at line 6, column 1"
    );
    assert_eq!(
        limited(
            "crlf.txt",
            Limits {
                body_bytes: 300,
                ..limits()
            }
        ),
        "the body has 317 bytes, more than the limit of 300 (body_bytes)"
    );
}
