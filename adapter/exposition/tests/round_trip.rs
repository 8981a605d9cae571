//! What is written comes back, whatever the spelling.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test reads fixtures and fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use coppice_exposition::{Consumer, Limits, NameTable, OwnedSample, Sample, collect, read};
use proptest::prelude::*;

/// One sample with the liberties a sender may take in writing it.
#[derive(Debug, Clone)]
struct Written {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
    timestamp: Option<i64>,
    exemplar: bool,
    blank: &'static str,
    trailing_comma: bool,
    quoted_name: bool,
    line_end: &'static str,
    comment_before: bool,
}

impl Written {
    fn encode(&self, text: &mut String) {
        let Self { blank, .. } = self;
        if self.comment_before {
            text.push_str("# HELP a b{c=\"d\"} 1\n#\n\n# TYPE a counter\n");
        }
        let plain = is_plain(&self.name, true) && !self.quoted_name;
        if plain {
            text.push_str(&self.name);
            text.push_str(blank);
        }
        if !plain || !self.labels.is_empty() || self.trailing_comma {
            text.push('{');
            let mut pieces: Vec<String> = Vec::new();
            if !plain {
                pieces.push(format!("\"{}\"", escape(&self.name)));
            }
            for (name, value) in &self.labels {
                let name = if is_plain(name, false) {
                    name.clone()
                } else {
                    format!("\"{}\"", escape(name))
                };
                pieces.push(format!("{name}{blank}={blank}\"{}\"", escape(value)));
            }
            text.push_str(&pieces.join(&format!("{blank},{blank}")));
            if self.trailing_comma && !pieces.is_empty() {
                text.push(',');
            }
            text.push('}');
        }
        write!(text, " {blank}{:?}", self.value).unwrap();
        if let Some(timestamp) = self.timestamp {
            write!(text, " {blank}{timestamp}").unwrap();
        }
        if self.exemplar {
            text.push_str(" # {trace_id=\"x # } 1\"} 0.5 1.25");
        }
        text.push_str(self.line_end);
    }

    fn owned(&self) -> OwnedSample {
        OwnedSample {
            name: self.name.clone(),
            labels: self.labels.iter().cloned().collect(),
            value: self.value,
            timestamp: self.timestamp.map(|timestamp| timestamp as f64),
        }
    }
}

fn is_plain(name: &str, colon: bool) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || (colon && c == ':'))
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || (colon && c == ':'))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>().prop_filter("NaN is compared elsewhere", |value| !value.is_nan()),
        (0_u32..100_000).prop_map(f64::from),
        (0_u32..100_000).prop_map(|value| f64::from(value) / 1000.0),
        Just(f64::INFINITY),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let text = prop_oneof![
        r#"[ -~]{0,12}"#,
        "[a-zA-Z/.:-]{1,20}",
        "\\PC{0,6}",
        Just("\"} 99 ,\\\n#".to_owned())
    ];
    let name = prop_oneof![4 => "[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", 1 => "[a-z.ü/ \\\\\"]{1,10}"];
    let label = prop_oneof![4 => "[a-zA-Z_][a-zA-Z0-9_]{0,8}", 1 => "[a-z.ü ]{1,8}"];
    (
        (
            name,
            proptest::collection::btree_map(label, text, 0..6),
            value(),
            proptest::option::of(-5_i64..2_000_000_000_000),
        ),
        (
            any::<bool>(),
            prop_oneof![Just(""), Just(" "), Just("\t ")],
            any::<bool>(),
            any::<bool>(),
        ),
        (
            prop_oneof![Just("\n"), Just("\r\n"), Just(" \n")],
            any::<bool>(),
        ),
    )
        .prop_map(
            |(
                (name, labels, value, timestamp),
                (exemplar, blank, trailing_comma, quoted_name),
                (line_end, comment_before),
            )| {
                Written {
                    name,
                    labels: labels.into_iter().collect(),
                    value,
                    timestamp,
                    exemplar,
                    blank,
                    trailing_comma,
                    quoted_name,
                    line_end,
                    comment_before,
                }
            },
        )
}

struct Only {
    names: NameTable<()>,
    values: Vec<u64>,
    fingerprints: Vec<u64>,
}

