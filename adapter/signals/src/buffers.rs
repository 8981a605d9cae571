//! Body buffers, used again and again.

use parking_lot::Mutex;

/// Buffers larger than this are not kept.
const KEPT_BYTES: usize = 1 << 20;

/// A pool of body buffers.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer, empty.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.free.lock().pop().unwrap_or_default()
    }

    /// Gives a buffer back for others.
    pub(crate) fn give_back(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= KEPT_BYTES {
            buffer.clear();
            self.free.lock().push(buffer);
        }
    }
}
