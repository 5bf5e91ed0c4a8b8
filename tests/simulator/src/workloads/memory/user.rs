//! What the driver core tells a client, and the pages of its requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use qnic_abi::PAGE_SIZE;
use qnic_driver::datagram::Buffer;
use qnic_driver::platform::DeviceMemory;
use qnic_driver::remote_memory::{Failure, VolumeUser};

use crate::machine::platform::SimPlatform;
use crate::schedule::{lock, Schedule, Signal};

/// A request that has ended.
pub(super) struct End {
    pub(super) token: u64,
    pub(super) result: Result<(), Failure>,
    pub(super) page: Buffer<SimPlatform>,
    /// When it has.
    pub(super) at: u64,
}

/// Keeps what has ended until its client looks.
pub(super) struct User {
    schedule: Arc<Schedule>,
    ended: Mutex<VecDeque<End>>,
    pub(super) signal: Signal,
}

impl User {
    pub(super) fn new(schedule: &Arc<Schedule>) -> Arc<Self> {
        Arc::new(User {
            schedule: schedule.clone(),
            ended: Mutex::default(),
            signal: Signal::default(),
        })
    }

    /// The request that has ended first.
    pub(super) fn next(&self) -> Option<End> {
        lock(&self.ended).pop_front()
    }

    pub(super) fn has_some(&self) -> bool {
        !lock(&self.ended).is_empty()
    }
}

impl VolumeUser<SimPlatform> for User {
    fn done(&self, token: u64, result: Result<(), Failure>, page: Buffer<SimPlatform>) {
        let at = self.schedule.now();
        lock(&self.ended).push_back(End {
            token,
            result,
            page,
            at,
        });
        self.schedule.notify(&self.signal);
    }
}

/// Bits of a word that say where in its page it is.
const PLACE_BITS: u32 = 16;

/// A word of a page with this content, a number below 2⁴⁸; a page of zeros has content 0.
fn word(content: u64, place: usize) -> u64 {
    match content {
        0 => 0,
        content => content << PLACE_BITS | place as u64,
    }
}

/// Fills a page.
pub(super) fn fill(page: &Buffer<SimPlatform>, content: u64) {
    let words = (0..PAGE_SIZE / 8).map(|place| word(content, place).to_le_bytes());
    let bytes: Vec<u8> = words.flatten().collect();
    page.memory().write_bytes(0, &bytes);
}

/// What a page contains. Panics unless all of it is of one write.
pub(super) fn content(page: &Buffer<SimPlatform>) -> u64 {
    let mut bytes = vec![0; PAGE_SIZE];
    page.memory().read_bytes(0, &mut bytes);
    let words = bytes.chunks_exact(8);
    let words = words.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    let words: Vec<u64> = words.collect();
    let content = words[0] >> PLACE_BITS;
    for (place, found) in words.into_iter().enumerate() {
        let expected = word(content, place);
        assert_eq!(found, expected, "a page is not whole: word {place}");
    }
    content
}
