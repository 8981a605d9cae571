//! The collector's handle: feed it endpoints, run it, ask it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::buffers::Buffers;
use crate::clock::Clock;
use crate::collection::Catalogue;
use crate::discover::{PodFacts, ScrapeRule, StaticTarget};
use crate::endpoint::{Endpoint, Tracked};
use crate::engines::{InvalidMapping, Mapping, Recognition, Servers, mapping};
use crate::index::{Added, Index, WatchId};
use crate::metrics::{FRESH, Metrics, NEVER_SCRAPED, NOT_READY, STALE, UNRECOGNISED};
use crate::query::Selection;
use crate::recent::Recent;
use crate::scrape::scrape;
use crate::settings::{InvalidSetting, Settings};
use crate::target::{Ingested, NotIngested};

mod questions;

/// The collector. Cheap to clone; all clones are the same collector.
#[derive(Debug, Clone)]
pub struct Signals {
    inner: Arc<Inner>,
}

/// What the scrapers share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    pub(crate) index: RwLock<Index>,
    pub(crate) in_flight: Semaphore,
    pub(crate) buffers: Buffers,
    recent: Mutex<Recent>,
    catalogue: Mutex<Names>,
    servers: RwLock<(&'static Servers, Vec<Mapping>)>,
    added: mpsc::UnboundedSender<Arc<Endpoint>>,
    to_scrape: Mutex<Option<mpsc::UnboundedReceiver<Arc<Endpoint>>>>,
}

/// What is collected, and when each series was last asked for by its own name.
#[derive(Debug, Default)]
struct Names {
    catalogue: Catalogue,
    asked: BTreeMap<String, Timestamp>,
}

impl Signals {
    /// A collector without endpoints. Call it within a Tokio runtime.
    ///
    /// # Errors
    /// A setting cannot work.
    pub fn new(settings: Settings, metrics: Metrics) -> Result<Self, InvalidSetting> {
        settings.validate()?;
        let (added, to_scrape) = mpsc::unbounded_channel();
        let inner = Inner {
            clock: Clock::start(),
            index: RwLock::new(Index::new(rows(&settings), settings.limits.targets)),
            in_flight: Semaphore::new(settings.concurrent_scrapes),
            buffers: Buffers::default(),
            recent: Mutex::default(),
            catalogue: Mutex::default(),
            servers: RwLock::new((Servers::built_in(), Vec::new())),
            added,
            to_scrape: Mutex::new(Some(to_scrape)),
            settings,
            metrics,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Scrapes the endpoints, each on its own phase, until `stop`. Run it once; a second run returns at once.
    ///
    /// Endpoints may be added before and while it runs.
    pub async fn run(self, stop: CancellationToken) {
        let Some(mut to_scrape) = self.inner.to_scrape.lock().take() else {
            warn!("the collector runs already");
            return;
        };
        let scrapers = TaskTracker::new();
        let mut house_keeping = tokio::time::interval(self.inner.settings.interval);
        house_keeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                added = to_scrape.recv() => match added {
                    Some(endpoint) => {
                        scrapers.spawn(scrape(Arc::clone(&self.inner), endpoint));
                    }
                    None => break,
                },
                _ = house_keeping.tick() => self.inner.keep_house(),
            }
        }
        self.inner.index.read().stop();
        scrapers.close();
        scrapers.wait().await;
    }

    /// The collector's clock: wall time at its creation plus monotonic time since, so that it never jumps.
    ///
    /// Pass it as `now` to [`Self::query`] and [`Self::observe`].
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Whether there is a watch and every watch has delivered its first list, so that an empty answer means that there are
    /// no pods.
    #[must_use]
    pub fn is_discovered(&self) -> bool {
        self.inner.index.read().is_discovered()
    }

    /// Begins a watch of one's own, to be fed by [`Self::replace_pods`], [`Self::apply_pod`] and [`Self::delete_pod`].
    /// `watch_pods` does this.
    #[must_use]
    pub fn begin_watch(&self) -> WatchId {
        self.inner.index.write().begin_watch()
    }

    /// Ends a watch; pods that only it saw are gone.
    pub fn end_watch(&self, id: WatchId) {
        self.inner.change(|index| {
            index.end_watch(id);
            Vec::new()
        });
    }

