//! Pages whose physical addresses are known: of a file in memory, which the kernel neither swaps
//! out, there being no swap, nor moves.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{ensure, Context, Result};
use qnic_abi::PAGE_SIZE;
use qnic_host::SharedRegion;

const PATH: &str = "/dev/shm/qnic-hostile";
pub(super) const PAGES: usize = 112;

pub(super) struct Arena {
    memory: SharedRegion,
    frames: Vec<u64>,
}

impl Arena {
    pub(super) fn new() -> Result<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(PATH).with_context(|| format!("make {PATH}"))?;
        file.set_len((PAGES * PAGE_SIZE) as u64)?;
        let memory = SharedRegion::map_file(&file, 0, PAGES * PAGE_SIZE, true)?;
        let pagemap = File::open("/proc/self/pagemap").context("open the page map")?;
        let mut frames = Vec::new();
        for page in 0..PAGES {
            memory.write_bytes(page * PAGE_SIZE, &[0; PAGE_SIZE]);
            let mut entry = [0; 8];
            let number = memory.address() / PAGE_SIZE as u64 + page as u64;
            pagemap.read_exact_at(&mut entry, number * 8)?;
            let frame = u64::from_le_bytes(entry) & ((1 << 55) - 1);
            ensure!(frame != 0, "the page map hides its frames: not root?");
            frames.push(frame);
        }
        std::fs::remove_file(PATH)?;
        Ok(Arena { memory, frames })
    }

    /// The physical address of a page.
    pub(super) fn address(&self, page: usize) -> u64 {
        self.frames[page % PAGES] * PAGE_SIZE as u64
    }

    pub(super) fn write(&self, page: usize, offset: usize, bytes: &[u8]) {
        self.memory.write_bytes(page * PAGE_SIZE + offset, bytes);
    }

    pub(super) fn read<const N: usize>(&self, page: usize, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory
            .read_bytes(page * PAGE_SIZE + offset, &mut bytes);
        bytes
    }
}
