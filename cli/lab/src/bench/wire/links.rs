//! What carries frames between two NICs, and the device processes for it.

use std::net::UdpSocket;
use std::path::Path;

use anyhow::{Context, Result};
use qnic_trials::nodes::host::DevicePlan;
use qnic_trials::nodes::keys::HostKeys;

/// What carries frames from one NIC to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Calls in one process: neither copies nor timers.
    Calls,
    /// Calls in one process, with the reliable transport.
    ReliableCalls,
    /// Shared memory between two device processes.
    SharedMemory,
    /// UDP over loopback between two device processes, encrypted or not.
    Udp { encrypt: bool },
}

use Carrier::{Calls, ReliableCalls, SharedMemory, Udp};

pub(super) const SECRET: Carrier = Udp { encrypt: true };
pub(super) const OPEN: Carrier = Udp { encrypt: false };

/// The device processes for a kind of link, with more of `[network]`.
pub(super) fn plans(carrier: Carrier, network: &str, files: &Path) -> Result<Vec<DevicePlan>> {
    let end: Box<dyn Fn(usize) -> [String; 2]> = match carrier {
        Calls => return Ok(vec![DevicePlan::alone(2, "")]),
        ReliableCalls => {
            let network = format!("[network]\n{network}");
            return Ok(vec![DevicePlan::alone(2, &network)]);
        }
        SharedMemory => Box::new(|process| {
            let socket = format!("socket = {:?}", files.join(format!("p{process}")));
            [format!("[network.shm]\n{socket}"), socket]
        }),
        Udp { encrypt } => {
            let keys = HostKeys::new(files)?;
            let ports = free_ports().context("find free UDP ports")?;
            Box::new(move |process| {
                let address = format!("\"127.0.0.1:{}\"", ports[process]);
                let (private, public) = (&keys.files[process], &keys.public[process]);
                [
                    format!(
                        "[network.udp]\nlisten = {address}\nprivate_key = {private:?}\n\
                         encrypt = {encrypt}"
                    ),
                    format!("address = {address}\npublic_key = \"{public}\""),
                ]
            })
        }
    };
    let plan = |here: usize| {
        let ([carrier, _], [_, other]) = (end(here), end(1 - here));
        let carrier = format!("{carrier}\nname = \"p{here}\"");
        let other = format!("name = \"p{}\"\n{other}", 1 - here);
        DevicePlan::one_of_two(here, 1, network, &carrier, &other)
    };
    Ok(vec![plan(0), plan(1)])
}

fn free_ports() -> std::io::Result<[u16; 2]> {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let sockets = [bind()?, bind()?];
    Ok([
        sockets[0].local_addr()?.port(),
        sockets[1].local_addr()?.port(),
    ])
}