    /// Replaces everything that one watch saw by a complete list.
    pub fn replace_pods(&self, id: WatchId, pods: Vec<PodFacts>) {
        self.inner.change(|index| index.replace_pods(id, pods));
    }

    /// Adds or renews a pod.
    pub fn apply_pod(&self, id: WatchId, pod: PodFacts) {
        self.inner.change(|index| index.apply_pod(id, pod));
    }

    /// Removes a pod, unless another watch sees it.
    pub fn delete_pod(&self, id: WatchId, namespace: &str, name: &str) {
        self.inner.change(|index| {
            index.delete_pod(id, namespace, name);
            Vec::new()
        });
    }

    /// Replaces the scrape rules of one owner (a policy's `namespace/name`, say); an empty list removes them.
    ///
    /// Rules of all owners hold together; where two select a pod, the pod has an endpoint at each port and path.
    pub fn set_scrape_rules(&self, owner: &str, rules: Vec<ScrapeRule>) {
        self.inner.change(|index| index.set_rules(owner, rules));
    }

    /// Replaces the static targets of one owner; an empty list removes them.
    pub fn set_static_targets(&self, owner: &str, targets: Vec<StaticTarget>) {
        self.inner.change(|index| index.set_statics(owner, targets));
    }

    /// Replaces the mappings: servers of users' own, which come before the built-in ones.
    ///
    /// Endpoints are recognised anew with their next body; those that stay what they were keep their windows. Each change
    /// costs a few kilobytes for the life of the process.
    ///
    /// # Errors
    /// A mapping cannot work; all stay as they were.
    pub fn set_mappings(&self, mappings: Vec<Mapping>) -> Result<(), InvalidMapping> {
        mapping::validate(&mappings)?;
        let mut servers = self.inner.servers.write();
        if servers.1 != mappings {
            *servers = (Servers::with(&mappings), mappings);
            self.inner.catalogue.lock().catalogue.renew();
        }
        Ok(())
    }

