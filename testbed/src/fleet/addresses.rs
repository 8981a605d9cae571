//! Addresses of pods and nodes, from 127.64.0.0/10: accepted by the API server and really reachable on this machine.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// The addresses that one fleet gives out: one of the 64 blocks of 65,533 in 127.64.0.0/10.
///
/// A socket that listens on the block's last address is the claim to it: no other fleet of this machine gets the block,
/// and the kernel gives it back when this process ends, however it ends.
#[derive(Debug)]
pub(super) struct Addresses {
    block: u8,
    next: u16,
    free: VecDeque<Ipv4Addr>,
    taken: BTreeSet<Ipv4Addr>,
    _claim: Option<TcpListener>,
}

const FIRST_BLOCK: u8 = 64;
const BLOCKS: u8 = 64;
/// Any port would do, on an address that no pod gets.
const CLAIM_PORT: u16 = 12764;
/// The host part of the address that carries the claim.
const CLAIM_HOST: u16 = 0xfffe;

impl Addresses {
    /// Takes the first block that no other fleet holds.
    pub(super) fn claim() -> io::Result<Self> {
        for block in FIRST_BLOCK..FIRST_BLOCK + BLOCKS {
            match TcpListener::bind((address(block, CLAIM_HOST), CLAIM_PORT)) {
                Ok(claim) => return Ok(Self::of_block(block, Some(claim))),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("fleets use all {BLOCKS} blocks of 127.64.0.0/10"),
        ))
    }

    fn of_block(block: u8, claim: Option<TcpListener>) -> Self {
        Self {
            block,
            next: 0,
            free: VecDeque::new(),
            taken: BTreeSet::new(),
            _claim: claim,
        }
    }

    /// An address that nobody has. Addresses come back into use as late as possible.
    pub(super) fn take(&mut self) -> Option<Ipv4Addr> {
        let address = loop {
            // 0 and 65535 are left out, too: they look like network and broadcast addresses.
            if self.next < CLAIM_HOST - 1 {
                self.next += 1;
                let address = address(self.block, self.next);
                if !self.taken.contains(&address) {
                    break address;
                }
            } else {
                break self.free.pop_front()?;
            }
        };
        self.taken.insert(address);
        Some(address)
    }

    /// Keeps an address that a pod already has. Whether nobody else had it.
    pub(super) fn keep(&mut self, address: Ipv4Addr) -> bool {
        self.taken.insert(address)
    }

    /// Gives an address back.
    pub(super) fn release(&mut self, address: Ipv4Addr) {
        if self.taken.remove(&address) && address.octets()[1] == self.block {
            self.free.push_back(address);
        }
    }
}

fn address(block: u8, host: u16) -> Ipv4Addr {
    let [high, low] = host.to_be_bytes();
    Ipv4Addr::new(127, block, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_given_once_and_freed_ones_come_last() {
        let mut addresses = Addresses::of_block(70, None);
        assert!(addresses.keep(Ipv4Addr::new(127, 70, 0, 2)));
        let first = addresses.take().unwrap();
        assert_eq!(first, Ipv4Addr::new(127, 70, 0, 1));
        assert_eq!(
            addresses.take().unwrap(),
            Ipv4Addr::new(127, 70, 0, 3),
            "0.2 is kept by a pod"
        );
        addresses.release(first);
        for _ in 4..CLAIM_HOST {
            assert_ne!(addresses.take().unwrap(), first);
        }
        assert_eq!(addresses.take(), Some(first));
        assert_eq!(addresses.take(), None);
    }

    #[test]
    fn two_fleets_hold_different_blocks() {
        let mut one = Addresses::claim().unwrap();
        let mut two = Addresses::claim().unwrap();
        assert_ne!(one.take(), two.take());
    }
}
