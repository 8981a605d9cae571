//! A thread that sends requests and reads answers.
//!
//! Each worker has its own event loop and connections; nothing is shared between workers on the way of a request. Finished
//! records go to the collector in batches.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::exchange::{Around, Clock, Ended, exchange};
use super::host::{ThreadCpu, microseconds};
use super::record::{Failure, FailureKind, Record};
use super::route::Route;
use crate::schedule::Schedule;

/// Bytes read at once. Large enough that a long answer of a fast server is not throttled.
const READ_BYTES: usize = 128 * 1024;
/// Records are handed over at this number or at the next probe; one by one once no order can come any more.
const BATCH: usize = 64;

/// What a worker is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Send this request now; it was due at the instant.
    Send { request: u32, planned: Duration },
    /// Answer how late this arrives; sent at the instant.
    Probe(Duration),
}

/// What a worker tells the collector.
#[derive(Debug)]
pub(super) enum News {
    Records(Vec<Record>),
    /// The worker has ended.
    Ended(Box<WorkerReport>),
}

/// How a worker fared.
#[derive(Debug)]
pub(super) struct WorkerReport {
    /// Delay between a probe and its handling, in µs.
    pub(super) lag: Histogram<u64>,
    /// Connections opened.
    pub(super) connections: u64,
    /// Processor time; none where the system does not tell.
    pub(super) cpu: Option<ThreadCpu>,
}

/// What all workers of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) schedule: Arc<Schedule>,
    /// One per stream of the schedule.
    pub(super) routes: Vec<Route>,
    pub(super) clock: Clock,
    /// A request that has no complete answer this long after it was due has failed.
    pub(super) timeout: Duration,
    /// Requests in flight at most, over all workers.
    pub(super) limit: Option<Arc<Semaphore>>,
    /// Lower-case name of the header that names the replica.
    pub(super) replica_header: String,
    /// Let the system delay acknowledgements.
    pub(super) delayed_acks: bool,
    /// Requests whose first byte was handed over.
    pub(super) sent: AtomicU64,
    /// Ends all workers, whatever is in flight.
    pub(super) abort: CancellationToken,
    /// The next request of a closed loop.
    pub(super) next: AtomicUsize,
    /// The end of the warm-up.
    pub(super) measured_from: Duration,
}

/// A closed loop: users who wait for each answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Users {
    /// In this worker.
    pub(super) count: usize,
    /// Pause after an answer.
    pub(super) think: Duration,
    /// No request begins at or after this.
    pub(super) until: Duration,
}

/// Runs a worker until its orders end and nothing is in flight, or until the run is aborted.
pub(super) fn run(
    shared: Arc<Shared>,
    mut orders: UnboundedReceiver<Order>,
    news: Sender<News>,
    users: Option<Users>,
) {
    let cpu_before = ThreadCpu::read();
    let worker = Rc::new(Worker {
        pools: RefCell::new(shared.routes.iter().map(|_| Vec::new()).collect()),
        shared,
        scratch: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
        buffers: RefCell::new(Vec::new()),
        finished: RefCell::new(Vec::with_capacity(BATCH)),
        news,
        lag: RefCell::new(new_histogram()),
        connections: Cell::new(0),
        in_flight: Cell::new(0),
        idle: Notify::new(),
        draining: Cell::new(false),
    });
    // Building a runtime fails only when the system is out of descriptors or memory; the records then say "not sent".
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
    {
        let inside = worker.clone();
        runtime.block_on(async move {
            tokio::select! {
                () = inside.shared.abort.cancelled() => {}
                () = inside.work(&mut orders, users) => {}
            }
        });
        // What is still in flight is dropped here and leaves its record as unfinished.
        drop(runtime);
    }
    worker.flush();
    let report = WorkerReport {
        lag: worker.lag.borrow().clone(),
        connections: worker.connections.get(),
        cpu: ThreadCpu::read()
            .zip(cpu_before)
            .map(|(after, before)| after.since(before)),
    };
    // The collector may have gone on an abort.
    drop(worker.news.send(News::Ended(Box::new(report))));
}

/// A histogram in µs with 3 significant digits that grows as needed.
pub(super) fn new_histogram() -> Histogram<u64> {
    let mut histogram =
        Histogram::new_with_bounds(1, 1_000_000, 3).expect("the bounds are constant and valid");
    histogram.auto(true);
    histogram
}

/// Adds `count` values. Not `saturating_record`: that one clamps to the range so far instead of growing it.
pub(super) fn record_in(histogram: &mut Histogram<u64>, microseconds: u64, count: u64) {
    histogram
        .record_n(microseconds, count)
        .expect("it grows as needed");
}

struct Worker {
    shared: Arc<Shared>,
    /// Idle connections per route; the last used is the first taken, so that the others can grow old.
    pools: RefCell<Vec<Vec<Connection>>>,
    scratch: RefCell<Box<[u8]>>,
    /// Request buffers for the next requests.
    buffers: RefCell<Vec<Vec<u8>>>,
    finished: RefCell<Vec<Record>>,
    news: Sender<News>,
    lag: RefCell<Histogram<u64>>,
    connections: Cell<u64>,
    in_flight: Cell<usize>,
    idle: Notify,
    draining: Cell<bool>,
}

