//! Runs under way, and the datagram ports that each has for itself.
//!
//! ```text
//!   slot       0                1                      31
//!   ports  2000 … 2511      2512 … 3023    …    17872 … 18383      rank r: first + r
//!   file   machine-run0.lock …      locked while its run lasts; has the run's machine and process in it
//! ```
//!
//! Slots are looked at and taken under the lock of the records only, so that looking, which
//! locks a free slot for a moment, is never mistaken for a run.

use std::io::{Read, Seek, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::agent::random;
use crate::dirs::ClusterDir;
use crate::limits::MAX_RANKS;
use crate::lock::LockFile;
use crate::machine_error::MachineError;
use crate::{Error, Result};

/// Runs that can be under way in a cluster at the same time.
pub(super) const MAX_RUNS: usize = 32;
/// First datagram port of the first slot.
const FIRST_PORT: usize = 2000;

const _: () = assert!(FIRST_PORT + MAX_RUNS * MAX_RANKS <= u16::MAX as usize);

/// The run that has a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Runner {
    pub(super) machine: String,
    pub(super) pid: u32,
}

/// The slot of a run; free again when this is dropped.
#[derive(Debug)]
pub(super) struct RunSlot {
    index: usize,
    _lock: LockFile,
}

impl RunSlot {
    /// Takes a free slot; not the same one first each time, so that what a killed run left in
    /// guests has ended before its ports are used again. The caller has the records' lock.
    pub(super) fn take(dir: &ClusterDir, machine: &str) -> Result<Self> {
        let first = random() as usize % MAX_RUNS;
        for index in (0..MAX_RUNS).map(|step| (first + step) % MAX_RUNS) {
            let path = dir.machine_run(index);
            let Some(mut lock) = LockFile::try_lock(&path)? else {
                continue;
            };
            let runner = Runner {
                machine: machine.to_owned(),
                pid: std::process::id(),
            };
            let text =
                serde_json::to_vec(&runner).map_err(|error| Error::Host(error.to_string()))?;
            let emptied = lock.0.set_len(0).and_then(|()| lock.0.rewind());
            let written = emptied.and_then(|()| lock.0.write_all(&text));
            written.map_err(Error::io("write", &path))?;
            return Ok(Self { index, _lock: lock });
        }
        Err(MachineError::Busy(MAX_RUNS).into())
    }

    /// Its datagram ports, one for each rank.
    pub(super) fn ports(&self) -> Range<u16> {
        ports(self.index)
    }
}

fn ports(slot: usize) -> Range<u16> {
    let first = FIRST_PORT + slot * MAX_RANKS;
    // The assertion above bounds both.
    first as u16..(first + MAX_RANKS) as u16
}

/// The runs under way. The caller has the records' lock.
pub(super) fn runners(dir: &ClusterDir) -> Result<Vec<Runner>> {
    let mut found = Vec::new();
    for path in (0..MAX_RUNS).map(|index| dir.machine_run(index)) {
        if !path.exists() || LockFile::try_lock(&path)?.is_some() {
            continue;
        }
        let mut text = Vec::new();
        let read = std::fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut text));
        read.map_err(Error::io("read", &path))?;
        let runner = serde_json::from_slice(&text);
        found.push(runner.map_err(|error| Error::Host(format!("{}: {error}", path.display())))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Mode;
    use crate::testing::TestDir;

    #[test]
    fn runs_have_ports_of_their_own_until_they_end() {
        let test = TestDir::new();
        let (dir, _lock) = test.create(Mode::Attached).unwrap();
        let mut runs: Vec<_> = (0..MAX_RUNS)
            .map(|_| RunSlot::take(&dir, "lab").unwrap())
            .collect();
        let mut ports: Vec<_> = runs.iter().map(RunSlot::ports).collect();
        ports.sort_by_key(|ports| ports.start);
        assert_eq!(usize::from(ports[0].start), FIRST_PORT);
        assert!(ports.iter().all(|ports| ports.len() == MAX_RANKS));
        assert!(ports.windows(2).all(|two| two[0].end <= two[1].start));
        let error = RunSlot::take(&dir, "lab").unwrap_err().to_string();
        assert!(error.contains("32 programs run"), "{error}");
        assert_eq!(runners(&dir).unwrap().len(), MAX_RUNS);
        let freed = runs.pop().unwrap().ports();
        assert_eq!(runners(&dir).unwrap().len(), MAX_RUNS - 1);
        assert_eq!(RunSlot::take(&dir, "lab").unwrap().ports(), freed);
    }
}
