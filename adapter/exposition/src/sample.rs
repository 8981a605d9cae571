//! One sample, borrowed from the body.

use std::borrow::Cow;

use crate::scan::hash;

/// A sample line: a series and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'t, 's> {
    /// The metric's name, `_total`, `_bucket` and their like included.
    pub name: Text<'t>,
    /// The labels in the order sent; a label may be repeated only by a faulty sender.
    pub labels: &'s [Label<'t>],
    /// The value as sent; may be NaN or infinite.
    pub value: f64,
    /// The timestamp as sent: milliseconds since 1970 in the text format, seconds in OpenMetrics.
    pub timestamp: Option<f64>,
    /// The exemplar, if there is one.
    pub exemplar: Option<Exemplar<'t, 's>>,
}

/// An example of what was counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exemplar<'t, 's> {
    /// Its labels, in the order sent.
    pub labels: &'s [Label<'t>],
    /// Its value.
    pub value: f64,
    /// Its timestamp, seconds since 1970.
    pub timestamp: Option<f64>,
}

/// A label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label<'t> {
    /// Its name.
    pub name: Text<'t>,
    /// Its value.
    pub value: Text<'t>,
}

/// A piece of the body, possibly with escapes.
#[derive(Debug, Clone, Copy)]
pub struct Text<'t> {
    raw: &'t str,
    escaped: bool,
}

impl<'t> Text<'t> {
    /// Text without escapes.
    #[must_use]
    pub const fn plain(raw: &'t str) -> Self {
        Self {
            raw,
            escaped: false,
        }
    }

    pub(crate) fn quoted(raw: &'t str, escaped: bool) -> Self {
        Self { raw, escaped }
    }

    /// As it stands in the body, between the quotes.
    #[must_use]
    pub const fn raw(self) -> &'t str {
        self.raw
    }

    /// What it means: borrowed, unless it has escapes.
    ///
    /// `\\`, `\"` and `\n` are undone; a backslash before anything else stands for itself.
    #[must_use]
    pub fn unescaped(self) -> Cow<'t, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut text = String::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some(at) = rest.find('\\') {
            text.push_str(&rest[..at]);
            let (undone, skip) = match rest.as_bytes().get(at + 1) {
                Some(b'n') => ('\n', 2),
                Some(b'"') => ('"', 2),
                Some(b'\\') => ('\\', 2),
                _ => ('\\', 1),
            };
            text.push(undone);
            rest = &rest[at + skip..];
        }
        text.push_str(rest);
        Cow::Owned(text)
    }

    /// Whether it means `text`.
    #[must_use]
    pub fn is(self, text: &str) -> bool {
        if self.escaped {
            self.unescaped() == text
        } else {
            self.raw == text
        }
    }

    fn hash(self) -> u64 {
        if self.escaped {
            hash(self.unescaped().as_bytes())
        } else {
            hash(self.raw.as_bytes())
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        if self.escaped || other.escaped {
            self.unescaped() == other.unescaped()
        } else {
            self.raw == other.raw
        }
    }
}

impl Eq for Text<'_> {}

impl<'t> Sample<'t, '_> {
    /// The value of a label; `None` where it is absent.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<Text<'t>> {
        self.labels
            .iter()
            .find(|label| label.name.is(name))
            .map(|label| label.value)
    }

    /// A number for the series: the same for the same name and labels in whatever order, with or without needless
    /// escapes, and with empty labels left out.
    ///
    /// 64 bits without a secret: fit to tell the series of one body apart, not to authenticate anything.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let labels = self
            .labels
            .iter()
            .filter(|label| !label.value.raw.is_empty())
            .fold(0_u64, |sum, label| {
                sum.wrapping_add(mix(label.name.hash(), label.value.hash()))
            });
        mix(self.name.hash(), labels)
    }
}

/// One number from two whose order matters.
const fn mix(one: u64, other: u64) -> u64 {
    let mixed = (one ^ 0x517c_c1b7_2722_0a95)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(31)
        ^ other;
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(name: &str, labels: &[(&str, &str)]) -> u64 {
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| Label {
                name: Text::plain(name),
                value: Text::quoted(value, value.contains('\\')),
            })
            .collect();
        Sample {
            name: Text::plain(name),
            labels: &labels,
            value: 0.0,
            timestamp: None,
            exemplar: None,
        }
        .fingerprint()
    }

    #[test]
    fn fingerprints_follow_the_series_not_its_spelling() {
        let series = fingerprint("up", &[("a", "1"), ("b", "2")]);
        assert_eq!(series, fingerprint("up", &[("b", "2"), ("a", "1")]));
        assert_eq!(
            series,
            fingerprint("up", &[("b", "2"), ("a", "1"), ("c", "")])
        );
        assert_ne!(series, fingerprint("up", &[("a", "2"), ("b", "1")]));
        assert_ne!(series, fingerprint("up", &[("a", "1")]));
        assert_ne!(series, fingerprint("down", &[("a", "1"), ("b", "2")]));
        assert_ne!(
            fingerprint("up", &[("a", "1"), ("a", "1")]),
            fingerprint("up", &[])
        );
        assert_eq!(
            fingerprint("up", &[("a", "x\\q")]),
            fingerprint("up", &[("a", "x\\\\q")])
        );
    }

    #[test]
    fn escapes_are_undone_once() {
        let text = |raw| Text::quoted(raw, true).unescaped().into_owned();
        assert_eq!(text(r"a\nb"), "a\nb");
        assert_eq!(text(r#"\"q\" \\ C:\\x"#), r#""q" \ C:\x"#);
        assert_eq!(text(r"\\n"), "\\n");
        assert_eq!(text(r"\t\ü"), "\\t\\ü");
        assert_eq!(text("end\\"), "end\\");
        assert!(Text::quoted(r"\\", true).is("\\"));
        assert!(Text::quoted(r"\\", true) == Text::quoted("\\", false));
    }
}
