//! Which process a number means: a process id is reused, an id with its start time is not.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process of this boot of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// The kernel's number.
    pub pid: i32,
    /// Clock ticks from boot to the start of the process.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self {
            pid,
            started: start_time(pid)?,
        })
    }

    /// Whether it still runs (a process that ended and was not waited for does not).
    #[must_use]
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Sends a signal to the process if it is still the same one.
    pub(crate) fn signal(self, signal: Signal) {
        if self.is_alive() {
            // It may end between the look and the signal; then there is nothing left to do.
            kill(Pid::from_raw(self.pid), signal).ok();
        }
    }

    /// Sends a signal to the process and all others of its group if it is still the same one.
    pub(crate) fn signal_group(self, signal: Signal) {
        if self.is_alive() {
            kill(Pid::from_raw(-self.pid), signal).ok();
        }
    }
}

/// Waits until all are gone, at most `limit`. Returns whether they are.
pub(crate) fn await_end(processes: &[ProcessId], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while processes.iter().any(|process| process.is_alive()) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Field 22 of `/proc/PID/stat`; none for a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the name in parentheses, may itself contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_until_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = ProcessId::of(child.id()).unwrap();
        assert!(process.is_alive());
        assert!(
            !ProcessId {
                started: process.started + 1,
                ..process
            }
            .is_alive()
        );
        process.signal(Signal::SIGKILL);
        assert!(
            await_end(&[process], Duration::from_secs(10)),
            "a killed process is not alive, waited for or not"
        );
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
