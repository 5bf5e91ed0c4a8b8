//! The socket on which programs of the host join the Ethernet of this process
//! ([`qnic_links::ethernet::Hosts`]).
//!
//! ```text
//!   connect     ──► the program has an address: the first message that it gets, of 6 bytes
//!   message     ──► a frame, to ports of this process
//!   message     ◄── a frame: checksums filled in, segments divided
//!   close       ──► the address is free again
//! ```
//! One thread serves all of them. It never waits for a program: what one does not read fills its own
//! inbox, and is lost behind that.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use qnic_abi::ethernet::Ethernet;
use qnic_config::MAX_HOST_PORTS;
use qnic_links::ethernet::{EthernetFrame, HostPort, Hosts, Offloads};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use zerocopy::FromZeros;

use super::RETRY_INTERVAL;
use crate::engine::Engines;
use crate::stop::Stop;

/// Longest frame of a program, in bytes.
const MAX_FRAME: usize = 4_096;

/// Frames of one program that are taken at once, before it is the others' turn.
const BATCH: usize = 64;

/// A program that has joined.
struct Program {
    connection: UnixStream,
    port: HostPort,
    /// Parts of a frame that it has had no room for. While there are any, nothing else is taken for it.
    waiting: VecDeque<EthernetFrame>,
}

/// Serves programs until `stop` is raised.
pub(crate) fn serve(hosts: &Arc<Hosts>, engines: &Engines, listener: &UnixListener, stop: &Stop) {
    let mut programs: Vec<Program> = Vec::new();
    while let Ok(Some((has_new, ready))) = wait(&programs, listener, stop) {
        let mut ready = ready.into_iter();
        let mut engines_are_there = true;
        programs.retain_mut(|program| {
            let (connection, bell) = ready.next().unwrap_or((PollFlags::empty(), false));
            if bell || connection.contains(PollFlags::OUT) {
                program.give();
            }
            if !connection.intersects(!PollFlags::OUT) {
                return true;
            }
            let Some(frames) = program.take() else {
                tracing::info!(mac = %program.port.mac(), "a program of the host has left");
                return false;
            };
            engines_are_there &= engines.receive_from_host(frames).is_ok();
            true
        });
        if !engines_are_there {
            return;
        }
        if has_new && !accept(hosts, listener, &mut programs) {
            // If descriptors are lacking, the program is still there.
            let _ = stop.wait([], Some(RETRY_INTERVAL));
        }
    }
}

/// What has happened to a program: to its connection, and whether there is anything for it.
type Ready = (PollFlags, bool);

/// Waits for anything. Returns whether a program wants to join, and what has happened to each;
/// `None` if the thread must end.
fn wait(
    programs: &[Program],
    listener: &UnixListener,
    stop: &Stop,
) -> io::Result<Option<(bool, Vec<Ready>)>> {
    let mut all = vec![
        PollFd::from_borrowed_fd(stop.descriptor(), PollFlags::IN),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    for program in programs {
        let bell = program.port.inbox().bell().as_fd();
        let (connection, bells) = match program.waiting.is_empty() {
            true => (PollFlags::IN, PollFlags::IN),
            false => (PollFlags::IN | PollFlags::OUT, PollFlags::empty()),
        };
        all.push(PollFd::new(&program.connection, connection));
        all.push(PollFd::from_borrowed_fd(bell, bells));
    }
    rustix::io::retry_on_intr(|| poll(&mut all, None))?;
    let happened: Vec<_> = all.iter().map(PollFd::revents).collect();
    let ready = happened[2..].chunks_exact(2);
    let ready = ready.map(|both| (both[0], !both[1].is_empty())).collect();
    Ok(happened[0]
        .is_empty()
        .then_some((!happened[1].is_empty(), ready)))
}

/// Lets the next program join. Returns false if it could not be asked.
fn accept(hosts: &Arc<Hosts>, listener: &UnixListener, programs: &mut Vec<Program>) -> bool {
    let accepted = listener.accept();
    let is_there = accepted.is_ok();
    let joined = accepted.and_then(|(connection, _)| {
        connection.set_nonblocking(true)?;
        let Some(port) = hosts.join()? else {
            tracing::warn!(
                "{MAX_HOST_PORTS} programs of the host have joined: one more is refused"
            );
            return Ok(());
        };
        send(&connection, &port.mac().0, SendFlags::NOSIGNAL)?;
        tracing::info!(mac = %port.mac(), "a program of the host has joined");
        programs.push(Program {
            connection,
            port,
            waiting: VecDeque::new(),
        });
        Ok(())
    });
    if let Err(error) = joined {
        tracing::warn!("a program of the host could not join: {error}");
    }
    is_there
}

impl Program {
    /// What it has sent; `None`: it has gone.
    fn take(&self) -> Option<Vec<EthernetFrame>> {
        let mut frames = Vec::new();
        let mut buffer = [0; MAX_FRAME];
        while frames.len() < BATCH {
            match recv(&self.connection, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, 0)) => return None,
                Ok((_, length)) => {
                    let bytes = buffer.get(..length).map(<[u8]>::to_vec).unwrap_or_default();
                    let frame = EthernetFrame::new(Ethernet::new_zeroed(), bytes);
                    // One that is too long, or has another source, is lost.
                    frames.extend(frame.ok().filter(|frame| self.port.may_send(frame)));
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(frames)
    }

    /// Gives it what has come, as long as it has room.
    fn give(&mut self) {
        let inbox = self.port.inbox();
        // Ours alone, so reading cannot block; before taking, so that what comes meanwhile wakes again.
        let _ = rustix::io::read(inbox.bell().as_fd(), &mut [0; 8]);
        loop {
            while let Some(frame) = self.waiting.front() {
                match send(&self.connection, frame.bytes(), SendFlags::NOSIGNAL) {
                    Err(Errno::AGAIN) => return,
                    // If it has gone, that is seen where it is read from.
                    _ => self.waiting.pop_front(),
                };
            }
            let Some(frame) = inbox.take() else { return };
            // What cannot be divided was refused where it was sent.
            let _ = frame.finish(Offloads::NONE, |part| self.waiting.push_back(part));
        }
    }
}
