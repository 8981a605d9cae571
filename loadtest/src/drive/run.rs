//! A run from its first request to its summary.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::collect::{Collected, Collector, Progress};
use super::exchange::Clock;
use super::host::{self, Host};
use super::pace;
use super::settings::Settings;
use super::summary::{Distribution, DriverSummary, FORMAT, Mode, RunSummary, StreamSummary};
use super::validity::{self, Evidence, Validity};
use super::worker::{self, News, Shared, Users, WorkerReport};
use crate::schedule::statistics::Statistics;

/// Time between making the threads and the first instant of the schedule.
const LEAD: Duration = Duration::from_millis(50);
/// How often progress is shown.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Ends a run early: first no more requests, then no more waiting.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    ordering: Arc<AtomicBool>,
    abort: CancellationToken,
}

impl Stop {
    /// Sends nothing more and waits for what is in flight; asked again, waits no more.
    pub fn ask(&self) {
        if self.ordering.swap(true, Ordering::Relaxed) {
            self.abort.cancel();
        }
    }

    /// Ends everything at once.
    fn now(&self) {
        self.ordering.store(true, Ordering::Relaxed);
        self.abort.cancel();
    }
}

/// Sends the whole schedule, waits for the answers and sums up. Blocks its thread; `show` is called a few times a second.
///
/// # Errors
/// The file of requests cannot be written, or no thread can be made.
pub fn execute(
    settings: &Settings,
    stop: &Stop,
    mut show: impl FnMut(&Progress),
) -> io::Result<RunSummary> {
    host::raise_descriptor_limit();
    let mut collector = Collector::new(settings)?;
    let start = Instant::now() + LEAD;
    let started_at =
        Timestamp::now() + SignedDuration::try_from(LEAD).unwrap_or(SignedDuration::ZERO);
    let clock = Clock::starting_at(start);
    let shared = Arc::new(Shared {
        schedule: settings.schedule.clone(),
        routes: settings.routes.clone(),
        clock,
        timeout: settings.timeout,
        limit: settings
            .max_in_flight
            .map(|limit| Arc::new(Semaphore::new(limit))),
        replica_header: settings.replica_header.clone(),
        delayed_acks: settings.delayed_acks,
        sent: AtomicU64::new(0),
        abort: stop.abort.clone(),
        next: AtomicUsize::new(0),
        measured_from: settings.warmup,
    });
    let cpu_before = host::process_cpu();
    let (news_sender, news) = mpsc::channel();
    let reports = std::thread::scope(|scope| {
        let mut orders = Vec::with_capacity(settings.workers);
        for position in 0..settings.workers {
            let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
            orders.push(sender);
            let (shared, news) = (shared.clone(), news_sender.clone());
            let users = users_of(settings, position);
            std::thread::Builder::new()
                .name(format!("drive-{position}"))
                .spawn_scoped(scope, move || worker::run(shared, receiver, news, users))?;
        }
        drop(news_sender);
        let pacer = std::thread::Builder::new()
            .name("pacer".to_owned())
            .spawn_scoped(scope, move || match settings.mode {
                Mode::OpenLoop => {
                    pace::open_loop(&settings.schedule, &orders, clock, &stop.ordering)
                }
                Mode::ClosedLoop { .. } => {
                    pace::probes_only(&orders, clock, settings.schedule.duration(), &stop.ordering)
                }
            })?;
        let mut reports = Vec::new();
        let mut failed = None;
        let mut shown = Instant::now();
        let mut drain_until = None;
        loop {
            match news.recv_timeout(SHOW_EVERY) {
                Ok(News::Records(records)) => {
                    for record in &records {
                        if let Err(error) = collector.add(record) {
                            // Nothing is gained by going on, but the threads have to end.
                            stop.now();
                            failed.get_or_insert(error);
                        }
                    }
                }
                Ok(News::Ended(report)) => reports.push(report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if drain_until.is_none() && pacer.is_finished() {
                drain_until = Some(Instant::now() + settings.drain);
            }
            if drain_until.is_some_and(|until| Instant::now() >= until) {
                stop.abort.cancel();
            }
            if shown.elapsed() >= SHOW_EVERY {
                show(&collector.progress(clock.now(), shared.sent.load(Ordering::Relaxed)));
                shown = Instant::now();
            }
        }
        show(&collector.progress(clock.now(), shared.sent.load(Ordering::Relaxed)));
        failed.map_or(Ok(reports), Err)
    })?;
    let wall = start.elapsed().max(Duration::from_millis(1));
    let cpus_used = (host::process_cpu() - cpu_before).as_secs_f64() / wall.as_secs_f64();
    let collected = collector.finish()?;
    Ok(sum_up(
        settings,
        &collected,
        &driver(settings, &reports, cpus_used, wall),
        started_at,
        stop.ordering.load(Ordering::Relaxed),
    ))
}

/// The users of the worker at `position`, in a closed loop.
fn users_of(settings: &Settings, position: usize) -> Option<Users> {
    let Mode::ClosedLoop {
        users,
        think_seconds,
    } = settings.mode
    else {
        return None;
    };
    Some(Users {
        count: users / settings.workers + usize::from(position < users % settings.workers),
        think: crate::schedule::numeric::duration(think_seconds),
        until: settings.schedule.duration(),
    })
}

fn driver(
    settings: &Settings,
    reports: &[Box<WorkerReport>],
    cpus_used: f64,
    wall: Duration,
) -> DriverSummary {
    let mut lag: Histogram<u64> = worker::new_histogram();
    for report in reports {
        lag.add(&report.lag).expect("both grow as needed");
    }
    let share = |of: fn(&host::ThreadCpu) -> Duration| {
        reports
            .iter()
            .filter_map(|report| report.cpu.as_ref().map(of))
            .max()
            .map(|most| most.as_secs_f64() / wall.as_secs_f64())
    };
    DriverSummary {
        workers: settings.workers,
        connections: reports.iter().map(|report| report.connections).sum(),
        max_in_flight: settings.max_in_flight,
        loop_lag: Distribution::of(&lag),
        cpus_used,
        busiest_worker: share(|cpu| cpu.ran),
        waited_for_cpu: share(|cpu| cpu.waited),
    }
}

fn sum_up(
    settings: &Settings,
    collected: &Collected,
    driver: &DriverSummary,
    started_at: Timestamp,
    interrupted: bool,
) -> RunSummary {
    let schedule = &settings.schedule;
    let end = collected.last_end.max(schedule.duration());
    let measured_seconds = end.saturating_sub(settings.warmup).as_secs_f64();
    let offered_seconds = schedule
        .duration()
        .saturating_sub(settings.warmup)
        .as_secs_f64();
    let summarise = |model: &str, objectives, (measures, series): &(_, _)| {
        StreamSummary::of(
            model,
            objectives,
            measures,
            series,
            measured_seconds,
            offered_seconds,
        )
    };
    let streams: Vec<StreamSummary> = schedule
        .streams()
        .iter()
        .zip(&settings.objectives)
        .zip(&collected.streams)
        .map(|((name, objectives), collected)| summarise(&name.model, Some(*objectives), collected))
        .collect();
    let common = settings
        .objectives
        .first()
        .filter(|first| settings.objectives.iter().all(|other| other == *first));
    let total = summarise("all", common.copied(), &collected.total);
    let host = Host::read();
    let validity: Validity = validity::judge(&Evidence {
        mode: settings.mode,
        total: &total,
        objectives: &settings.objectives,
        driver,
        cpus: host.cpus,
        spans: collected.spans,
        interrupted,
    });
    RunSummary {
        format: FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        validity,
        started_at,
        ended_at: started_at + SignedDuration::try_from(end).unwrap_or(SignedDuration::ZERO),
        measured_seconds,
        warmup_seconds: settings.warmup.as_secs_f64(),
        mode: settings.mode,
        urls: settings
            .routes
            .iter()
            .map(|route| {
                let url = &route.target.url;
                format!(
                    "{}://{}{}",
                    if url.tls { "https" } else { "http" },
                    url.authority(),
                    url.path
                )
            })
            .collect(),
        scenario: settings.scenario.clone(),
        schedule: Statistics::of(schedule),
        schedule_digest: format!("{:016x}", schedule.digest()),
        host,
        driver: driver.clone(),
        total,
        streams,
    }
}
