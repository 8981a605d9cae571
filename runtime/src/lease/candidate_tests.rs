use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::Settings;
use super::*;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn candidate(identity: &str) -> Candidate {
    Candidate::new(&Settings {
        is_required: true,
        namespace: "system".into(),
        name: "scaler".into(),
        identity: identity.into(),
        timing: Timing::new(seconds(15), seconds(10), seconds(2)).unwrap(),
    })
}

/// The record as an API server would hold it after a candidate's step.
fn written(step: Step) -> Lease {
    match step {
        Step::Create(lease) | Step::Replace(lease) => *lease,
        Step::Wait { holder, .. } => panic!("waits for {holder}"),
    }
}

fn spec(lease: &Lease) -> &LeaseSpec {
    lease.spec.as_ref().unwrap()
}

#[test]
fn the_first_candidate_creates_the_record_and_leads_until_the_renew_deadline() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let mut a = candidate("a");
    let lease = written(a.step(start, wall));
    assert_eq!(spec(&lease).holder_identity.as_deref(), Some("a"));
    assert_eq!(spec(&lease).lease_duration_seconds, Some(15));
    assert_eq!(spec(&lease).lease_transitions, Some(0));
    assert!(!a.is_leader(start));
    a.accepted(lease, start);
    assert!(a.is_leader(start + Duration::from_millis(9_999)));
    assert!(!a.is_leader(start + seconds(10)));
}

#[test]
fn another_candidate_waits_a_lease_duration_after_the_last_change_it_saw() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let lease = written(a.step(start, wall));
    a.accepted(lease.clone(), start);
    let first_seen = start + seconds(60);
    b.observe(Some(lease.clone()), first_seen);
    let until = first_seen + seconds(15);
    assert_eq!(
        b.step(until - Duration::from_millis(1), wall),
        Step::Wait {
            holder: "a".into(),
            until
        }
    );
    // Seen again, unchanged: the wait goes on from where it was, whatever the record's own times say.
    b.observe(Some(lease), first_seen + seconds(10));
    let taken = written(b.step(until, wall));
    assert_eq!(spec(&taken).holder_identity.as_deref(), Some("b"));
    assert_eq!(spec(&taken).lease_transitions, Some(1));
}

#[test]
fn a_renewal_counts_also_when_the_holders_wall_clock_stands_still() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let (a, mut b) = (candidate("a"), candidate("b"));
    let mut lease = written(a.step(start, wall));
    for (version, at) in [("1", 0), ("2", 10)] {
        lease.metadata.resource_version = Some(version.into());
        b.observe(Some(lease.clone()), start + seconds(at));
    }
    let until = start + seconds(25);
    let waits = Step::Wait {
        holder: "a".into(),
        until,
    };
    assert_eq!(b.step(until - Duration::from_millis(1), wall), waits);
    assert!(matches!(b.step(until, wall), Step::Replace(_)));
}

#[test]
fn renewing_keeps_the_time_of_acquisition_and_the_count_of_transitions() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let later = wall + jiff::SignedDuration::from_secs(2);
    let mut a = candidate("a");
    a.accepted(written(a.step(start, wall)), start);
    let renewed = written(a.step(start + seconds(2), later));
    assert_eq!(spec(&renewed).acquire_time, Some(MicroTime(wall)));
    assert_eq!(spec(&renewed).renew_time, Some(MicroTime(later)));
    assert_eq!(spec(&renewed).lease_transitions, Some(0));
}

#[test]
fn a_lease_given_back_is_free_at_once() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    a.accepted(written(a.step(start, wall)), start);
    let released = a.release(wall).expect("a holds it");
    b.observe(Some(released), start);
    assert_eq!(
        spec(&written(b.step(start, wall)))
            .holder_identity
            .as_deref(),
        Some("b")
    );
    assert_eq!(b.release(wall), None, "only the holder gives back");
}

#[test]
fn seeing_another_holder_ends_the_tenure_at_once() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let (mut a, b) = (candidate("a"), candidate("b"));
    a.accepted(written(a.step(start, wall)), start);
    a.observe(Some(written(b.step(start, wall))), start + seconds(1));
    assert!(!a.is_leader(start + seconds(1)));
}

#[test]
fn fields_of_others_in_the_record_are_kept() {
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let mut a = candidate("a");
    let mut lease = written(a.step(start, wall));
    lease.metadata.labels = Some([("team".to_owned(), "x".to_owned())].into());
    lease.metadata.resource_version = Some("7".into());
    a.observe(Some(lease.clone()), start);
    assert_eq!(written(a.step(start, wall)).metadata, lease.metadata);
}

/// A server that holds one record and compares versions, like the real one.
#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
    /// Requests whose senders have given up on them: when they arrive, and what they ask.
    stray: Vec<(u64, Ask)>,
}

impl Server {
    fn take_stray(&mut self, now: u64) {
        let (due, later) = std::mem::take(&mut self.stray)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.stray = later;
        let due: Vec<(u64, Ask)> = due;
        for (_, ask) in due {
            if let Ask::Write(lease) = ask {
                self.write(*lease);
            }
        }
    }

    fn write(&mut self, mut lease: Lease) -> Option<Lease> {
        let held = self
            .lease
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if held != lease.metadata.resource_version {
            return None;
        }
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        Some(lease)
    }
}

