//! Whether two nodes can talk, and what their route is like: a check that asks (U8).
//!
//! ```text
//!   node A                                  node B
//!   probe n ── packet to port FIRST + n ──► no module has that port: its NIC says so
//!           ◄───────── which ────────────── a session stands, and this was the round trip
//!   PathInfo: MTU, window, …
//! ```
//! Neither a process nor a driver of node B takes part, so any two nodes can be checked. Each probe has a
//! port of its own: a late answer is none to a later probe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic_abi::datagram::FIRST_ECHO_PORT;
use qnic_abi::{NodeId, Status};

use crate::endpoint::Endpoint;
use crate::error::{Error, NoPath, Result};
use crate::nic::Nic;
use crate::path::Path;
use crate::pool::{PoolOptions, Pools};
use crate::provider::Provider;

/// Probes whose answers a check waits for.
const PROBES: usize = 4;

/// How long [`Endpoint::path`] asks.
const LIMIT: Duration = Duration::from_secs(5);

/// How long a check waits for an answer before it sends the next probe.
const NEXT_PROBE: Duration = Duration::from_millis(50);

impl Nic {
    /// Checks that this node and another one can talk, and what their route is like (U8). No process of the
    /// other node takes part: its NIC answers.
    ///
    /// # Errors
    /// [`Error::NoPath`] names both nodes, if no answer comes in time;
    /// those of [`Nic::open_pools`].
    pub fn check_path(&self, node: NodeId, timeout: Duration) -> Result<Path> {
        check(self.provider(), node, timeout)
    }
}

impl Endpoint {
    /// What the route to a node is like (U8). If the two NICs have no session yet, the other one is asked
    /// ([`Nic::check_path`]), for five seconds at most.
    ///
    /// # Errors
    /// [`Error::NoPath`] names both nodes; [`Error::DeviceGone`], [`Error::System`]
    pub fn path(&self, node: NodeId) -> Result<Path> {
        match self.core().path(node) {
            Err(error) if error.status() == Some(Status::NoSuchNode) => {
                check(&self.core().provider, node, LIMIT)
            }
            known => known,
        }
    }
}

/// See [`Nic::check_path`].
fn check(provider: &Arc<dyn Provider>, node: NodeId, timeout: Duration) -> Result<Path> {
    let pools = Pools::open(provider, 0, PoolOptions::new(256, 16, 16))?;
    let began = Instant::now();
    let mut probes = Probes::default();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        let is_over = left.is_zero() || probes.answered >= PROBES;
        if let Some(path) = pools.shared().path(node).filter(|_| is_over) {
            if probes.answered > 0 {
                let round_trip = Some(probes.round_trip);
                return Ok(Path { round_trip, ..path });
            }
        }
        let is_refused = pools.info()?.frames_refused.get() > 0;
        if left.is_zero() || (is_refused && probes.answered == 0) {
            return Err(Error::NoPath(NoPath {
                from: pools.node(),
                to: node,
                is_refused,
                waited: began.elapsed(),
            }));
        }
        probes.send(&pools, node)?;
        match pools.wait_input(Some(NEXT_PROBE.min(left))) {
            Ok(()) | Err(Error::TimedOut) => probes.take(&pools, node)?,
            Err(error) => return Err(error),
        }
    }
}

/// Probes of a check.
#[derive(Default)]
struct Probes {
    /// When each was sent.
    sent: Vec<Instant>,
    answered: usize,
    /// The least one.
    round_trip: Duration,
}

impl Probes {
    fn send(&mut self, pools: &Pools, node: NodeId) -> Result<()> {
        let number = self.sent.len() as u16;
        let port = FIRST_ECHO_PORT.checked_add(number);
        if let (Some(port), Some(mut frame)) = (port, pools.output()?) {
            frame.write(0, &[0])?;
            self.sent.push(Instant::now());
            frame.send(node, port, 1)?;
        }
        Ok(())
    }

    fn take(&mut self, pools: &Pools, node: NodeId) -> Result<()> {
        while let Some(frame) = pools.receive()? {
            let probe = frame.port().wrapping_sub(FIRST_ECHO_PORT);
            let at = self.sent.get(usize::from(probe));
            if let Some(at) = at.filter(|_| frame.node() == node && frame.is_empty()) {
                let round_trip = at.elapsed();
                if self.answered == 0 || round_trip < self.round_trip {
                    self.round_trip = round_trip;
                }
                self.answered += 1;
            }
        }
        Ok(())
    }
}
