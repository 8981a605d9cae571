//! What a body may cost.

/// Limits of one reading. Reaching one is an error that names it.
///
/// The defaults leave room for the largest bodies and lines seen in practice; the reader itself needs no memory for any
/// of them but the labels of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the body; more refuse it. Default 8 MiB.
    pub body_bytes: usize,
    /// Sample lines, selected or not; more refuse the body. Default 500,000.
    pub samples: u64,
    /// Bytes of one selected line; a longer one is malformed. Default 2 MiB.
    pub line_bytes: usize,
    /// Bytes of a selected metric name; a longer one makes its line malformed. Default 1,024.
    pub name_bytes: usize,
    /// Labels of one selected sample, those of its exemplar included; more make its line malformed. Default 8,192.
    pub labels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            samples: 500_000,
            line_bytes: 2 << 20,
            name_bytes: 1024,
            labels: 8192,
        }
    }
}
