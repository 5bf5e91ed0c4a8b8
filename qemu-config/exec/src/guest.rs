//! The guest's side: finds its port, runs the command, moves bytes.
//!
//! One thread, one poll loop. What waits to be sent is bounded: while the host
//! does not read, the command's output is not read either, and its writes block.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::FlockOperation;

use crate::job::{set_nonblocking, unless_retry, Job, Ready, Source, HIGH_WATER};
use crate::wire::{preamble, Decoder, Frame, Start, ToGuest, ToHost, CHUNK};

/// Opens the virtio-serial port called `name`, once no other helper uses it.
///
/// # Errors
/// There is no such port, or it cannot be opened.
pub fn open_port(name: &str) -> io::Result<OwnedFd> {
    let lock = File::create(format!("/run/{name}.lock"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    // The lock lives as long as this process, which serves this port only.
    std::mem::forget(lock);
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let found = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            let device = Path::new("/dev").join(entry.file_name());
            return Ok(File::options().read(true).write(true).open(device)?.into());
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("there is no virtio-serial port {name}"),
    ))
}

/// Serves one command over `port`: announces itself with `nonce`, waits for
/// [`ToGuest::Start`], runs, reports, returns. Returns early, with the command
/// killed, when the host goes away.
///
/// # Errors
/// The port failed, or the host sent something that is no frame.
pub fn serve(port: OwnedFd, nonce: u64) -> io::Result<()> {
    set_nonblocking(port.as_fd())?;
    let mut session = Session {
        port: File::from(port),
        nonce,
        incoming: Decoder::default(),
        outgoing: preamble(nonce).to_vec(),
        job: None,
        closing: false,
    };
    let end = session.run();
    if let Some(job) = &mut session.job {
        job.kill();
    }
    end
}

struct Session {
    port: File,
    nonce: u64,
    incoming: Decoder,
    outgoing: Vec<u8>,
    job: Option<Job>,
    /// The last frame is in `outgoing`.
    closing: bool,
}

impl Session {
    fn run(&mut self) -> io::Result<()> {
        while !(self.closing && self.outgoing.is_empty()) {
            let ready = self.wait()?;
            let port = ready.port.unwrap_or(PollFlags::empty());
            if port.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            if port.contains(PollFlags::OUT) {
                self.send()?;
            }
            if port.contains(PollFlags::IN) && !self.receive()? {
                return Ok(());
            }
            self.serve_job(&ready)?;
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<Ready> {
        let job = self.job.as_ref();
        let room = self.outgoing.len() < HIGH_WATER;
        let mut port_events = PollFlags::empty();
        if job.is_none_or(Job::takes_input) {
            port_events |= PollFlags::IN;
        }
        if !self.outgoing.is_empty() {
            port_events |= PollFlags::OUT;
        }
        let mut watched = vec![(Source::Port, self.port.as_fd(), port_events)];
        if let Some(job) = job {
            job.watch(room, &mut watched);
        }
        let mut fds: Vec<_> = watched
            .iter()
            .map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = Ready::default();
        for ((source, ..), fd) in watched.iter().zip(&fds) {
            let hit = !fd.revents().is_empty();
            match source {
                Source::Port => ready.port = Some(fd.revents()),
                Source::Exit => ready.exit = hit,
                Source::Stdin => ready.stdin = hit,
                Source::Output(index) => ready.outputs[*index] = hit,
            }
        }
        Ok(ready)
    }

    fn send(&mut self) -> io::Result<()> {
        match self.port.write(&self.outgoing) {
            Ok(written) => {
                self.outgoing.drain(..written);
                Ok(())
            }
            Err(error) => unless_retry(error),
        }
    }

    /// Takes what the host sent; false when the host has gone or has turned to
    /// another helper.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; CHUNK];
        match self.port.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(read) => self.incoming.push(&buffer[..read]),
            Err(error) => unless_retry(error)?,
        }
        while let Some(frame) = self.incoming.next_frame().map_err(io::Error::other)? {
            match (frame, &mut self.job) {
                (ToGuest::Open(nonce), _) if nonce == self.nonce => {}
                (ToGuest::Open(_), _) => return Ok(false),
                (ToGuest::Start(start), None) => self.start(&start),
                (ToGuest::Stdin(bytes), Some(job)) if job.stdin.is_some() => {
                    job.input.extend(bytes)
                }
                (ToGuest::StdinEnd, Some(job)) => job.input_ended = true,
                (ToGuest::Signal(signal), Some(job)) => job.signal(signal),
                _ => {}
            }
        }
        Ok(true)
    }

    fn start(&mut self, start: &Start) {
        match Job::start(start) {
            Ok(job) => self.job = Some(job),
            Err(error) => {
                let program = start.argv.first().map(|name| String::from_utf8_lossy(name));
                let message = format!("{}: {error}", program.unwrap_or_default());
                self.finish(&ToHost::NotStarted {
                    errno: error.raw_os_error().unwrap_or(0),
                    message,
                });
            }
        }
    }

    fn finish(&mut self, last: &ToHost) {
        last.encode(&mut self.outgoing);
        self.closing = true;
    }

    fn serve_job(&mut self, ready: &Ready) -> io::Result<()> {
        let Some(job) = &mut self.job else {
            return Ok(());
        };
        if ready.exit {
            job.status = job.child.try_wait()?;
        }
        if ready.stdin {
            job.feed()?;
        }
        if job.input_ended && job.input.is_empty() {
            job.stdin = None;
        }
        let exited = job.status.is_some();
        for index in 0..job.outputs.len() {
            // Once the command has ended, what is in its pipes is taken and no more
            // is waited for: a process it left behind may hold them open.
            let wanted = ready.outputs[index] || exited;
            if wanted
                && self.outgoing.len() < HIGH_WATER
                && !job.drain(index, &mut self.outgoing)?
                && exited
            {
                job.outputs[index] = None;
            }
        }
        if self.closing || job.outputs.iter().any(Option::is_some) {
            return Ok(());
        }
        if let Some(status) = job.status {
            let last = match status.signal() {
                Some(signal) => ToHost::Signaled(signal as u8),
                None => ToHost::Exited(status.code().unwrap_or(0) as u8),
            };
            self.finish(&last);
        }
        Ok(())
    }
}
