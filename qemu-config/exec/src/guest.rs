//! The guest's side: finds its port, runs the command, moves bytes.
//!
//! One thread, one poll loop. What waits to be sent is bounded: while the host
//! does not read, the command's output is not read either, and its writes block.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::FlockOperation;
use rustix::io::ioctl_fionbio;

use crate::job::{unless_retry, Job, HIGH_WATER};
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
    ioctl_fionbio(&port, true)?;
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
            let port = self.wait()?;
            if port.intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            if port.contains(PollFlags::OUT) {
                self.send()?;
            }
            if port.contains(PollFlags::IN) && !self.receive()? {
                return Ok(());
            }
            self.serve_job()?;
        }
        Ok(())
    }

    /// Waits until there is something to do. Returns the events at the port. The pipes of the job
    /// are tried in any case: none of them blocks.
    fn wait(&self) -> io::Result<PollFlags> {
        let mut events = PollFlags::empty();
        events.set(
            PollFlags::IN,
            self.job.as_ref().is_none_or(Job::takes_input),
        );
        events.set(PollFlags::OUT, !self.outgoing.is_empty());
        let mut fds = vec![PollFd::new(&self.port, events)];
        if let Some(job) = &self.job {
            job.watch(self.outgoing.len() < HIGH_WATER, &mut fds);
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(fds[0].revents()),
            Err(error) => Err(error.into()),
        }
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

    /// Takes what the host sent; returns false when the host has gone or has turned
    /// to another helper.
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

    fn serve_job(&mut self) -> io::Result<()> {
        let Some(job) = &mut self.job else {
            return Ok(());
        };
        job.status = job.child.try_wait()?;
        job.feed()?;
        if job.input_ended && job.input.is_empty() {
            job.stdin = None;
        }
        for index in 0..job.outputs.len() {
            // Once the command has ended, what is in its pipes is taken, and the helper waits for
            // no more: a process that the command left behind may hold them open.
            let room = self.outgoing.len() < HIGH_WATER;
            if room && !job.drain(index, &mut self.outgoing)? && job.status.is_some() {
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