    /// Takes in a body for every selected endpoint as if it had been scraped: for tests, and for replaying recorded bodies.
    ///
    /// # Errors
    /// Why the body was not taken in, as text; of several endpoints the first one.
    pub fn ingest(&self, selection: &Selection, body: &[u8], at: Timestamp) -> Result<(), String> {
        self.inner.index.write().touch();
        for each in self.inner.select(selection, at) {
            self.inner
                .ingest(&each.endpoint.tracked, body, true, at)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Rows that a window needs: one for each interval, and one at each end.
fn rows(settings: &Settings) -> usize {
    let rows = settings
        .window
        .as_nanos()
        .div_ceil(settings.interval.as_nanos().max(1))
        + 2;
    usize::try_from(rows).unwrap_or(usize::MAX)
}

impl Inner {
    /// Changes the index, and starts scraping what that brought.
    fn change(&self, change: impl FnOnce(&mut Index) -> Added) {
        let mut index = self.index.write();
        let mut added = change(&mut index);
        added.extend(index.take_promoted());
        drop(index);
        for endpoint in added {
            // Fails only after the end of the run, when nothing is scraped any more.
            drop(self.added.send(endpoint));
        }
    }

    /// Takes in a body for an endpoint.
    pub(crate) fn ingest(
        &self,
        tracked: &Tracked,
        body: &[u8],
        whole: bool,
        at: Timestamp,
    ) -> Result<Ingested, NotIngested> {
        let servers = self.servers.read().0;
        let mut state = tracked.state.lock();
        let limits = &self.settings.limits;
        state
            .target
            .ingest(body, whole, at, limits, servers, |recognition| {
                self.catalogue.lock().catalogue.collection(recognition)
            })
    }

    /// Counts endpoints and series, and forgets series that nobody asks for any more.
    fn keep_house(&self) {
        let now = self.clock.now();
        let stale_after = self.settings.stale_after();
        let mut counts: Vec<(Option<Recognition>, [usize; 4])> = Vec::new();
        let (mut series, mut stale_series) = (0, 0);
        let mut oldest = Duration::ZERO;
        for endpoint in self.index.read().endpoints(None) {
            let state = endpoint.tracked.state.lock();
            let count = state.target.series();
            series += count;
            let age = state
                .target
                .glance
                .last
                .map(|last| Duration::try_from(now.duration_since(last)).unwrap_or_default());
            let place = match (endpoint.live, age) {
                (false, _) => NOT_READY,
                (true, None) => NEVER_SCRAPED,
                (true, Some(age)) => {
                    oldest = oldest.max(age);
                    if age <= stale_after {
                        FRESH
                    } else {
                        stale_series += count;
                        STALE
                    }
                }
            };
            let server = state.target.recognition();
            let is_same = |(known, _): &&mut (Option<Recognition>, _)| match (known, server) {
                (Some(known), Some(server)) => known.is_same_server(server),
                (None, None) => true,
                _ => false,
            };
            match counts.iter_mut().find(is_same) {
                Some((_, places)) => places[place] += 1,
                None => {
                    let mut places = [0; 4];
                    places[place] = 1;
                    counts.push((server, places));
                }
            }
        }
        let over_limit = self.index.read().over_limit();
        if over_limit > 0 {
            self.metrics.count_limit("limits.targets");
            debug!(
                over_limit,
                limit = self.settings.limits.targets,
                "endpoints are not scraped: too many"
            );
        }
        let counts = counts.into_iter().map(|(server, places)| {
            let name = server.map_or_else(|| UNRECOGNISED.to_owned(), Recognition::name);
            (name, places)
        });
        self.metrics.set_endpoints(counts);
        self.metrics.oldest_sample_age.set(oldest.as_secs_f64());
        self.metrics
            .series
            .set(i64::try_from(series).unwrap_or(i64::MAX));
        self.metrics
            .stale_series
            .set(i64::try_from(stale_series).unwrap_or(i64::MAX));
        let idle = self.settings.limits.raw_name_idle;
        let mut names = self.catalogue.lock();
        names.asked.retain(|_, asked| {
            Duration::try_from(now.duration_since(*asked)).unwrap_or_default() < idle
        });
        let Names { catalogue, asked } = &mut *names;
        catalogue.retain_raw(|name| asked.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::query::{Answer, Missing, Query};

    /// A collector of so many llama.cpp servers, with one request waiting at each.
    fn collector(servers: usize, registry: &mut Registry) -> Signals {
        let signals = Signals::new(Settings::default(), Metrics::register(registry)).unwrap();
        let targets = (0..servers).map(|index| StaticTarget {
            namespace: "serving".to_owned(),
            name: format!("server-{index:05}"),
            address: format!("127.0.0.1:{}", 1024 + index),
            path: "/metrics".to_owned(),
            labels: BTreeMap::new(),
        });
        signals.set_static_targets("test", targets.collect());
        let body = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n";
        signals
            .ingest(&Selection::default(), body, signals.now())
            .unwrap();
        signals
    }

    #[tokio::test]
    async fn the_same_question_asked_by_many_at_once_is_answered_once() {
        const ASKERS: usize = 32;
        let mut registry = Registry::default();
        let signals = collector(2000, &mut registry);
        let query = Query::parse("coppice_requests_waiting", Some("serving"), "").unwrap();
        let start = Barrier::new(ASKERS);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..ASKERS)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        signals.query(&query, signals.now())
                    })
                })
                .collect();
            askers
                .into_iter()
                .map(|asker| asker.join().unwrap())
                .collect()
        });
        let value =
            |answer: &Result<Answer, Missing>| answer.as_ref().ok().map(|answer| answer.value);
        assert_eq!(value(&answers[0]), Some(2000.0));
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert_eq!(signals.inner.metrics.evaluations.get(), 1);
        // Another question is another answer.
        let other = Query::parse("coppice_requests_running", Some("serving"), "").unwrap();
        assert_eq!(value(&signals.query(&other, signals.now())), Some(4000.0));
        assert_eq!(signals.inner.metrics.evaluations.get(), 2);
    }

    #[tokio::test]
    async fn endpoints_are_counted_by_server_and_state() {
        let mut registry = Registry::default();
        let signals = collector(3, &mut registry);
        signals.inner.keep_house();
        let exposed = |line: &str| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            assert!(
                text.lines().any(|each| each == line),
                "{line} is not in\n{text}"
            );
        };
        exposed("endpoints{engine=\"llama.cpp\",state=\"fresh\"} 3");
        exposed("endpoints{engine=\"vllm\",state=\"fresh\"} 0");
        signals.set_static_targets("test", Vec::new());
        signals.inner.keep_house();
        exposed("endpoints{engine=\"llama.cpp\",state=\"fresh\"} 0");
    }
}
