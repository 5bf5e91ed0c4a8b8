//! Unix sockets whose every wait has a deadline.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::PollFlags;
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wait::Deadline;

/// A connected socket; clones share the connection and the deadline.
#[derive(Clone)]
pub(crate) struct Socket {
    stream: Arc<UnixStream>,
    deadline: Arc<Mutex<Deadline>>,
}

impl Socket {
    /// Connects to `path`. A server that serves another client (QEMU's sockets take
    /// one client at a time) is waited for.
    pub(crate) fn connect(path: &Path, deadline: Deadline) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // The kernel applies the send timeout to a connect that finds the backlog full.
        set_socket_timeout(&fd, Timeout::Send, deadline.left())?;
        match connect(&fd, &SocketAddrUnix::new(path)?) {
            Err(rustix::io::Errno::AGAIN) => return Err(crate::wait::Stop::Timeout.into()),
            connected => connected?,
        }
        Self::over(UnixStream::from(fd), deadline)
    }

    /// That connection.
    pub(crate) fn over(stream: UnixStream, deadline: Deadline) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            deadline: Arc::new(Mutex::new(deadline)),
        })
    }

    /// Sets how long reads and writes wait from now on.
    pub(crate) fn set_deadline(&self, deadline: Deadline) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// The same connection with a deadline of its own.
    pub(crate) fn with_deadline(&self, deadline: Deadline) -> Self {
        Self {
            stream: Arc::clone(&self.stream),
            deadline: Arc::new(Mutex::new(deadline)),
        }
    }

    /// Tells the other side that nothing more comes; what it sends is still read.
    pub(crate) fn end_output(&self) {
        // The only failure is a connection that is closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection for all clones, also those that wait.
    pub(crate) fn shut_down(&self) {
        // The only failure is a connection that is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let deadline = self
            .deadline
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        deadline.first_ready(&[(self.as_fd(), events)])?;
        Ok(())
    }

    fn retry<T>(
        &self,
        events: PollFlags,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(events)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, || (&*self.stream).read(buffer))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, || (&*self.stream).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
