//! Addresses of pods and nodes, from 127.64.0.0/10: accepted by the API server and really reachable on this machine.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

/// The addresses that one fleet gives out: one of the 64 blocks of 65,534 in 127.64.0.0/10, held by a file lock so that
/// fleets of one user do not share any.
#[derive(Debug)]
pub(super) struct Addresses {
    block: u8,
    next: u16,
    free: VecDeque<Ipv4Addr>,
    taken: BTreeSet<Ipv4Addr>,
    /// Dropping it, or the end of the process, gives the block back.
    _lock: Option<File>,
}

const FIRST_BLOCK: u8 = 64;
const BLOCKS: u8 = 64;

impl Addresses {
    /// Takes the first block that no other fleet holds. `folder` has one lock file a block.
    pub(super) fn claim(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for block in FIRST_BLOCK..FIRST_BLOCK + BLOCKS {
            let file = File::create(folder.join(format!("127.{block}.lock")))?;
            if file.try_lock().is_ok() {
                return Ok(Self::of_block(block, Some(file)));
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("all {BLOCKS} blocks of 127.64.0.0/10 are in use by fleets")))
    }

    fn of_block(block: u8, lock: Option<File>) -> Self {
        Self { block, next: 0, free: VecDeque::new(), taken: BTreeSet::new(), _lock: lock }
    }

    /// An address that nobody has. Addresses come back into use as late as possible.
    pub(super) fn take(&mut self) -> Option<Ipv4Addr> {
        let address = loop {
            // 0 and 65535 are left out: they look like network and broadcast addresses.
            if self.next < u16::MAX - 1 {
                self.next += 1;
                let [high, low] = self.next.to_be_bytes();
                let address = Ipv4Addr::new(127, self.block, high, low);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_given_once_and_freed_ones_come_last() {
        let mut addresses = Addresses::of_block(70, None);
        assert!(addresses.keep(Ipv4Addr::new(127, 70, 0, 2)));
        let first = addresses.take().unwrap();
        assert_eq!(first, Ipv4Addr::new(127, 70, 0, 1));
        assert_eq!(addresses.take().unwrap(), Ipv4Addr::new(127, 70, 0, 3), "0.2 is kept by a pod");
        addresses.release(first);
        for _ in 4..65535 {
            assert_ne!(addresses.take().unwrap(), first);
        }
        assert_eq!(addresses.take(), Some(first));
        assert_eq!(addresses.take(), None);
    }

    #[test]
    fn two_fleets_hold_different_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = Addresses::claim(folder.path()).unwrap();
        let mut two = Addresses::claim(folder.path()).unwrap();
        assert_ne!(one.take(), two.take());
        let block = one.block;
        drop(one);
        assert_eq!(Addresses::claim(folder.path()).unwrap().block, block);
    }
}
