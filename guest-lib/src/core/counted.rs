//! Names that the process has, with the number of registrations of each.
//!
//! The NIC knows a name once, however often its process registers it: the last registration that is
//! dropped withdraws it. Commands are posted while the counts are locked, so their order is that of
//! the counts.

use std::collections::BTreeMap;
use std::sync::Mutex;

use qnic_abi::process_names::{ProcessName, APPLICATION_BYTES};

use crate::core::lock;
use crate::error::Result;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct CountedNames(Mutex<BTreeMap<([u8; APPLICATION_BYTES], u32), u32>>);

fn key(name: &ProcessName) -> ([u8; APPLICATION_BYTES], u32) {
    (name.application, name.process.get())
}

impl CountedNames {
    /// Counts one more, if `register` has posted its command.
    pub(crate) fn add<T>(
        &self,
        name: &ProcessName,
        register: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut counts = lock(&self.0);
        let posted = register()?;
        *counts.entry(key(name)).or_default() += 1;
        Ok(posted)
    }

    /// Counts one less; calls `last` if it was the last one.
    pub(crate) fn remove(&self, name: &ProcessName, last: impl FnOnce()) {
        let mut counts = lock(&self.0);
        let Some(count) = counts.get_mut(&key(name)) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            counts.remove(&key(name));
            last();
        }
    }
}
