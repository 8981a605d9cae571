//! Reader for the Prometheus text format 0.0.4 and OpenMetrics 1.0 text.
//!
//! Works on bytes, in one pass, and passes over what nobody asked for: [`read`] hands each metric name to the
//! [`Consumer`], and only a line whose name it selects is looked at further. Names, label names and label values are
//! borrowed from the body; nothing is allocated per sample. Pick names with [`NameTable`], an exact set; or take
//! everything with [`collect`].
//!
//! One reader for both formats, because bodies do not keep to the format they announce. Accepted:
//!
//! - names with colons, and quoted UTF-8 names (`{"http.requests",code="200"} 1`);
//! - label values with commas, braces, quotes and escapes (`\\`, `\"`, `\n`);
//! - values as decimal numbers, `NaN`, `Inf`, `+Inf`, `-Inf` in any case; timestamps as whole or decimal numbers;
//! - exemplars on any sample; `HELP`, `TYPE`, `UNIT` and free comments, in any order, or none;
//! - LF and CRLF, blank lines, blanks and tabs between tokens, a byte order mark, a last line without a newline;
//! - `# EOF`: what follows is not read.
//!
//! A line that breaks the format is skipped and counted, with line and column of the first ones in the [`Report`].
//! Like Prometheus, the reader refuses Go's other spellings of numbers (`0x1p4`, `1_000`) on their line. A body that is
//! no exposition (HTML, JSON, gzip) or exceeds a limit on the whole is [`Refused`].
//!
//! What this crate deliberately does not know: HTTP, what a metric means, units, families. A series that is sent twice is
//! delivered twice; [`Sample::fingerprint`] tells that it is the same.
//!
//! ```
//! use coppice_exposition::{Consumer, Limits, NameTable, Sample, read};
//!
//! struct Waiting {
//!     names: NameTable<()>,
//!     sum: f64,
//! }
//!
//! impl<'t> Consumer<'t> for Waiting {
//!     type Key = ();
//!     fn select(&mut self, name: &[u8]) -> Option<()> {
//!         self.names.get(name).copied()
//!     }
//!     fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
//!         self.sum += sample.value;
//!     }
//! }
//!
//! let body = b"# TYPE vllm:num_requests_waiting gauge\n\
//!     vllm:num_requests_waiting{engine=\"0\"} 3\n\
//!     vllm:num_requests_waiting{engine=\"1\"} 4\n\
//!     vllm:num_requests_running{engine=\"0\"} 8\n";
//! let mut waiting = Waiting { names: NameTable::new([("vllm:num_requests_waiting", ())]), sum: 0.0 };
//! let report = read(body, &Limits::default(), &mut waiting).unwrap();
//! assert_eq!(waiting.sum, 7.0);
//! assert_eq!((report.samples, report.passed_over), (2, 1));
//! ```

mod collect;
mod error;
mod limits;
mod line;
mod names;
mod number;
mod read;
mod sample;
mod scan;

pub use collect::{OwnedSample, collect};
pub use error::{Found, Malformed, Position, Problem, Refused};
pub use limits::Limits;
pub use names::NameTable;
pub use read::{Consumer, Ending, Kind, Metadata, MetadataPart, Report, read};
pub use sample::{Exemplar, Label, Sample, Text};
