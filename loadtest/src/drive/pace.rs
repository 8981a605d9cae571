//! The thread that keeps the schedule's time.
//!
//! It sleeps until a request is due and orders it from a worker. It does nothing else, so that it is only late when the
//! machine is. Event loops sleep in whole milliseconds, which is why none of them keeps the time here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::exchange::Clock;
use super::worker::Order;
use crate::schedule::Schedule;

/// Every worker is probed this often.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// Requests due within this of each other are ordered in one go: a tenth of the lateness that a valid run may have, and it
/// bounds what keeping the time costs at high rates.
const MERGE: Duration = Duration::from_micros(200);

/// Orders every request of an open loop at its planned instant, workers in turn, and probes the workers until `until`
/// (the end of the planned time). Returns when all is ordered or when `stop` is set.
pub(super) fn open_loop(
    schedule: &Schedule,
    workers: &[UnboundedSender<Order>],
    clock: Clock,
    stop: &AtomicBool,
) {
    precise_sleep();
    let requests = schedule.requests();
    let mut next = 0;
    let mut probe = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        while let Some(request) = requests.get(next).filter(|request| request.at <= now) {
            let order = Order::Send {
                request: u32::try_from(next).unwrap_or(u32::MAX),
                planned: request.at,
            };
            // A worker that has ended leaves its requests unsent; the collector counts them.
            drop(workers[next % workers.len()].send(order));
            next += 1;
        }
        if probe <= now {
            send_probes(workers, clock);
            probe = now + PROBE_EVERY;
        }
        let due = match requests.get(next) {
            Some(request) => request.at,
            None if now >= schedule.duration() => break,
            None => schedule.duration(),
        };
        std::thread::sleep(due.min(probe).saturating_sub(now).max(MERGE));
    }
}

/// Probes the workers of a closed loop until `until` or until `stop` is set.
pub(super) fn probes_only(
    workers: &[UnboundedSender<Order>],
    clock: Clock,
    until: Duration,
    stop: &AtomicBool,
) {
    precise_sleep();
    while !stop.load(Ordering::Relaxed) && clock.now() < until {
        send_probes(workers, clock);
        std::thread::sleep(PROBE_EVERY);
    }
}

fn send_probes(workers: &[UnboundedSender<Order>], clock: Clock) {
    for worker in workers {
        drop(worker.send(Order::Probe(clock.now())));
    }
}

/// Lets this thread's sleeps end when they should instead of up to 50 µs later. Where that is refused they end later.
fn precise_sleep() {
    let _refused = nix::sys::prctl::set_timerslack(1_000);
}
