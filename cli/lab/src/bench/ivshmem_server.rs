//! The server that guests with QEMU's ivshmem-doorbell connect to, as its specification says
//! (QEMU's documents, "Device Specification for Inter-VM shared memory device"). The distribution
//! ships none.
//!
//! ```text
//!   to a QEMU that connects:   0 │ its number │ -1 + memory │ each guest before it + its bell │ itself + its bell
//!   to each QEMU before it:    the number of the new one + its bell
//! ```
//! A message is 8 bytes, little endian; where a plus stands, a descriptor comes with it. A bell is the
//! eventfd of a guest's only vector: a QEMU writes to it when its guest rings, and the QEMU of
//! that guest raises the interrupt.
//!
//! The thread serves so many guests as there shall be, and keeps their connections: a QEMU whose
//! connection ends takes its guest for the only one.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{ensure, Context, Result};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{
    sendmsg, shutdown, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
};

/// The version of the protocol.
const VERSION: i64 = 0;

/// Stands where a guest's number does, beside the descriptor of the memory.
const MEMORY: i64 = -1;

/// A guest that has connected.
struct Guest {
    connection: UnixStream,
    bell: OwnedFd,
}

/// The server; its guests end before it.
pub(super) struct Server {
    listener: Arc<UnixListener>,
    /// Its result keeps the connections until it is dropped.
    _thread: JoinHandle<Vec<Guest>>,
}

impl Server {
    /// Serves so many guests, which share so many bytes, at a socket.
    pub(super) fn start(socket: &Path, guests: usize, bytes: u64) -> Result<Self> {
        let listener = UnixListener::bind(socket);
        let listener = listener.with_context(|| format!("listen at {}", socket.display()))?;
        let listener = Arc::new(listener);
        let memory = memfd_create("ivshmem", MemfdFlags::CLOEXEC).context("make memory")?;
        ftruncate(&memory, bytes).context("make memory")?;
        let accepting = listener.clone();
        let serve = move || {
            let mut served = Vec::new();
            while served.len() < guests {
                // It fails when this server is dropped.
                let Ok((connection, _)) = accepting.accept() else {
                    break;
                };
                if let Err(error) = welcome(&mut served, connection, memory.as_fd()) {
                    // That QEMU sees its connection end, and ends itself.
                    eprintln!("the server of ivshmem: {error:#}");
                }
            }
            served
        };
        let thread = std::thread::Builder::new().name("ivshmem".to_owned());
        Ok(Server {
            listener,
            _thread: thread.spawn(serve).context("start a thread")?,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends an accept under way; where all guests have come, there is none.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

/// Tells a guest of the others, and the others of it.
fn welcome(served: &mut Vec<Guest>, connection: UnixStream, memory: BorrowedFd<'_>) -> Result<()> {
    let number = i64::try_from(served.len())?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC).context("make an eventfd")?;
    let send = |value, descriptor| send(&connection, value, descriptor);
    send(VERSION, None)?;
    send(number, None)?;
    send(MEMORY, Some(memory))?;
    for (other, guest) in (0_i64..).zip(&*served) {
        send(other, Some(guest.bell.as_fd()))?;
    }
    send(number, Some(bell.as_fd()))?;
    for guest in &*served {
        self::send(&guest.connection, number, Some(bell.as_fd()))?;
    }
    served.push(Guest { connection, bell });
    Ok(())
}

/// Sends a message.
fn send(to: &UnixStream, value: i64, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let bytes = value.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &descriptor {
        let rights = SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor));
        ensure!(beside.push(rights), "there is no room for a descriptor");
    }
    let sent = sendmsg(
        to,
        &[IoSlice::new(&bytes)],
        &mut beside,
        SendFlags::NOSIGNAL,
    );
    let sent = sent.context("send to a guest's QEMU")?;
    ensure!(sent == bytes.len(), "a guest's QEMU takes nothing");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::time::Duration;

    use rustix::fs::fstat;
    use rustix::io::{read, write};
    use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;

    /// What comes next.
    fn receive(from: &UnixStream) -> (i64, Option<OwnedFd>) {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(from, &mut parts, &mut beside, RecvFlags::empty()).unwrap();
        assert_eq!(received.bytes, 8);
        let descriptors = beside.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let descriptor = descriptors.last();
        (i64::from_le_bytes(bytes), descriptor)
    }

    fn connect(socket: &Path) -> UnixStream {
        let stream = UnixStream::connect(socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    }

    #[test]
    fn two_guests_get_the_memory_and_the_bells_of_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let _server = Server::start(&socket, 2, 8192).unwrap();
        let first = connect(&socket);
        let start: [_; 4] = std::array::from_fn(|_| receive(&first));
        assert_eq!(start.each_ref().map(|it| it.0), [VERSION, 0, MEMORY, 0]);
        assert!(start[0].1.is_none() && start[1].1.is_none());
        assert_eq!(fstat(start[2].1.as_ref().unwrap()).unwrap().st_size, 8192);
        let second = connect(&socket);
        let other: [_; 5] = std::array::from_fn(|_| receive(&second));
        let numbers = other.each_ref().map(|it| it.0);
        assert_eq!(numbers, [VERSION, 1, MEMORY, 0, 1]);
        let (number, second_bell) = receive(&first);
        assert_eq!(number, 1);
        // Each rings the bell that the other looks at.
        for (rings, looks) in [(&other[3].1, &start[3].1), (&second_bell, &other[4].1)] {
            let mut count = [0; 8];
            write(rings.as_ref().unwrap(), &1_u64.to_ne_bytes()).unwrap();
            read(looks.as_ref().unwrap(), &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1);
        }
    }

    #[test]
    fn a_server_whose_guests_do_not_come_ends() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let mut server = Server::start(&socket, 1, 4096).unwrap();
        let thread = std::mem::replace(&mut server._thread, std::thread::spawn(Vec::new));
        drop(server);
        assert!(thread.join().unwrap().is_empty());
    }
}
