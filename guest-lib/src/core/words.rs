//! The window and the host area of a process: accesses in line where they are mapped, by the provider's object elsewhere.
//!
//! A look at a word is one instruction, and a call of an object's method some twenty; in an emulated guest each return and
//! each indirect call looks for its target in a table, which takes longer than all of the rest.

use qnic_abi::shared::Ordering;
use qnic_abi::SharedMemory;
use qnic_shared::region::SharedRegion;

use crate::core::Core;
use crate::provider::{Memory, Process};

/// The regions of a process that are mapped.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    window: Option<SharedRegion>,
    area: Option<SharedRegion>,
    pages: Option<SharedRegion>,
}

/// Memory that a process shares with its NIC.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Words<'a> {
    Mapped(&'a SharedRegion),
    Other(&'a dyn Memory),
}

impl Mapped {
    pub(super) fn of(process: &dyn Process) -> Self {
        let region = |memory: &dyn Memory| memory.region().cloned();
        Mapped {
            window: region(process.window()),
            area: region(process.host_area()),
            pages: region(process.pool()),
        }
    }
}

impl Core {
    /// The window.
    #[inline]
    pub(crate) fn window(&self) -> Words<'_> {
        match &self.mapped.window {
            Some(region) => Words::Mapped(region),
            None => Words::Other(self.process.window()),
        }
    }

    /// The read-only pages of the host area.
    #[inline]
    pub(crate) fn area(&self) -> Words<'_> {
        match &self.mapped.area {
            Some(region) => Words::Mapped(region),
            None => Words::Other(self.process.host_area()),
        }
    }

    /// Its writable pages.
    #[inline]
    pub(crate) fn pages(&self) -> Words<'_> {
        match &self.mapped.pages {
            Some(region) => Words::Mapped(region),
            None => Words::Other(self.process.pool()),
        }
    }
}

/// Methods that both have.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?),* $(,)?) => {
        $(#[inline]
        fn $name(&self, $($argument: $type),*) $(-> $result)? {
            match self {
                Words::Mapped(region) => region.$name($($argument),*),
                Words::Other(memory) => memory.$name($($argument),*),
            }
        })*
    };
}

impl SharedMemory for Words<'_> {
    forward! {
        size() -> usize,
        load_u32(offset: usize, order: Ordering) -> u32,
        store_u32(offset: usize, value: u32, order: Ordering),
        load_u64(offset: usize, order: Ordering) -> u64,
        store_u64(offset: usize, value: u64, order: Ordering),
        fence(),
        read_words(offset: usize, words: &mut [u64]),
        write_words(offset: usize, words: &[u64]),
        clear(),
    }
}
