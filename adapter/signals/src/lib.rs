//! Signals of inference servers: discover, scrape, recognise, window, answer.
//!
//! Shared by the adapter, which answers metric queries, and the scaler, which observes roles. Data flows one way:
//!
//! 1. [`discover`] turns pods (and static addresses) into endpoints. An endpoint is *live* while its pod is ready and
//!    not terminating; a pod that goes takes its series along at once.
//! 2. The scraper fetches each endpoint on its own phase, within a deadline and within limits.
//! 3. [`engines`] recognises the server by what it sends and says which series make up which [`Signal`].
//! 4. A window is kept per endpoint: bounded, of gauges, reset-aware counters, histogram buckets.
//! 5. [`query`] and [`mod@observe`] join the windows with the live endpoints and answer, or say what is [`Missing`].
//!
//! Missing is never zero: whatever could not be measured is an error value with a reason.
//!
//! Everything but the scraper, [`watch_pods`] and [`Signals::run`] is free of I/O and takes `now` as an argument.
//!
//! ```no_run
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use coppice_signals::{Metrics, PodWatch, Query, Settings, Signals};
//! use tokio_util::sync::CancellationToken;
//!
//! let mut registry = prometheus_client::registry::Registry::default();
//! let metrics = Metrics::register(registry.sub_registry_with_prefix("adapter"));
//! let signals = Signals::new(Settings::default(), metrics)?;
//! let stop = CancellationToken::new();
//! tokio::spawn(signals.clone().run(stop.clone()));
//! tokio::spawn(coppice_signals::watch_pods(signals.clone(), client, PodWatch::everywhere(), stop));
//!
//! let query = Query::parse("coppice_requests_waiting", Some("serving"), "grove.io/podclique=decode")?;
//! match signals.query(&query, signals.now()) {
//!     Ok(answer) => println!("{} from {} endpoints", answer.value, answer.contributing),
//!     Err(missing) => println!("hold: {missing}"),
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod buffers;
mod channel;
mod clock;
mod collection;
pub mod discover;
mod endpoint;
pub mod engines;
mod evaluate;
mod fetch;
pub mod histogram;
mod index;
pub mod input;
pub mod metric;
pub mod metrics;
pub mod observe;
pub mod query;
mod reading;
mod recent;
mod scrape;
pub mod selector;
pub mod settings;
pub mod signals;
mod target;
pub mod watch;

pub use discover::{PodFacts, Port, ScrapeRule, StaticTarget};
pub use engines::{InvalidMapping, Mapping, Signal, SignalMapping};
pub use histogram::WindowHistogram;
pub use index::WatchId;
pub use input::{Aggregate, Input, Overrides};
pub use metric::{Latency, Metric, Percentile, UnknownMetric};
pub use metrics::Metrics;
pub use observe::{EndpointCounts, LatencyReading, MeasuredHistogram, Reading, RoleSignals};
pub use query::{
    Answer, EndpointAnswer, EndpointStatus, InvalidQuery, Measured, Missing, Problem, Query, Rule,
    Selection, Why, model_id,
};
pub use selector::{InvalidSelector, Requirement, Selector, Test};
pub use settings::{InvalidSetting, Limits, Settings};
pub use signals::Signals;
pub use watch::{PodWatch, watch_pods};
