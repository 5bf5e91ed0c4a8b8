//! What `qnic top` shows: once, or until a key or a signal ends it.

mod live;
mod tables;
mod view;

use std::time::Duration;

use anyhow::Result;
use qnic_cluster::Cancel;

use crate::top::model::rows;
use crate::top::snapshot::Snapshot;
use crate::top::Source;

/// What is shown, and how.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Time between two snapshots.
    pub interval: Duration,
    /// Once, between two snapshots, on standard output.
    pub once: bool,
    /// As JSON; with `once`.
    pub json: bool,
}

/// Shows a cluster until the user, or a signal, ends it.
///
/// # Errors
/// The device processes do not answer; the terminal is none.
pub fn run(source: &Source, settings: Settings, cancel: &Cancel) -> Result<()> {
    if !settings.once {
        return live::run(source, settings.interval, cancel);
    }
    let before = Snapshot::take(source)?;
    if wait(cancel, settings.interval)? {
        return Err(qnic_cluster::Error::Interrupted.into());
    }
    let rows = rows(Some(&before), &Snapshot::take(source)?);
    match settings.json {
        true => println!("{}", serde_json::to_string(&rows)?),
        false => print!("{}", tables::text(&rows)),
    }
    Ok(())
}

/// Waits for so long, or until `cancel` is pulled. Returns true if it was.
fn wait(cancel: &Cancel, time: Duration) -> Result<bool> {
    let over = Cancel::new()?;
    let pulled = std::thread::scope(|scope| {
        let (ended, ends) = std::sync::mpsc::channel::<()>();
        let over = &over;
        scope.spawn(move || {
            // Disconnected, or the time is over.
            let _ = ends.recv_timeout(time);
            over.cancel();
        });
        let pulled = cancel.wait_before(over);
        drop(ended);
        pulled
    });
    Ok(pulled)
}
