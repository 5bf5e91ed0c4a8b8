//! `qnic tap`: an interface of this machine on the Ethernet of a node.
//!
//! ```text
//!   programs ─ kernel ─ interface ─ [Tap] ─ frames ─► device process ─► guests
//! ```
//! Each side is read only when the other has room: a device process that stands still leaves frames in the
//! kernel, which drops them when its queue is full.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use qnic_cli::join::tap::Options;
use qnic_cluster::{Cancel, HostEthernet};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{recv, send, RecvFlags, SendFlags};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::stack::ETHERNET_HEADER;

/// Frames that are moved before the other direction has its turn.
const TURN: usize = 64;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let cancel = Cancel::on_signals()?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let ethernet = cluster.join_ethernet(&options.node)?;
    let mut tap = Tap {
        interface: interface(&options.name, &ethernet)?,
        frame: vec![0; ETHERNET_HEADER + usize::from(ethernet.mtu)],
        ethernet,
    };
    let (name, address, node) = (&options.name, tap.ethernet.address, tap.ethernet.node);
    println!("{name} has {address}; {} is {node}", options.node);
    while !cancel.is_cancelled() {
        tap.wait(&cancel)?;
        tap.inwards()?;
        tap.outwards()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes an interface that goes with this program.
fn interface(name: &str, ethernet: &HostEthernet) -> Result<SyncDevice> {
    let address = ethernet.address;
    let interface = DeviceBuilder::new()
        .name(name)
        .layer(Layer::L2)
        .mac_addr(ethernet.mac.0)
        .mtu(ethernet.mtu)
        .ipv4(address.address(), address.length(), None)
        .build_sync();
    let interface = interface.with_context(|| {
        format!(
            "cannot make the interface {name}: it needs root or CAP_NET_ADMIN, and a name that is free \
             (\"cargo qnic forward\" needs neither)"
        )
    })?;
    interface.set_nonblocking(true)?;
    Ok(interface)
}

struct Tap {
    interface: SyncDevice,
    ethernet: HostEthernet,
    /// Room for one.
    frame: Vec<u8>,
}

/// Whether something that does not block would have.
fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl Tap {
    /// Waits until a frame can be moved, or for the end.
    fn wait(&self, cancel: &Cancel) -> Result<()> {
        let (interface, connection) = (self.interface.as_fd(), self.ethernet.connection.as_fd());
        // Frames to the connection are moved when it has room, those from it whenever there are some.
        let mut fds = [
            PollFd::new(&cancel, PollFlags::IN),
            PollFd::new(&connection, PollFlags::IN),
            PollFd::new(&interface, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for frames"),
        }
        if !fds[0].revents().is_empty() || !fds[1].revents().is_empty() {
            return Ok(());
        }
        let mut room = [
            PollFd::new(&cancel, PollFlags::IN),
            PollFd::new(&connection, PollFlags::IN | PollFlags::OUT),
        ];
        match poll(&mut room, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("wait for room"),
        }
    }

    /// From the device process to the interface.
    fn inwards(&mut self) -> Result<()> {
        for _ in 0..TURN {
            let taken = recv(
                &self.ethernet.connection,
                &mut self.frame[..],
                RecvFlags::DONTWAIT,
            );
            let length = match taken.map_err(io::Error::from) {
                Ok((0, _)) => bail!("the device process has ended"),
                Ok((length, _)) => length,
                Err(error) if would_block(&error) => return Ok(()),
                Err(_) => bail!("the device process has ended"),
            };
            match self.interface.send(&self.frame[..length]) {
                Ok(_) => {}
                // It is down, or full: frames are lost then.
                Err(error) if would_block(&error) || is_down(&error) => {}
                Err(error) => return Err(error).context("give a frame to the interface"),
            }
        }
        Ok(())
    }

    /// From the interface to the device process, while that has room.
    fn outwards(&mut self) -> Result<()> {
        for _ in 0..TURN {
            let mut room = [PollFd::new(&self.ethernet.connection, PollFlags::OUT)];
            if poll(&mut room, Some(&rustix::event::Timespec::default())) != Ok(1) {
                return Ok(());
            }
            let length = match self.interface.recv(&mut self.frame) {
                Ok(length) => length,
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error).context("the interface has gone"),
            };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // That the other end has gone is seen by the next look at what comes from it.
            let _ = send(&self.ethernet.connection, &self.frame[..length], flags);
        }
        Ok(())
    }
}

/// An interface that is down takes no frames.
fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
