//! Programs of this machine on the Ethernet of a cluster (X17).
//!
//! ```text
//!   program ─ [HostEthernet::connection] ─► device process ─► port of the node
//! ```
//! A program has a MAC address that the device process gives it, and an IP address at the end of the
//! node's network that no node has. It reaches the nodes of one device process, whatever the links do.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use qnic_config::{InterfaceAddress, MacAddress};
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{
    connect, recv, socket_with, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::{Cluster, Error, Result};

/// How long the device process may take to give an address.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A place on the Ethernet of a device process, as long as the connection is open.
#[derive(Debug)]
pub struct HostEthernet {
    /// Each message in either direction is a frame, without its check sequence.
    pub connection: OwnedFd,
    /// The address from which frames are taken, and to which they come.
    pub mac: MacAddress,
    /// An address on the node's network that no node has.
    pub address: InterfaceAddress,
    /// The address of the node.
    pub node: Ipv4Addr,
    /// Largest packet of the frames, in bytes.
    pub mtu: u16,
}

impl Cluster {
    /// Joins the Ethernet that the port of `node` is on.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]; [`Error::Guest`] if it has no port, its network has no free address, or
    /// the device process does not let one more program join.
    pub fn join_ethernet(&self, node: &str) -> Result<HostEthernet> {
        self.number(node)?;
        let failed = |what: &str| Error::guest(node, what);
        let port = (self.spec().ethernet_port(node)).ok_or_else(|| {
            failed("it has no Ethernet port: the cluster file says \"ethernet = false\", or it is no guest")
        })?;
        let gone = |error: rustix::io::Errno| {
            failed(&format!(
                "cannot join the Ethernet of its device process: {error}"
            ))
        };
        let process = self.spec().process_of(node);
        let connection = self.connect(process).map_err(gone)?;
        let mut mac = [0; 6];
        let (_, length) = recv(&connection, &mut mac, RecvFlags::empty()).map_err(gone)?;
        let mac = MacAddress(mac);
        let number = mac.host_number().filter(|_| length == 6);
        let number = number.ok_or_else(|| {
            failed("no more programs can join the Ethernet of its device process: end one")
        })?;
        let network = self.spec().network_of_process(process);
        let ports = self.spec().ports_on(network).into_iter();
        let taken: BTreeSet<_> = ports.map(|port| port.addresses.ip.address()).collect();
        let address = port.ip.free_at_end(number, &taken);
        let address = address.ok_or_else(|| {
            failed("its network has no address left for the host: give it a shorter prefix")
        })?;
        Ok(HostEthernet {
            connection,
            mac,
            address,
            node: port.ip.address(),
            mtu: self.spec().ethernet().mtu,
        })
    }

    fn connect(&self, process: Option<&str>) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let path = self.dir.device(process).host();
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIME))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }
}
