//! TCP/IP on the Ethernet of a node, by `smoltcp`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use qnic_cluster::HostEthernet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{recv, send, RecvFlags, SendFlags};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

/// Bytes of a connection that wait in each direction. What the guest may send at once fits into the
/// socket from which frames come.
const BUFFER: usize = 64 << 10;

/// A guest that does not answer for so long has lost the connection.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection without data is tried so often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// First of the ports that connections come from.
const FIRST_PORT: u16 = 49_152;

/// Bytes of the header of a frame.
pub(crate) const ETHERNET_HEADER: usize = 14;

/// The connections to one node.
pub(crate) struct Stack {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    node: IpAddress,
    next_port: u16,
    started: Instant,
}

impl Stack {
    pub(crate) fn new(ethernet: HostEthernet) -> Result<Self> {
        let mut wire = Wire {
            connection: ethernet.connection,
            mtu: ethernet.mtu.into(),
            has_ended: false,
        };
        let config = Config::new(EthernetAddress(ethernet.mac.0).into());
        let mut interface = Interface::new(config, &mut wire, StackInstant::ZERO);
        let address = ethernet.address;
        let own = IpCidr::new(address.address().into(), address.length());
        // There is room for one.
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(own);
        });
        Ok(Stack {
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            node: ethernet.node.into(),
            next_port: FIRST_PORT,
            started: Instant::now(),
        })
    }

    /// Begins a connection to a port of the node.
    pub(crate) fn connect(&mut self, port: u16) -> Result<SocketHandle> {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_timeout(Some(TIMEOUT.into()));
        socket.set_keep_alive(Some(KEEP_ALIVE.into()));
        socket.set_nagle_enabled(false);
        let from = self.next_port;
        self.next_port = from.checked_add(1).unwrap_or(FIRST_PORT);
        socket
            .connect(self.interface.context(), (self.node, port), from)
            .map_err(|error| anyhow!("{error}"))?;
        Ok(self.sockets.add(socket))
    }

    pub(crate) fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    pub(crate) fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// Takes what has come, and sends what is due. Returns true if a connection is not as it was before.
    ///
    /// # Errors
    /// Returns an error if the device process has ended.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        let now = self.now();
        let polled = self.interface.poll(now, &mut self.wire, &mut self.sockets);
        match self.wire.has_ended {
            true => Err(anyhow!("the device process has ended")),
            false => Ok(polled == PollResult::SocketStateChanged),
        }
    }

    /// What to wait for until the next turn is due, beside the time.
    pub(crate) fn events(&mut self) -> (PollFlags, Option<Duration>) {
        let now = self.now();
        let delay = self.interface.poll_delay(now, &self.sockets);
        let is_due = delay.is_some_and(|delay| delay.total_micros() == 0);
        // Something is to be sent, and there was no room for it.
        match is_due && !self.wire.has_room() {
            true => (PollFlags::IN | PollFlags::OUT, None),
            false => (PollFlags::IN, delay.map(Duration::from)),
        }
    }

    fn now(&self) -> StackInstant {
        StackInstant::ZERO + self.started.elapsed().into()
    }
}

impl AsFd for Stack {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.connection.as_fd()
    }
}

/// The Ethernet, whose frames are messages of a socket.
struct Wire {
    connection: OwnedFd,
    mtu: usize,
    has_ended: bool,
}

impl Wire {
    fn has_room(&self) -> bool {
        let mut fd = [PollFd::new(&self.connection, PollFlags::OUT)];
        let polled = rustix::event::poll(&mut fd, Some(&Timespec::default()));
        polled.is_ok() && !fd[0].revents().is_empty()
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _now: StackInstant) -> Option<(Received, Sender<'_>)> {
        // What comes is not taken before there is room for an answer.
        if !self.has_room() {
            return None;
        }
        let mut frame = vec![0; ETHERNET_HEADER + self.mtu];
        match recv(&self.connection, &mut frame[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) if length > 0 => {
                frame.truncate(length);
                Some((Received(frame), Sender(&self.connection)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
            _ => {
                self.has_ended = true;
                None
            }
        }
    }

    fn transmit(&mut self, _now: StackInstant) -> Option<Sender<'_>> {
        self.has_room().then_some(Sender(&self.connection))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = ETHERNET_HEADER + self.mtu;
        capabilities
    }
}

/// A frame that has come.
struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_it: F) -> R {
        use_it(&self.0)
    }
}

/// The right to send a frame.
struct Sender<'a>(&'a OwnedFd);

impl phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        // A frame that is lost is sent again by TCP; that the other end has gone is seen by `receive`.
        let _ = send(self.0, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        result
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::event::poll;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// A network with a program of the host, and a guest that returns what is sent to port 7.
    pub(crate) fn with_guest() -> HostEthernet {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (here, there) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let place = |connection, mac: &str, address: &str, node: &str| HostEthernet {
            connection,
            mac: mac.parse().unwrap(),
            address: address.parse().unwrap(),
            node: node.parse().unwrap(),
            mtu: 1500,
        };
        let guest = place(there, "52:54:00:71:00:00", "10.71.0.1/16", "10.71.255.254");
        std::thread::spawn(move || echo(Stack::new(guest).unwrap()));
        place(here, "52:54:00:70:00:00", "10.71.255.254/16", "10.71.0.1")
    }

    /// Ends with the network.
    fn echo(mut stack: Stack) {
        // Before anything comes: one for each connection of a test.
        let servers = [(); 8].map(|()| {
            let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.listen(7).unwrap();
            stack.sockets.add(socket)
        });
        while stack.turn().is_ok() {
            for server in &servers {
                let socket = stack.socket(*server);
                while socket.can_recv() && socket.can_send() {
                    let mut bytes = vec![0; socket.send_capacity() - socket.send_queue()];
                    let length = socket.recv_slice(&mut bytes).unwrap();
                    socket.send_slice(&bytes[..length]).unwrap();
                }
                if socket.may_send()
                    && !socket.may_recv()
                    && !socket.can_recv()
                    && !socket.is_listening()
                {
                    socket.close();
                }
            }
            match stack.turn() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => return,
            }
            let (events, delay) = stack.events();
            let delay = delay.map(|delay| Timespec::try_from(delay).unwrap());
            let mut fd = [PollFd::new(&stack, events)];
            let _ = poll(&mut fd, delay.as_ref());
        }
    }
}
