//! The group of an application, which forms by itself (Q14).

use std::ops::Deref;
use std::time::{Duration, Instant};

use qnic_abi::{NodeId, Port};

use super::{Group, Membership};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::names::Name;
use crate::nic::Nic;

/// A process's place in its application: its name, and the group of all processes of the
/// application. Dropped, it leaves both.
///
/// ```no_run
/// use std::time::Duration;
/// use qnic::group::Application;
/// use qnic::{Nic, Port};
///
/// # fn main() -> qnic::Result<()> {
/// # let (process, processes) = (0, 4);
/// let endpoint = Nic::open()?.register(Port(7))?;
/// let limit = Duration::from_secs(10);
/// let application = Application::join(&endpoint, "solver", process, processes, limit)?;
/// application.barrier().timeout(limit).wait()?;
/// let (node, port) = application.find(process ^ 1, limit)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an application that is dropped is left, and its group ends"]
pub struct Application<'a> {
    endpoint: &'a Endpoint,
    /// Dropped first: the group ends before the name is free.
    group: Group<'a>,
    name: Name<'a>,
}

impl<'a> Application<'a> {
    /// Registers this process as number `process` of the `processes` of an application, finds
    /// number 0, and joins the group of all there. They may start in any order, on any nodes.
    ///
    /// # Errors
    /// Those of [`Names::register`](crate::names::Names::register),
    /// [`Names::find`](crate::names::Names::find) and [`Group::join`]
    pub fn join(
        endpoint: &'a Endpoint,
        application: &str,
        process: u32,
        processes: u32,
        timeout: Duration,
    ) -> Result<Self> {
        let start = Instant::now();
        let names = endpoint.names().timeout(timeout);
        let name = names.register(application, process)?;
        let home = match process {
            0 => (endpoint.node(), endpoint.port()),
            _ => endpoint.names().find(application, 0, timeout)?,
        };
        let membership = Membership::new(home, process, processes).name(number_of(application));
        let left = timeout.saturating_sub(start.elapsed());
        let group = Group::join(endpoint, &membership, left)?;
        Ok(Application {
            endpoint,
            group,
            name,
        })
    }

    /// Joins as a launcher says it: `nic` [has](crate::Nic::place) the place of this process. `None`
    /// if no launcher has said one.
    ///
    /// # Errors
    /// Those of [`Application::join`]
    pub fn join_placed(
        endpoint: &'a Endpoint,
        nic: &Nic,
        timeout: Duration,
    ) -> Result<Option<Self>> {
        let Some(place) = nic.place() else {
            return Ok(None);
        };
        let (application, rank) = (place.application(), place.rank());
        Self::join(endpoint, application, rank, place.size(), timeout).map(Some)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.application()
    }

    /// Finds another process of the application: its node and port.
    ///
    /// # Errors
    /// Those of [`Names::find`](crate::names::Names::find)
    pub fn find(&self, process: u32, timeout: Duration) -> Result<(NodeId, Port)> {
        self.endpoint.names().find(self.name(), process, timeout)
    }
}

impl<'a> Deref for Application<'a> {
    type Target = Group<'a>;

    fn deref(&self) -> &Group<'a> {
        &self.group
    }
}

/// The name of the group of an application: FNV-1a. Only groups of one home process are told
/// apart by it.
fn number_of(application: &str) -> u64 {
    let bytes = application.bytes();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