impl Worker {
    async fn work(self: &Rc<Self>, orders: &mut UnboundedReceiver<Order>, users: Option<Users>) {
        for _ in 0..users.map_or(0, |users| users.count) {
            if let Some(users) = users {
                self.enter();
                tokio::task::spawn_local(self.clone().user(users));
            }
        }
        let mut batch = Vec::with_capacity(256);
        while orders.recv_many(&mut batch, 256).await > 0 {
            for order in batch.drain(..) {
                match order {
                    Order::Send { request, planned } => {
                        self.enter();
                        let request = InFlight::new(self.clone(), request, planned);
                        tokio::task::spawn_local(async move {
                            let mut request = request;
                            request.run().await;
                        });
                    }
                    Order::Probe(at) => {
                        if at >= self.shared.measured_from {
                            let lag = self.shared.clock.now().saturating_sub(at);
                            record_in(&mut self.lag.borrow_mut(), microseconds(lag), 1);
                        }
                        self.flush();
                    }
                }
            }
        }
        self.draining.set(true);
        self.flush();
        while self.in_flight.get() > 0 {
            self.idle.notified().await;
        }
    }

    /// One user of a closed loop.
    async fn user(self: Rc<Self>, users: Users) {
        let clock = self.shared.clock;
        loop {
            let planned = clock.now();
            let next = self.shared.next.fetch_add(1, Ordering::Relaxed);
            let (true, Ok(request)) = (
                planned < users.until && next < self.shared.schedule.requests().len(),
                u32::try_from(next),
            ) else {
                break;
            };
            self.enter();
            InFlight::new(self.clone(), request, planned).run().await;
            if !users.think.is_zero() {
                tokio::time::sleep(users.think).await;
            }
        }
        self.leave();
    }

    fn enter(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.idle.notify_one();
        }
    }

    fn flush(&self) {
        let records = std::mem::take(&mut *self.finished.borrow_mut());
        if !records.is_empty() {
            // The collector may have gone on an abort.
            drop(self.news.send(News::Records(records)));
        }
    }

    fn finish(&self, record: Record) {
        self.leave();
        let full = {
            let mut finished = self.finished.borrow_mut();
            finished.push(record);
            finished.len() >= BATCH || self.draining.get()
        };
        if full {
            self.flush();
        }
    }
}

/// A request under way. However its task ends, its record reaches the collector.
struct InFlight {
    worker: Rc<Worker>,
    record: Option<Record>,
}

impl InFlight {
    fn new(worker: Rc<Worker>, request: u32, planned: Duration) -> Self {
        Self {
            worker,
            record: Some(Record::new(request, planned)),
        }
    }

    async fn run(&mut self) {
        let Some(record) = self.record.as_mut() else {
            return;
        };
        let worker = self.worker.clone();
        let deadline = worker
            .shared
            .clock
            .instant(record.planned + worker.shared.timeout);
        let outcome = match tokio::time::timeout_at(deadline.into(), send(&worker, record)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::new(
                FailureKind::Timeout,
                format!("after {} s", worker.shared.timeout.as_secs_f64()),
            )),
        };
        record.outcome = outcome;
        self.end();
    }

    fn end(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.ended = self.worker.shared.clock.now();
            self.worker.finish(record);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Only reached with a record when the run was aborted.
        if let Some(record) = &mut self.record {
            let kind = if record.sent.is_some() {
                FailureKind::Unfinished
            } else {
                FailureKind::NotSent
            };
            record.outcome = Err(Failure::new(kind, ""));
        }
        self.end();
    }
}

/// Sends one request, over an idle connection or a new one, and reads its answer.
async fn send(worker: &Worker, record: &mut Record) -> Result<(), Failure> {
    let shared = &worker.shared;
    let _permit = match &shared.limit {
        // The semaphore is never closed.
        Some(limit) => limit.acquire().await.ok(),
        None => None,
    };
    let planned =
        &shared.schedule.requests()[usize::try_from(record.request).unwrap_or(usize::MAX)];
    let stream = usize::from(planned.stream);
    let route = &shared.routes[stream];
    let mut buffer = worker.buffers.borrow_mut().pop().unwrap_or_default();
    route.write(&mut buffer, planned, u64::from(record.request));
    let around = Around {
        clock: shared.clock,
        scratch: &worker.scratch,
        replica_header: &shared.replica_header,
        delayed_acks: shared.delayed_acks,
    };
    let outcome = loop {
        let idle = worker.pools.borrow_mut()[stream].pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let turn = worker.connections.get();
                worker.connections.set(turn + 1);
                record.connected = true;
                match Connection::open(&route.target, usize::try_from(turn).unwrap_or(0)).await {
                    Ok(connection) => connection,
                    Err(failure) => break Err(failure),
                }
            }
        };
        if record.sent.is_none() {
            shared.sent.fetch_add(1, Ordering::Relaxed);
        }
        record.outcome = Ok(());
        match exchange(&mut connection, &buffer, record, around).await {
            Ended::Answered { keep } => {
                if keep {
                    connection.used = true;
                    worker.pools.borrow_mut()[stream].push(connection);
                }
                break record.outcome.clone();
            }
            Ended::Stale => {}
            Ended::Failed(failure) => break Err(failure),
        }
    };
    // Long prompts' buffers are not kept: a few of them would hold much memory.
    if buffer.capacity() <= READ_BYTES {
        worker.buffers.borrow_mut().push(buffer);
    }
    outcome
}
