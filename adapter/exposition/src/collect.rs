//! Everything a body holds, as owned values: for tests and tools, not for the hot path.

use std::collections::BTreeMap;

use crate::error::Refused;
use crate::limits::Limits;
use crate::read::{Consumer, Report, read};
use crate::sample::Sample;

/// A sample that owns its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedSample {
    /// The metric's name.
    pub name: String,
    /// The labels; of a label sent twice the last value.
    pub labels: BTreeMap<String, String>,
    /// The value; may be NaN or infinite.
    pub value: f64,
    /// The timestamp as sent.
    pub timestamp: Option<f64>,
}

struct Everything(Vec<OwnedSample>);

impl<'t> Consumer<'t> for Everything {
    type Key = ();

    fn select(&mut self, _: &[u8]) -> Option<()> {
        Some(())
    }

    fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
        self.0.push(OwnedSample {
            name: sample.name.unescaped().into_owned(),
            labels: sample
                .labels
                .iter()
                .map(|label| {
                    (
                        label.name.unescaped().into_owned(),
                        label.value.unescaped().into_owned(),
                    )
                })
                .collect(),
            value: sample.value,
            timestamp: sample.timestamp,
        });
    }
}

/// Reads every sample of a body, in its order, duplicates included.
///
/// # Errors
/// As [`read`].
pub fn collect(text: &[u8], limits: &Limits) -> Result<(Vec<OwnedSample>, Report), Refused> {
    let mut everything = Everything(Vec::new());
    let report = read(text, limits, &mut everything)?;
    Ok((everything.0, report))
}