impl<'t> Consumer<'t> for Only {
    type Key = ();
    fn select(&mut self, name: &[u8]) -> Option<()> {
        self.names.get(name).copied()
    }
    fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
        self.values.push(sample.value.to_bits());
        self.fingerprints.push(sample.fingerprint());
    }
}

proptest! {
    #[test]
    fn what_is_written_comes_back(samples in proptest::collection::vec(written(), 0..20), cut_last_newline: bool) {
        let mut text = String::new();
        for sample in &samples {
            sample.encode(&mut text);
        }
        if cut_last_newline {
            text.truncate(text.trim_end().len());
        }
        let (read, report) = collect(text.as_bytes(), &Limits::default()).unwrap();
        prop_assert_eq!(report.malformed, 0, "{:?}\n{}", report.problems, text);
        prop_assert_eq!(read, samples.iter().map(Written::owned).collect::<Vec<_>>(), "{}", text);
    }

    #[test]
    fn selecting_names_gives_a_part_of_everything(samples in proptest::collection::vec(written(), 0..20), keep in any::<u32>()) {
        let mut text = String::new();
        for sample in &samples {
            sample.encode(&mut text);
        }
        let kept: BTreeSet<&str> =
            samples.iter().enumerate().filter(|(index, _)| keep & (1 << index) != 0).map(|(_, sample)| sample.name.as_str()).collect();
        let mut only = Only { names: NameTable::new(kept.iter().map(|name| (name, ()))), values: Vec::new(), fingerprints: Vec::new() };
        let report = read(text.as_bytes(), &Limits::default(), &mut only).unwrap();
        let expected: Vec<u64> =
            samples.iter().filter(|sample| kept.contains(sample.name.as_str())).map(|sample| sample.value.to_bits()).collect();
        prop_assert_eq!(report.samples + report.passed_over, samples.len() as u64);
        prop_assert_eq!(only.values, expected);
    }

    #[test]
    fn equal_series_and_only_they_share_a_fingerprint(samples in proptest::collection::vec(written(), 0..12)) {
        let mut text = String::new();
        for sample in &samples {
            sample.encode(&mut text);
        }
        let names = NameTable::new(samples.iter().map(|sample| (&sample.name, ())));
        let mut only = Only { names, values: Vec::new(), fingerprints: Vec::new() };
        read(text.as_bytes(), &Limits::default(), &mut only).unwrap();
        let mut of_series = BTreeMap::new();
        for (sample, fingerprint) in samples.iter().zip(&only.fingerprints) {
            let labels: BTreeSet<_> = sample.labels.iter().filter(|(_, value)| !value.is_empty()).collect();
            prop_assert_eq!(*of_series.entry((&sample.name, labels)).or_insert(*fingerprint), *fingerprint);
        }
        prop_assert_eq!(of_series.values().collect::<BTreeSet<_>>().len(), of_series.len());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok((samples, report)) = collect(&bytes, &Limits::default()) {
            prop_assert_eq!(samples.len() as u64, report.samples);
        }
    }

    #[test]
    fn broken_text_loses_only_broken_lines(
        samples in proptest::collection::vec(written(), 1..8),
        at in any::<prop::sample::Index>(),
        garbage in "[{}\",=# a1\\\\]{0,8}",
    ) {
        let lines: Vec<String> = samples.iter().map(|sample| {
            let mut line = String::new();
            Written { comment_before: false, line_end: "\n", ..sample.clone() }.encode(&mut line);
            line
        }).collect();
        let broken = at.index(lines.len());
        let mut text = String::new();
        for (index, line) in lines.iter().enumerate() {
            if index == broken {
                // Behind a metric name, so that the body is not taken for JSON.
                text.push_str("x ");
                text.push_str(&garbage);
                text.push('\n');
            } else {
                text.push_str(line);
            }
        }
        let (read, report) = collect(text.as_bytes(), &Limits::default()).unwrap();
        let good: Vec<_> = samples.iter().enumerate().filter(|(index, _)| *index != broken).map(|(_, sample)| sample.owned()).collect();
        prop_assert!(report.malformed <= 1);
        prop_assert_eq!(read.iter().filter(|sample| good.contains(sample)).count(), good.len());
    }
}
