//! Free TCP ports on the loopback address.
//!
//! They are drawn from below the range that the kernel uses for outgoing connections (32768 and up on Linux), so that
//! nothing else takes one between our look and the program's own bind.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use rand::RngExt;

const RANGE: Range<u16> = 20_000..32_000;

/// Draws `N` distinct ports that nobody listens on.
///
/// # Errors
///
/// No free port was found in a thousand draws.
pub(crate) fn free<const N: usize>() -> io::Result<[u16; N]> {
    let mut random = rand::rng();
    let mut seen = HashSet::new();
    let mut found = [0; N];
    for slot in &mut found {
        *slot = (0..1000)
            .map(|_| random.random_range(RANGE))
            .find(|&port| {
                seen.insert(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
            })
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::AddrInUse,
                    format!("no free TCP port in {RANGE:?}"),
                )
            })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_free() {
        let ports: [u16; 20] = free().unwrap();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 20);
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
