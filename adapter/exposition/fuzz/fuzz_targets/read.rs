//! Any bytes: no panic, and selecting names only ever leaves samples out.
//!
//! `cargo +nightly fuzz run read`, in the folder above.

#![no_main]

use coppice_exposition::{Consumer, Limits, Metadata, Sample, read};
use libfuzzer_sys::fuzz_target;

/// Takes every sample, or those whose name has an even first byte.
#[derive(Default)]
struct Taken {
    only_even: bool,
    samples: Vec<(u64, u64)>,
}

impl Taken {
    fn takes(&self, name: &[u8]) -> bool {
        !self.only_even || name.first().is_some_and(|byte| byte % 2 == 0)
    }
}

impl<'t> Consumer<'t> for Taken {
    type Key = bool;
    const METADATA: bool = true;

    fn select(&mut self, name: &[u8]) -> Option<bool> {
        self.takes(name).then(|| name.first().is_some_and(|byte| byte % 2 == 0))
    }

    fn sample(&mut self, even: bool, sample: &Sample<'t, '_>) {
        for label in sample.labels.iter().chain(sample.exemplar.iter().flat_map(|exemplar| exemplar.labels)) {
            let _ = (label.name.unescaped(), label.value.unescaped());
        }
        if even {
            self.samples.push((sample.fingerprint(), sample.value.to_bits()));
        }
    }

    fn metadata(&mut self, metadata: &Metadata<'t>) {
        let _ = metadata.family.unescaped();
    }
}

fuzz_target!(|bytes: &[u8]| {
    for limits in [Limits::default(), Limits { labels: 2, line_bytes: 64, name_bytes: 8, samples: 5, body_bytes: 4096 }] {
        let (mut all, mut even) = (Taken::default(), Taken { only_even: true, ..Taken::default() });
        let (of_all, of_even) = (read(bytes, &limits, &mut all), read(bytes, &limits, &mut even));
        if let (Ok(of_all), Ok(of_even)) = (&of_all, &of_even) {
            assert_eq!(of_all.lines, of_even.lines);
            assert_eq!(all.samples, even.samples);
            assert_eq!(of_all.passed_over, 0);
        } else {
            assert_eq!(of_all.is_err(), of_even.is_err());
        }
    }
});
