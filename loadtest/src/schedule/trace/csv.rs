//! Just enough CSV for request traces: a header, commas, no quoting.

/// Finds columns by name.
pub(super) struct Header<'a> {
    columns: Vec<&'a str>,
}

impl<'a> Header<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self {
            columns: line
                .trim_end_matches('\r')
                .split(',')
                .map(str::trim)
                .collect(),
        }
    }

    /// The position of a column that may be missing.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.columns
            .iter()
            .position(|column| column.eq_ignore_ascii_case(name))
    }

    /// The position of a column that must be there.
    pub(super) fn need(&self, name: &str) -> Result<usize, String> {
        self.find(name).ok_or_else(|| {
            format!(
                "the column {name} is missing; the columns are {}",
                self.columns.join(", ")
            )
        })
    }
}

/// The field at a position.
pub(super) fn field<'a>(
    fields: &[&'a str],
    position: usize,
    name: &str,
) -> Result<&'a str, String> {
    fields
        .get(position)
        .map(|field| field.trim())
        .ok_or_else(|| {
            format!(
                "it ends before {name}: {} fields instead of at least {}",
                fields.len(),
                position + 1
            )
        })
}

/// A count of tokens: a whole number, also when written with a decimal point.
pub(super) fn count(text: &str, name: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .or_else(|| text.strip_suffix(".0").and_then(|whole| whole.parse().ok()))
        .ok_or_else(|| format!("{name} is {text:?}, not a number of tokens"))
}

/// Seconds as nanoseconds, read digit by digit so that nothing is rounded.
pub(super) fn seconds(text: &str, name: &str) -> Result<i128, String> {
    let refuse = || format!("{name} is {text:?}, not a number of seconds");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        // Rarer spellings, such as 1e3.
        let value: f64 = text.parse().map_err(|_| refuse())?;
        let duration = std::time::Duration::try_from_secs_f64(value).map_err(|_| refuse())?;
        return i128::try_from(duration.as_nanos()).map_err(|_| refuse());
    }
    let whole: i128 = whole.parse().map_err(|_| refuse())?;
    let nine: String = fraction
        .chars()
        .chain(std::iter::repeat('0'))
        .take(9)
        .collect();
    let nanoseconds: i128 = nine.parse().map_err(|_| refuse())?;
    Ok(whole * 1_000_000_000 + nanoseconds)
}
