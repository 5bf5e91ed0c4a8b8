//! The buffer pool: pages that the NIC has found once, for the life of the process (Q7).

use std::mem::ManuallyDrop;

use qnic_abi::header::Counts;

use crate::core::pool::Run;
use crate::core::Core;
use crate::error::{Error, Result};

/// The pages that a process shares with its NIC for messages: 16, or as many as the NIC says
/// ([`Pool::counts`]), each of 4,096 bytes. No message
/// that is in them waits for a page, and nothing is exported.
#[derive(Debug, Clone, Copy)]
pub struct Pool<'a> {
    core: &'a Core,
}

/// Pages of a [`Pool`], one behind the other. They go back when it is dropped. What stood in them
/// before is still there.
#[derive(Debug)]
pub struct PoolBuffer<'a> {
    core: &'a Core,
    run: Run,
}

impl<'a> Pool<'a> {
    pub(super) fn new(core: &'a Core) -> Self {
        Pool { core }
    }

    /// Takes so many pages; never waits.
    ///
    /// # Errors
    /// [`Error::PoolFull`]: no run is as long; [`Error::EmptyMemory`]: no page is wanted.
    pub fn take(&self, pages: usize) -> Result<PoolBuffer<'a>> {
        if pages == 0 {
            return Err(Error::EmptyMemory);
        }
        match self.core.take_pages(pages) {
            Ok(run) => Ok(PoolBuffer {
                core: self.core,
                run,
            }),
            Err(free) => Err(Error::PoolFull { pages, free }),
        }
    }

    /// What the NIC has for each process: entries of the command queue, contexts, pages (Q1).
    pub fn counts(&self) -> Counts {
        self.core.counts
    }

    /// How many pages are free, not necessarily in one run.
    pub fn free(&self) -> usize {
        self.core.free_pages()
    }
}

impl<'a> PoolBuffer<'a> {
    /// Its length in bytes; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.run.len()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let pool = self.core.process.pool();
        pool.write_bytes(self.run.offset() + offset, bytes);
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let pool = self.core.process.pool();
        pool.read_bytes(self.run.offset() + offset, bytes);
        Ok(())
    }

    pub(super) fn core(&self) -> &'a Core {
        self.core
    }

    pub(super) fn check(&self, offset: usize, length: usize) -> Result<()> {
        let size = self.len() as u64;
        Error::check_range("pool buffer", size, offset as u64, length as u64)
    }

    pub(super) fn run(&self) -> Run {
        self.run
    }

    /// Its pages, which the caller gives back.
    pub(super) fn into_run(self) -> Run {
        ManuallyDrop::new(self).run
    }
}

impl Drop for PoolBuffer<'_> {
    fn drop(&mut self) {
        self.core.give_pages_back(self.run);
    }
}