/// A process in the simulation: its monotonic clock runs at its own rate, its wall clock is off by hours and stands still.
struct Process {
    candidate: Candidate,
    epoch: Instant,
    rate: f64,
    wall: Timestamp,
    /// True time, in milliseconds, of its next try.
    next: u64,
    /// The last answer was a read, so the next request may be a write.
    has_read: bool,
    request: Option<Request>,
}

/// A request on its way, in true milliseconds.
struct Request {
    reaches: u64,
    answers: u64,
    sent_at: Instant,
    asks: Ask,
    answer: Option<Answer>,
}

enum Ask {
    Read,
    Write(Box<Lease>),
}

enum Answer {
    Read(Option<Box<Lease>>),
    Written(Option<Box<Lease>>),
}

impl Process {
    fn local(&self, true_ms: u64) -> Instant {
        #[expect(clippy::cast_precision_loss, reason = "a simulation of minutes")]
        let elapsed = true_ms as f64 * self.rate;
        self.epoch + Duration::from_secs_f64(elapsed / 1000.0)
    }
}

/// Advances every process and the server to `now`; returns how many hold a tenure.
fn tick(server: &mut Server, processes: &mut [Process], now: u64, rng: &mut StdRng) -> usize {
    server.take_stray(now);
    for process in processes.iter_mut() {
        let local = process.local(now);
        if let Some(request) = &mut process.request {
            if request.answer.is_none() && now >= request.reaches {
                request.answer = Some(match &request.asks {
                    Ask::Read => Answer::Read(server.lease.clone().map(Box::new)),
                    Ask::Write(lease) => {
                        Answer::Written(server.write((**lease).clone()).map(Box::new))
                    }
                });
            }
            if now < request.answers {
                continue;
            }
            let Some(Request {
                sent_at,
                answer: Some(answer),
                ..
            }) = process.request.take()
            else {
                continue;
            };
            match answer {
                Answer::Read(lease) => {
                    process.candidate.observe(lease.map(|lease| *lease), local);
                    process.has_read = true;
                    process.next = now;
                    continue;
                }
                Answer::Written(Some(lease)) => process.candidate.accepted(*lease, sent_at),
                Answer::Written(None) => process.candidate.doubt(),
            }
            process.next = now + rng.random_range(1_000..4_400);
            continue;
        }
        if now < process.next {
            continue;
        }
        // A step follows a read in the same try; the pause between them is the network's.
        let has_read = std::mem::take(&mut process.has_read);
        let asks = if process.candidate.needs_read(local) && !has_read {
            Ask::Read
        } else {
            match process.candidate.step(local, process.wall) {
                Step::Create(lease) | Step::Replace(lease) => Ask::Write(lease),
                Step::Wait { .. } => {
                    process.next = now + rng.random_range(2_000..4_400);
                    continue;
                }
            }
        };
        let slow = if rng.random_bool(0.1) { 20_000 } else { 400 };
        let reaches = now + rng.random_range(1..slow);
        if rng.random_bool(0.15) {
            // The connection breaks: the process learns nothing, the request may still arrive.
            server.stray.push((reaches, asks));
            process.candidate.doubt();
            process.next = now + rng.random_range(1_000..4_400);
            continue;
        }
        let answers = reaches + rng.random_range(1..slow);
        process.request = Some(Request {
            reaches,
            answers,
            sent_at: local,
            asks,
            answer: None,
        });
    }
    processes
        .iter()
        .filter(|process| process.candidate.is_leader(process.local(now)))
        .count()
}

#[test]
fn two_never_lead_at_once_under_skewed_clocks_slow_requests_and_lost_answers() {
    let mut led = 0_u64;
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut server = Server::default();
        let mut processes: Vec<Process> = ["a", "b", "c"]
            .into_iter()
            .map(|identity| Process {
                candidate: candidate(identity),
                epoch: Instant::now() + Duration::from_secs(rng.random_range(0..100_000)),
                // Rates differ by less than 15 s / 10 s.
                rate: rng.random_range(0.82..1.18),
                wall: Timestamp::UNIX_EPOCH
                    + jiff::SignedDuration::from_secs(rng.random_range(0..100_000)),
                next: rng.random_range(0..2_000),
                has_read: false,
                request: None,
            })
            .collect();
        // Ten minutes in steps of 20 ms.
        for step in 0..30_000_u64 {
            let leaders = tick(&mut server, &mut processes, step * 20, &mut rng);
            assert!(
                leaders <= 1,
                "seed {seed}: {leaders} leaders after {} ms",
                step * 20
            );
            led += u64::try_from(leaders).unwrap();
        }
    }
    // The promise must not be kept by never leading: in this bad network somebody leads a good part of the time.
    assert!(
        led > 60 * 30_000 / 4,
        "led in {led} of {} steps",
        60 * 30_000
    );
}

#[test]
fn a_candidate_whose_clock_runs_too_fast_shows_that_the_simulation_can_fail() {
    // Twice the rate is outside the promise: the waiting candidate's 15 s pass in 7.5 s, before the holder's 10 s.
    let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let lease = written(a.step(start, wall));
    a.accepted(lease.clone(), start);
    b.observe(Some(lease), start);
    let b_local = start + Duration::from_secs_f64(7.5 * 2.0);
    assert!(matches!(b.step(b_local, wall), Step::Replace(_)));
    assert!(a.is_leader(start + Duration::from_secs_f64(7.5)));
}
