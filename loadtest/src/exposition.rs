//! Writes the Prometheus text format, in the two number styles that the imitated servers use.

use std::fmt::Write as _;

/// How numbers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// As Python's client writes them: `3.0`, `1.5e+06`.
    Python,
    /// As the Rust client writes them: `3`, `1500000`.
    Rust,
}

/// A body of `/metrics` in the making.
#[derive(Debug)]
pub struct Text {
    numbers: Numbers,
    out: String,
}

/// The counts of a histogram series.
#[derive(Debug, Clone, Copy)]
pub struct Buckets<'a> {
    /// Finite upper bounds, ascending.
    pub bounds: &'a [f64],
    /// Observations at or below each bound, then all of them.
    pub cumulative: &'a [u64],
    /// Sum of the observations.
    pub sum: f64,
}

impl Text {
    /// An empty body.
    #[must_use]
    pub fn new(numbers: Numbers) -> Self {
        Self {
            numbers,
            out: String::with_capacity(64 * 1024),
        }
    }

    /// Starts a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.put(&[
            "# HELP ",
            name,
            " ",
            help,
            "\n# TYPE ",
            name,
            " ",
            kind,
            "\n",
        ]);
    }

    /// One sample; `labels` is the inside of the braces, empty for none.
    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        if labels.is_empty() {
            self.put(&[name, " "]);
        } else {
            self.put(&[name, "{", labels, "} "]);
        }
        self.number(value);
        self.out.push('\n');
    }

    /// The bucket, count and sum samples of one histogram series, without its family's lines.
    ///
    /// `before` and `after` are the labels in front of and behind `le`, each without a comma at its ends.
    pub fn histogram(&mut self, name: &str, before: &str, after: &str, buckets: Buckets<'_>) {
        let comma = |labels: &str| if labels.is_empty() { "" } else { "," };
        for (index, count) in buckets.cumulative.iter().enumerate() {
            self.put(&[name, "_bucket{", before, comma(before), "le=\""]);
            match buckets.bounds.get(index) {
                Some(bound) => self.number(*bound),
                None => self.out.push_str("+Inf"),
            }
            self.put(&["\"", comma(after), after, "} "]);
            self.number(count_to_f64(*count));
            self.out.push('\n');
        }
        let labels = [before, after]
            .into_iter()
            .filter(|labels| !labels.is_empty())
            .collect::<Vec<_>>()
            .join(",");
        let count = buckets.cumulative.last().copied().unwrap_or(0);
        let (count_name, sum_name) = (format!("{name}_count"), format!("{name}_sum"));
        match self.numbers {
            Numbers::Python => {
                self.sample(&count_name, &labels, count_to_f64(count));
                self.sample(&sum_name, &labels, buckets.sum);
            }
            Numbers::Rust => {
                self.sample(&sum_name, &labels, buckets.sum);
                self.sample(&count_name, &labels, count_to_f64(count));
            }
        }
    }

    /// The finished body.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }

    fn put(&mut self, parts: &[&str]) {
        for part in parts {
            self.out.push_str(part);
        }
    }

    fn number(&mut self, value: f64) {
        let written = match self.numbers {
            Numbers::Rust => write!(self.out, "{value}"),
            Numbers::Python if value.fract() == 0.0 && value.abs() < 1e6 => {
                write!(self.out, "{value:.1}")
            }
            Numbers::Python if value.abs() < 1e6 && value.abs() >= 1e-4 => {
                write!(self.out, "{value}")
            }
            Numbers::Python => write_exponent(&mut self.out, value),
        };
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

/// `1.5e+06`: at least two digits of exponent, with a sign.
fn write_exponent(out: &mut String, value: f64) -> std::fmt::Result {
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return write!(out, "{text}");
    };
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    write!(out, "{mantissa}e{sign}{digits:0>2}")
}

/// A label's value with the escapes that the format asks for.
#[must_use]
pub fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn count_to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(numbers: Numbers, value: f64) -> String {
        let mut text = Text::new(numbers);
        text.number(value);
        text.finish()
    }

    #[test]
    fn numbers_look_as_the_imitated_clients_write_them() {
        for (value, python, rust) in [
            (0.0, "0.0", "0"),
            (45.0, "45.0", "45"),
            (0.1968, "0.1968", "0.1968"),
            (429_306.0, "429306.0", "429306"),
            (1_408_338.0, "1.408338e+06", "1408338"),
            (2_097_152.0, "2.097152e+06", "2097152"),
            (1_796_040_064.7, "1.7960400647e+09", "1796040064.7"),
            (0.000_012, "1.2e-05", "0.000012"),
        ] {
            assert_eq!(number(Numbers::Python, value), python);
            assert_eq!(number(Numbers::Rust, value), rust);
        }
    }

    #[test]
    fn a_histogram_has_its_labels_round_le() {
        let buckets = Buckets {
            bounds: &[0.5, 1.0],
            cumulative: &[1, 3, 4],
            sum: 3.25,
        };
        let mut text = Text::new(Numbers::Python);
        text.histogram("x_seconds", "engine=\"0\"", "model_name=\"m\"", buckets);
        let expected = "x_seconds_bucket{engine=\"0\",le=\"0.5\",model_name=\"m\"} 1.0\n\
            x_seconds_bucket{engine=\"0\",le=\"1.0\",model_name=\"m\"} 3.0\n\
            x_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 4.0\n\
            x_seconds_count{engine=\"0\",model_name=\"m\"} 4.0\n\
            x_seconds_sum{engine=\"0\",model_name=\"m\"} 3.25\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
