//! A forked child. What it has of private memory is what its parent had when it forked, and stays
//! so while peers write to the parent's. What it writes to a mapping of a file its parent sees.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{ensure, Context, Result};
use qnic_apps::demo::pattern;

use super::memory::Memory;
use super::{compare, OWN, TAIL, TAIL_BYTES, UNIT};
use crate::mapping::{self, Forked};

pub(super) struct Child {
    forked: Forked,
    parent: UnixStream,
    /// What it writes to the tails of these units, if the memory is shared.
    pub(super) units: BTreeSet<usize>,
    pub(super) seed: u64,
}

impl Child {
    pub(super) fn start(
        memory: &Memory,
        units: BTreeSet<usize>,
        own: &[u64],
        seed: u64,
    ) -> Result<Self> {
        let (parent, mut child) = UnixStream::pair()?;
        let look = || -> Result<Vec<Vec<u8>>> {
            let mut all = Vec::new();
            for unit in &units {
                if memory.is_shared() {
                    let bytes = pattern::bytes(seed, TAIL_BYTES);
                    memory.write(unit * UNIT + TAIL, &bytes)?;
                } else {
                    compare(memory, OWN, *unit, own[*unit])?;
                    all.push(memory.read(unit * UNIT, UNIT)?);
                }
            }
            Ok(all)
        };
        let forked = mapping::fork(|| {
            let first = look();
            let _ = child.read_exact(&mut [0]);
            matches!((first, look()), (Ok(first), Ok(second)) if first == second)
        })?;
        Ok(Child {
            forked,
            parent,
            units,
            seed,
        })
    }

    /// Lets it look again; fails if anything was wrong. Returns the units that it has written to,
    /// and with which seed.
    pub(super) fn finish(mut self) -> Result<(BTreeSet<usize>, u64)> {
        self.parent.write_all(&[1]).context("tell the child")?;
        let whole = self.forked.succeeded().context("wait for the child")?;
        ensure!(
            whole,
            "a forked child saw its memory change, or wrong bytes"
        );
        Ok((self.units, self.seed))
    }
}
